"""Runs the app and leaves the terminal as it was: after a key, a signal, a lost line, or a mistake of ours."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daisychain.config import Paths
from daisychain.errors import DaisyError, UsageError
from daisychain.tui.app import DaisyApp

# leaves the alternate screen, mouse and focus reporting, bracketed paste, the kitty keyboard; shows the cursor
RESTORE = (
    "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[?25h\x1b[0m"
)

GRACE_S = 3.0
"""How long an app that was told to end may take."""
WATCH_S = 1.0
"""How often a terminal that vanished without a signal is looked for."""


def check_terminal(environment: Mapping[str, str], is_tty: bool) -> None:
    """Raises UsageError where screens can't be drawn."""
    if not is_tty:
        raise UsageError("there is no terminal to draw on", "Use --headless, or --json for scripts")
    if environment.get("TERM", "") in ("", "dumb", "unknown"):
        kind = environment.get("TERM", "")
        raise UsageError(f"this terminal (TERM={kind}) can't draw screens", "Use --headless, or another terminal")


def crash_log(paths: Paths) -> Path:
    return paths.state / "screens-crash.log"


async def run_app(app: DaisyApp, mouse: bool = True) -> int:
    """Run the app until it ends; the exit code: 0, or 128 + the signal that ended it.

    mouse: let the terminal report the mouse; without it, text can be selected as usual. Raises UsageError where
    there is no usable terminal, and DaisyError naming a log file after a mistake of ours.
    """
    check_terminal(os.environ, sys.stdin.isatty() and sys.stdout.isatty())
    ending = Ending(app)
    try:
        with ending:
            await app.run_async(mouse=mouse)
    except OSError:
        # after a hang-up there is nothing to write to any more
        if not ending.number:
            _restore()
            raise
    except BaseException:
        _restore()
        raise
    if ending.number:
        return 128 + ending.number
    if app.crash is not None:
        _restore()
        raise _crashed(app.paths, app.crash)
    return app.return_code or 0


class Ending:
    """While entered: SIGTERM, SIGHUP and a lost terminal end the app in order, or within GRACE_S whatever happens.

    Plain signal handlers and a thread, not the event loop's: once nobody takes the app's output any more, its loop may
    hang in a write for ever.
    """

    def __init__(self, app: DaisyApp) -> None:
        self.app = app
        self.number = 0
        """The signal that ended the app; 0 while none did."""
        self._over = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # only the main thread may take signals
            with contextlib.suppress(ValueError, OSError):
                if number is not None:
                    self._before[number] = signal.signal(number, lambda received, _: self.end(received))
        threading.Thread(target=self._watch, name="terminal watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def end(self, number: int) -> None:
        """End the app as after this signal; the second call does nothing."""
        if self.number:
            return
        self.number = int(number)
        threading.Thread(target=self._force, name="terminal deadline", daemon=True).start()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.app.exit)

    def _watch(self) -> None:
        output = sys.__stdout__.fileno() if sys.__stdout__ else 1
        while not self._over.wait(WATCH_S):
            if not os.isatty(output):
                self.end(getattr(signal, "SIGHUP", 1))

    def _force(self) -> None:
        if not self._over.wait(GRACE_S):
            # a terminal that takes nothing must not hold this up
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.set_blocking(sys.__stdout__.fileno(), False)  # type: ignore[union-attr]
            _restore()
            os._exit(128 + self.number)


def _restore() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.write(sys.__stdout__.fileno(), RESTORE.encode())  # type: ignore[union-attr]


def _crashed(paths: Paths, error: Exception) -> DaisyError:
    """The error that a person sees instead of a traceback, which goes to a file."""
    file = crash_log(paths)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n{text}\n")
    except OSError as problem:
        return DaisyError(f"the screens failed ({type(error).__name__}: {error}), and {file}: {problem.strerror}")
    return DaisyError(
        f"the screens failed: {type(error).__name__}", f"Details: {file}. The agent and any run go on; start again"
    )
