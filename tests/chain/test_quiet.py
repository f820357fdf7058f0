"""What must cost next to nothing: importing, asking, idling. torch is loaded by ranks and the bench child alone."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

HEAVY = ("torch", "numpy")
COMMANDS = (
    *("join", "invite", "run", "demo", "predict", "nodes", "status"),
    *("doctor", "bench", "paths", "stop", "forget", "agent", "pause", "resume"),
)
LOADED = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules])"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    [
        "daisychain",
        "daisychain.cli",
        "daisychain.cli.parser",
        "daisychain.cli.run",
        "daisychain.cli.look",
        "daisychain.tui.app",
        "daisychain.agent.service",
        "daisychain.jobs.tabular.prepare",
        "daisychain.jobs.demo.prepare",
    ],
)
def test_importing_never_loads_torch(module: str) -> None:
    done = python(f"import {module}\n{LOADED}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_help_of_every_command_never_loads_torch() -> None:
    code = f"""
import contextlib, io
from daisychain.cli import main
for command in {COMMANDS}:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        main([command, "--help"])
    assert command in told.getvalue(), command
{LOADED}
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_commands_tested_here_are_all_there_are() -> None:
    done = python(
        "from daisychain.cli.parser import COMMANDS; import json; print(json.dumps(sorted(c for c in COMMANDS if c)))"
    )
    assert json.loads(done.stdout) == sorted(COMMANDS)


def test_the_version_is_told_at_once() -> None:
    def seconds(*words: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=30)
        return time.perf_counter() - started

    rounds = [(seconds("-c", "pass"), seconds("-m", "daisychain", "--version")) for _ in range(7)]
    bare, version = (statistics.median(times) for times in zip(*rounds, strict=True))
    # under 0.2 s where Python itself takes its usual 20 ms; a busy machine gets the same ratio
    assert version < max(0.2, 8 * bare), f"--version {version:.3f} s, bare python {bare:.3f} s"


@pytest.mark.torch
@pytest.mark.timeout(90)
@pytest.mark.skipif(sys.platform == "win32", reason="agents on Windows are not tested")
def test_an_idle_agent_costs_under_a_percent_and_80_mb(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    own = {"DAISYCHAIN_HOME": str(tmp_path), "DAISYCHAIN_PORT": port, "DAISYCHAIN_MDNS": "false"}

    def daisychain(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "daisychain", *words, "--json"],
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    daisychain("bench")  # starts the agent and waits until it has measured this machine
    try:
        agent = psutil.Process(daisychain("status")["pid"])
        assert not agent.children()
        before, started = agent.cpu_times(), time.monotonic()
        time.sleep(6)
        after, seconds = agent.cpu_times(), time.monotonic() - started
        used = (after.user - before.user + after.system - before.system) / seconds
        # cpu_times counts in hundredths of a second: one tick in 6 s is 0.17 %
        assert used < 0.01, f"{used:.2%} of a core"
        assert agent.memory_info().rss < 80e6, f"{agent.memory_info().rss / 1e6:.0f} MB"
    finally:
        daisychain("agent", "stop")
    agent.wait(10)
