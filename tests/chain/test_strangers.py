"""Who and what is turned away: strangers at the door, scripts and data that can't work. Nothing is left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daisychain.trust.invites import Token

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """A head, a worker that joined, a stranger, and a machine whose disk is small."""
    made = make_chain("head", "mid:nic=enp3s0", "stranger", "tiny")
    said = made.on("mid", "join", "head", "--token", made.invite(), "--headless")
    assert said.exit == 0, said.err
    return made


# --- at the door -----------------------------------------------------------------------------------


def no_token(chain: Any) -> list[str]:
    return ["join", "head", "--headless"]


def mistyped(chain: Any) -> list[str]:
    return ["join", "head", "--headless", "--token", chain.invite()[:-3]]


def guessed(chain: Any) -> list[str]:
    """The right head and the right invitation, but not the secret."""
    known = Token.parse(chain.invite())
    return ["join", "head", "--headless", "--token", Token(known.head, known.invite, bytes(16)).text]


def of_another_head(chain: Any) -> list[str]:
    known = Token.parse(chain.invite())
    return ["join", "head", "--headless", "--token", Token(bytes(16), known.invite, known.secret).text]


def expired(chain: Any) -> list[str]:
    token = chain.invite("--minutes", "0.01")
    time.sleep(0.7)
    return ["join", "head", "--headless", "--token", token]


def used_up(chain: Any) -> list[str]:
    token = chain.invite("--uses", "1")
    said = chain.on("mid", "join", "head", "--token", token, "--headless")
    assert said.exit == 0, said.err
    return ["join", "head", "--headless", "--token", token]


@pytest.mark.parametrize("words", [no_token, mistyped, guessed, of_another_head, expired, used_up])
def test_a_stranger_is_refused_and_told_why(chain: Any, words: Callable[[Any], list[str]]) -> None:
    said = chain.on("stranger", *words(chain))
    assert said.exit == 5, said
    assert len(said.reason) > len("daisychain: ")
    assert "stranger" not in chain.nodes()


def test_the_door_is_logged(chain: Any) -> None:
    chain.on("stranger", *guessed(chain))
    log = Path(chain.on("head", "paths", "--json").last["log"])
    assert chain.lan["stranger"].address in log.read_text() or "stranger" in log.read_text()


# --- what can't work -------------------------------------------------------------------------------

GOOD_ROWS = "a,b,late\n" + "".join(f"{n},{n % 7},{n % 3 == 0}\n" for n in range(200))


CASES: dict[str, tuple[str | bytes | None, str, int, tuple[str, ...]]] = {
    # file: (content, None for no such file; target column; exit code; what the reason names)
    "syntax.py": ("import torch\nx = = 1\n", "", 6, ("head: ", "syntax.py:2")),
    "missing.py": (None, "", 2, ("head: ", "missing.py")),
    "missing.csv": (None, "late", 2, ("head: ", "missing.csv")),
    "column.csv": (GOOD_ROWS, "latte", 2, ("head: ", "column.csv", "latte")),
    "row.csv": (GOOD_ROWS + "1,2,3,4,5,6\n", "late", 2, ("head: ", "row.csv", "202")),
    "bytes.csv": (GOOD_ROWS.encode() + b"1,\xff\xfe,True\n", "late", 2, ("head: ", "bytes.csv", "202")),
    "empty.csv": ("", "late", 2, ("head: ", "empty.csv")),
    "header.csv": ("a,b,late\n", "late", 2, ("head: ", "header.csv")),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_work_is_said_in_one_line(chain: Any, name: str) -> None:
    text, target, exit_code, named = CASES[name]
    folder = f"bad-{name.replace('.', '-')}"
    file = str(chain.lan["head"].home / name) if text is None else chain.write(f"{folder}/{name}", text)
    job = ["tabular", file, "--target", target] if target else [file]
    said = chain.on("head", "run", *job, "--headless", timeout=90)
    assert said.exit == exit_code, said
    for word in named:
        assert word in said.reason


def test_a_script_that_fails_while_it_runs_is_named_with_its_line(chain: Any) -> None:
    file = chain.write(
        "raises/raises.py", "import daisychain\nchain = daisychain.init()\nraise ValueError('no data')\n"
    )
    said = chain.on("head", "run", file, "--headless", timeout=90)
    assert said.exit == 6, said
    assert "raises.py:3" in said.reason
    assert "ValueError: no data" in said.reason
    assert said.reason.split()[1].rstrip(":") in ("head", "mid")


def test_an_unknown_node_is_said(chain: Any) -> None:
    said = chain.on("head", "run", chain.script(), "--nodes", "head,nobody", "--headless", "--", "1", "0")
    assert said.exit == 3, said
    assert "nobody" in said.reason


@pytest.fixture
def tiny_disk(chain: Any) -> Iterator[Any]:
    """The host `tiny`, joined, with room for 3 MB where shipped files go."""
    cache = chain.lan["tiny"].home / ".cache"
    cache.mkdir()
    # before its agent starts: a mount doesn't reach the hosts' own mount namespaces later
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(cache)], check=True)
    try:
        said = chain.on("tiny", "join", "head", "--token", chain.invite(), "--headless")
        assert said.exit == 0, said.err
        yield chain.lan["tiny"]
        chain.on("tiny", "agent", "stop")
        chain.on("head", "forget", "tiny")
    finally:
        subprocess.run(["umount", "--lazy", str(cache)], check=True)


def test_a_full_disk_on_a_worker_is_named(chain: Any, tiny_disk: Any) -> None:
    big = chain.write("big/numbers.bin", os.urandom(8_000_000))
    job = ["run", chain.script(), "--data", big, "--nodes", "head,tiny", "--headless", "--", "1", "0"]
    said = chain.on("head", *job, timeout=90)
    assert said.exit == 4, said
    assert said.reason.startswith("daisychain: tiny has 3 MB of disk space free, and the run's files alone take 8 MB")
    assert "Free some space on tiny" in said.reason
    # what the disk takes, but leaves no room for a run
    small = chain.write("big/small.bin", os.urandom(1_000_000))
    job[job.index(big)] = small
    said = chain.on("head", *job, timeout=90)
    assert said.exit == 4, said
    assert said.reason.startswith("daisychain: tiny: the disk is full: the run's files need 2.0 MB")
    left = [file for file in tiny_disk.home.rglob("*") if file.is_file() and file.stat().st_size > 1_000_000]
    assert not left


# --- in the middle of a run ------------------------------------------------------------------------


def launch(chain: Any) -> Any:
    """A run over both nodes that would take minutes, some steps in."""
    run = chain.start("head", "run", chain.script(), "--anyway", "--headless", "--json", "--", "500", "0.05")
    chain.until(lambda: chain.steps_of(run) >= 3 or run.poll() is not None, 60, run.err.read_text)
    assert run.poll() is None, run.err.read_text()
    assert any("daisychain.train.rank" in words for words in chain.ranks("mid").values())
    return run


def nothing_left(chain: Any, *hosts: str) -> None:
    def ranks() -> dict[int, str]:
        return {pid: words for host in hosts for pid, words in chain.ranks(host).items() if "train.rank" in words}

    chain.until(lambda: not ranks(), 10, ranks)


def test_stop_ends_a_run_on_every_node(chain: Any) -> None:
    run = launch(chain)
    assert chain.on("head", "stop").exit == 0
    assert run.wait(20) == 130
    nothing_left(chain, "head", "mid")


def test_interrupting_the_command_ends_the_run(chain: Any) -> None:
    run = launch(chain)
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    nothing_left(chain, "head", "mid")


def test_a_killed_worker_leaves_no_rank_and_the_head_goes_on(chain: Any) -> None:
    run = launch(chain)
    os.kill(chain.agent_pid("mid"), signal.SIGKILL)
    nothing_left(chain, "mid")
    seen = chain.steps_of(run)
    chain.until(lambda: chain.steps_of(run) > seen + 5, 20, run.err.read_text)
    assert chain.on("head", "stop").exit == 0
    assert run.wait(20) == 130
    nothing_left(chain, "head")
    assert chain.on("mid", "join", "--headless").exit == 0


def test_a_killed_head_leaves_no_rank(chain: Any) -> None:
    run = launch(chain)
    os.kill(chain.agent_pid("head"), signal.SIGKILL)
    nothing_left(chain, "head")
    assert run.wait(40) == 1
    nothing_left(chain, "mid")
