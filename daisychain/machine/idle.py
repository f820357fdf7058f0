"""Whether its owner uses this machine: how long ago the last input was, and what follows from that.

What the system doesn't tell is unknown, and unknown takes nothing away from a run. `read_idle_s` blocks for some
milliseconds, so call it in a thread; the rest is pure.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

USED_WITHIN_S = 60.0
"""Input this recent means that the owner uses the machine."""
BACK_AFTER_S = 300.0
"""A machine that was used is free again so long after the last input."""
_DESKTOPS = ("x11", "wayland", "mir")
_PROPERTIES = ("Class", "Type", "IdleHint", "IdleSinceHintMonotonic")


class Owner(msgspec.Struct, frozen=True):
    """What the owner of a machine said and does; each change is a new Owner."""

    taken: bool = False
    """He took the machine back himself."""
    used: bool = False
    """He was seen using it, where that counts (the setting lend_when_used)."""
    waived: bool = False
    """He gave it back though he uses it: that counts until he has left it."""

    @property
    def has_it(self) -> bool:
        """Whether the machine is his at the moment and takes no part in runs."""
        return self.taken or (self.used and not self.waived)

    def says(self, taken: bool) -> "Owner":
        """He takes it back, or gives it back; his word counts for more than what he is seen doing."""
        return Owner(taken, self.used, not taken and self.used)

    def seen(self, idle_s: float | None) -> "Owner":
        """The last input was so long ago; None: unknown."""
        used = idle_s is not None and idle_s < (BACK_AFTER_S if self.used else USED_WITHIN_S)
        return Owner(self.taken, used, self.waived and used)


def read_idle_s(dev: Path = Path("/dev")) -> float | None:
    """Seconds since the last input at this machine, as far as its system tells; None where it doesn't."""
    if sys.platform == "darwin":
        return from_ioreg(_run("ioreg", "-c", "IOHIDSystem"))
    if not sys.platform.startswith("linux"):
        return None
    known = [from_logind(_sessions(), time.monotonic()), from_terminals(_read_times(dev), time.time())]
    return min((idle_s for idle_s in known if idle_s is not None), default=None)


def from_logind(text: str, now_s: float) -> float | None:
    """The same from `loginctl show-session`: a desktop says when its user left, and that he is back.

    now_s is CLOCK_MONOTONIC. A desktop that has never said anything may never do so; it is unknown. Sessions without
    a desktop are left to their terminals, which logind itself asks.
    """
    found = []
    for block in re.split(r"\n\s*\n", text):
        facts = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        since = facts.get("IdleSinceHintMonotonic", "")
        if facts.get("Class") != "user" or facts.get("Type") not in _DESKTOPS or not since.isdecimal() or since == "0":
            continue
        found.append(max(0.0, now_s - int(since) / 1e6) if facts.get("IdleHint") == "yes" else 0.0)
    return min(found, default=None)


def from_terminals(times_s: Iterable[float], now_s: float) -> float | None:
    """The same from when terminals were read last: the system notes it at each input, to 8 s. A future is unknown."""
    return min((now_s - at_s for at_s in times_s if at_s <= now_s), default=None)


def from_ioreg(text: str) -> float | None:
    """The same from macOS's `ioreg -c IOHIDSystem`, which has nanoseconds."""
    found = re.search(r'"HIDIdleTime"\s*=\s*(\d+)', text)
    return int(found[1]) / 1e9 if found else None


def _sessions() -> str:
    """Every session as logind describes it, with an empty line between two."""
    listed = _run("loginctl", "list-sessions", "--no-legend")
    names = [words[0] for line in listed.splitlines() if (words := line.split()) and words[0].isalnum()]
    wanted = [f"--property={name}" for name in _PROPERTIES]
    return _run("loginctl", "show-session", *wanted, *names) if names else ""


def _read_times(dev: Path) -> list[float]:
    """When each terminal was read last, on the wall clock; without tty0 and ptmx, at which nobody sits."""
    found = []
    for path in (*dev.glob("tty[1-9]*"), *dev.glob("pts/[0-9]*")):
        try:
            found.append(path.stat().st_atime)
        except OSError:
            continue
    return found


def _run(*command: str) -> str:
    """A small system tool's output; empty when it isn't there, fails or takes over 2 s."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")
