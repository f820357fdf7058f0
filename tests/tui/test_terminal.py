"""The terminal afterwards: real processes on a pseudo-terminal."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daisychain.errors import UsageError
from daisychain.tui.terminal import check_terminal

PROGRAM = """
import asyncio, sys
from pathlib import Path
from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError
from daisychain.facts import Snapshot
from daisychain.tui.app import DaisyApp
from daisychain.tui.terminal import run_app

class Backend:
    async def ask(self, message): raise DaisyError("no")
    async def snapshots(self):
        yield Snapshot(self_id="", role="head", nodes=())
        if "crash" in sys.argv: raise ZeroDivisionError("a mistake of ours")
        await asyncio.Event().wait()

home = Path(sys.argv[1])
app = DaisyApp(Backend(), Settings(), Paths(home, home, home, home))
try:
    code = asyncio.run(run_app(app, mouse="no-mouse" not in sys.argv))
except DaisyError as error:
    print(f"ERROR {error}"); code = error.exit_code
sys.exit(code)
"""


class Screen:
    """A program on a pseudo-terminal, and all that it wrote."""

    def __init__(self, folder: Path, *words: str, term: str = "xterm-256color") -> None:
        self.master, slave = pty.openpty()
        self.out = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), *words], stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, env=os.environ | {"TERM": term, "COLUMNS": "80", "LINES": "24"},
        )  # fmt: skip
        os.close(slave)

    def read_until(self, what: bytes, seconds: float = 40) -> None:
        ending = time.monotonic() + seconds
        while what not in self.out:
            assert time.monotonic() < ending, self.out[-2000:]
            self._read()

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.1)
        try:
            data = os.read(self.master, 65536) if ready else b"-"
        except OSError:
            return False
        if ready:
            self.out += data
        return bool(data)

    def end(self) -> int:
        """The exit code, once the program has ended; everything it wrote is in `out`."""
        ending = time.monotonic() + 40
        while self.process.poll() is None:
            assert time.monotonic() < ending, "the program doesn't end"
            self._read()
        while select.select([self.master], [], [], 0.2)[0] and self._read():
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.master)


def left_clean(out: bytes) -> bool:
    """Whether the alternate screen, the mouse and the hidden cursor are all undone at the end."""
    return all(
        out.rfind(off) > out.rfind(on)
        for on, off in (
            (b"\x1b[?1049h", b"\x1b[?1049l"),
            (b"\x1b[?1000h", b"\x1b[?1000l"),
            (b"\x1b[?25l", b"\x1b[?25h"),
        )
        if on in out
    )


@pytest.fixture
def screen(tmp_path: Path, request: pytest.FixtureRequest) -> object:
    opened = []

    def start(*words: str, term: str = "xterm-256color") -> Screen:
        opened.append(Screen(tmp_path, *words, term=term))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_a_clean_terminal(screen, number: int, code: int) -> None:
    running = screen()
    running.read_until(b"launch")
    assert b"\x1b[?1049h" in running.out
    os.kill(running.process.pid, number)
    assert running.end() == code
    assert left_clean(running.out)
    assert b"Traceback" not in running.out


def test_a_terminal_that_vanished_ends_it_too(screen) -> None:
    running = screen()
    running.read_until(b"launch")
    os.close(running.master)
    running.master = -1
    assert running.process.wait(timeout=20) == 129


def test_q_ends_with_zero(screen) -> None:
    running = screen()
    running.read_until(b"launch")
    os.write(running.master, b"q")
    assert running.end() == 0
    assert left_clean(running.out)


def test_a_mistake_of_ours_is_a_sentence_and_a_file(screen, tmp_path: Path) -> None:
    running = screen("crash")
    assert running.end() == 1
    assert left_clean(running.out)
    assert b"Traceback" not in running.out
    assert b"ERROR the screens failed: ZeroDivisionError" in running.out
    log = tmp_path / "screens-crash.log"
    assert "a mistake of ours" in log.read_text()
    assert "Traceback" in log.read_text()


def test_without_the_mouse_it_is_never_asked_for(screen) -> None:
    running = screen("no-mouse")
    running.read_until(b"launch")
    os.write(running.master, b"q")
    running.end()
    assert b"\x1b[?1000h" not in running.out


def test_a_dumb_terminal_gets_a_sentence_and_no_escapes(screen) -> None:
    running = screen(term="dumb")
    assert running.end() == 2
    assert b"--headless" in running.out
    assert b"\x1b" not in running.out


def test_where_screens_cannot_be_drawn() -> None:
    check_terminal({"TERM": "xterm"}, is_tty=True)
    for environment, is_tty in (({"TERM": "xterm"}, False), ({"TERM": "dumb"}, True), ({}, True)):
        with pytest.raises(UsageError, match="--headless"):
            check_terminal(environment, is_tty)
