"""The connection of a command with this machine's agent."""

import errno
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from daisychain.config import Paths, Settings, locate
from daisychain.errors import DaisyError, LinkError, PreflightError, UsageError
from daisychain.facts import Verdict
from daisychain.link import client
from daisychain.link.client import Lock, as_log_line, connect_local, read_lock, wait_for_agent


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = locate({"DAISYCHAIN_HOME": str(tmp_path)})
    made.state.mkdir(parents=True)
    return made


def test_a_lock_says_how_to_reach_the_agent(paths: Paths) -> None:
    paths.agent_lock.write_text('{"pid": 12, "port": 47632}', encoding="utf-8")
    assert read_lock(paths) == Lock(12, 47632)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"pid": 12', b'{"pid": 12}', b'{"pid": "12", "port": 1}', b"[]", b"null", b"\xff\xfe\0", b"\0" * 64],
)
def test_a_torn_lock_is_no_lock(paths: Paths, content: bytes) -> None:
    paths.agent_lock.write_bytes(content)
    assert read_lock(paths) is None


def test_a_missing_lock_or_a_folder_in_its_place_is_no_lock(paths: Paths) -> None:
    assert read_lock(paths) is None
    paths.agent_lock.mkdir()
    assert read_lock(paths) is None


async def test_without_an_agent_what_to_type_is_said(paths: Paths) -> None:
    with pytest.raises(LinkError, match=r"no agent is running on this machine\. Start one with: daisychain"):
        await connect_local(paths, Settings())


async def test_a_lock_of_an_agent_that_was_killed_is_no_agent(paths: Paths) -> None:
    paths.agent_lock.write_text('{"pid": 999999, "port": 1}', encoding="utf-8")
    with pytest.raises(LinkError, match=r"can't reach 127\.0\.0\.1:1"):
        await connect_local(paths, Settings(name="x"))


async def test_a_mac_that_may_not_talk_to_its_neighbours_names_the_switch(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(client, "connect", fail)
    context = ssl.create_default_context()
    for platform, remedy in (("darwin", "Local Network"), ("linux", "Is daisychain running there")):
        monkeypatch.setattr(sys, "platform", platform)
        with pytest.raises(LinkError, match=r"can't reach 10\.0\.0\.2:1: No route to host") as caught:
            await client.dial("10.0.0.2", 1, context)
        assert remedy in caught.value.remedy


# --- an agent that can't start -----------------------------------------------------------------------

REFUSED = Verdict(level="refuse", check="nic", reason="eth0 has no IPv4 address", remedy="Give it one", node="old")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(PreflightError([REFUSED]), 4), (UsageError("there is no NIC 'et0'", "Give eth0"), 2), (DaisyError("taken"), 1)],
)
async def test_why_an_agent_did_not_start_is_the_commands_error(
    paths: Paths, error: DaisyError, exit_code: int
) -> None:
    lines = ["INFO listening", f"INFO {as_log_line(DaisyError('of last week'))}", f"FATAL {error}"]
    paths.agent_log.write_text("\n".join([*lines, f"INFO {as_log_line(error)}", ""]), encoding="utf-8")
    with pytest.raises(type(error)) as caught:
        await wait_for_agent(paths, Settings(), ended())
    assert (caught.value.exit_code, str(caught.value)) == (exit_code, str(error))


@pytest.mark.parametrize("log", ["", "INFO listening\n", "INFO can't start: {torn\n"])
async def test_an_agent_that_ended_without_a_word_names_its_log(paths: Paths, log: str) -> None:
    paths.agent_log.write_text(log, encoding="utf-8")
    with pytest.raises(DaisyError, match="ended at once") as caught:
        await wait_for_agent(paths, Settings(), ended())
    assert str(paths.agent_log) in caught.value.remedy


def ended() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process
