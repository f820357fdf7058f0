"""Keeping this machine from falling asleep during a run, with its system's own tool, where it has one.

The tool holds the lock for as long as it runs and reads from a pipe of ours: when this process ends in whatever way,
the pipe does too, and the machine may sleep again.
"""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RELEASE_S = 2.0


def tool(platform: str = sys.platform, root: Path = Path("/")) -> tuple[str, ...] | None:
    """The command that keeps the machine awake while its standard input is open; None where there is none."""
    if platform == "darwin" and shutil.which("caffeinate"):
        return ("caffeinate", "-i", "cat")
    if platform == "linux" and shutil.which("systemd-inhibit") and (root / "run/systemd/system").is_dir():
        what = "--what=sleep:idle:handle-lid-switch"
        return ("systemd-inhibit", what, "--who=DaisyChain", "--why=a training run", "--mode=block", "cat")
    return None


class Awake:
    """The lock of one machine. Neither method raises: a machine that can't be kept awake trains all the same."""

    def __init__(self, command: Sequence[str] | None) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def hold(self) -> None:
        """Keep it awake from now on; nothing happens when it is already."""
        if self._command is None or self._process is not None:
            return
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def release(self) -> None:
        """Let it sleep again; blocks for RELEASE_S at most."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(RELEASE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
