"""Keeping a machine awake: which tool, and that it lives no longer than it should."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from daisychain.machine import awake
from daisychain.machine.awake import Awake, tool

WAITS = (sys.executable, "-c", "import sys; sys.stdin.read()")


@pytest.mark.parametrize(
    ("platform", "there", "systemd", "first"),
    [
        ("linux", True, True, "systemd-inhibit"),
        ("linux", True, False, None),
        ("linux", False, True, None),
        ("darwin", True, False, "caffeinate"),
        ("win32", True, True, None),
    ],
)
def test_each_system_has_its_own_tool_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, there: bool, systemd: bool, first: str | None
) -> None:
    monkeypatch.setattr(awake.shutil, "which", lambda name: name if there else None)
    if systemd:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    found = tool(platform, tmp_path)
    assert (found[0] if found else None) == first


def test_it_is_held_once_and_released_once() -> None:
    lock = Awake(WAITS)
    lock.hold()
    process = lock._process
    assert process is not None
    lock.hold()
    assert lock._process is process
    assert process.poll() is None
    lock.release()
    lock.release()
    assert process.returncode == 0


@pytest.mark.parametrize("command", [None, ("/no/such/tool",), (sys.executable, "-c", "raise SystemExit(1)")])
def test_a_machine_that_can_not_be_kept_awake_is_no_error(command: tuple[str, ...] | None) -> None:
    lock = Awake(command)
    lock.hold()
    lock.release()


def test_a_tool_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "RELEASE_S", 0.1)
    lock = Awake((sys.executable, "-c", "import time; time.sleep(600)"))
    lock.hold()
    process = lock._process
    lock.release()
    assert process is not None
    assert process.returncode == -9


def test_it_ends_with_the_process_that_holds_it() -> None:
    code = f"""
import time
from daisychain.machine.awake import Awake
lock = Awake({WAITS!r})
lock.hold()
print(lock._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert psutil.pid_exists(pid)
        holder.kill()
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.02)
