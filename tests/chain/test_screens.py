"""The screens on real terminals: joining and launching by keys alone, and closing them while a run goes on."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [
    pytest.mark.lan,
    pytest.mark.torch,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

ENDED = ("finished", "failed", "stopped")


class Terminal:
    """A terminal of 80x24 on a host, with a shell line that runs `daisychain WORDS` and then says its exit code."""

    def __init__(self, host: Any, *words: str) -> None:
        self._host = host
        self._socket = str(host.home / f".tmux-{len(list(host.home.glob('.tmux-*')))}")
        line = f"{sys.executable} -m daisychain {' '.join(words)}; echo exit code $?; exec cat"
        self._tmux("-u", "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", line)

    def _tmux(self, *words: str) -> str:
        done = self._host.run("tmux", "-S", self._socket, *words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def shows(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def is_clean(self) -> bool:
        """Back on the normal screen, cursor shown, mouse not reported."""
        flags = "#{alternate_on} #{cursor_flag} #{mouse_any_flag}"
        return self._tmux("display-message", "-p", flags).split() == ["0", "1", "0"]

    def program(self) -> int:
        """The process id of the screens, which are started without a command."""
        found = [pid for pid, words in self._host.commands().items() if words.endswith("-m daisychain")]
        assert len(found) == 1, self._host.commands()
        return found[0]

    def hang_up(self) -> None:
        """The terminal goes away, as when an ssh session drops."""
        self._host.run("tmux", "-S", self._socket, "kill-server")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """`terminal(host, *words)`; all are closed after the test."""
    made: list[Terminal] = []

    def make(host: Any, *words: str) -> Terminal:
        made.append(Terminal(host, *words))
        return made[-1]

    yield make
    for one in made:
        one.hang_up()


def six_digits(screen: str) -> set[str]:
    """Every group of six digits on a screen, however it is spaced."""
    return {re.sub(r"\D", "", found) for found in re.findall(r"(?<![\d.,:])\d(?:[ ]?\d){5}(?![\d.,:])", screen)}


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    return make_chain("head", "mid:nic=enp3s0")


def test_two_machines_are_chained_and_train_by_keys_alone(chain: Any, terminal: Callable[..., Terminal]) -> None:
    head, mid = terminal(chain.lan["head"]), terminal(chain.lan["mid"], "join")

    def both() -> str:
        return f"{head.shows()}\n{'=' * 80}\n{mid.shows()}"

    chain.until(lambda: bool(six_digits(head.shows()) & six_digits(mid.shows())), 30, both)
    assert set(chain.nodes()) == {"head"}, "nobody pressed a key yet"
    mid.press("j")
    head.press("a")
    chain.until(lambda: "mid" in chain.nodes(), 20, both)

    head.press("l")
    head.press("Enter")
    chain.until(lambda: run_of(chain).get("phase") == "running", 90, both)
    chain.until(lambda: run_of(chain)["step"] >= 2, 30, both)

    head.press("q")
    chain.until(lambda: "exit code 0" in head.shows(), 10, both)
    assert head.is_clean()
    assert run_of(chain)["phase"] not in ENDED, "quitting must not end the run"

    again = terminal(chain.lan["head"])
    chain.until(lambda: "demo" in again.shows(), 10, again.shows)
    os.kill(again.program(), signal.SIGTERM)
    chain.until(lambda: "exit code" in again.shows(), 10, again.shows)
    assert again.is_clean()

    dropped = terminal(chain.lan["head"])
    chain.until(lambda: "demo" in dropped.shows(), 10, dropped.shows)
    program = dropped.program()
    dropped.hang_up()
    chain.until(lambda: program not in chain.lan["head"].pids(), 10, chain.lan["head"].commands)

    chain.until(lambda: run_of(chain)["phase"] in ENDED, 120, lambda: run_of(chain))
    assert run_of(chain)["phase"] == "finished"


def run_of(chain: Any) -> dict[str, Any]:
    """The head's run as `status --json` has it."""
    return chain.on("head", "status", "--json").last["run"] or {}
