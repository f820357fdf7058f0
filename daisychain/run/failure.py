"""Which of several failures is the cause: pure.

When one rank fails, its neighbours fail a moment later with messages about lost connections. The cause is the
script's own error if there is one, else a process that was killed, else what the chain itself says, and a lost
peer only if there is nothing else; among equals the first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

BY_CAUSE = ("script", "killed", "chain", "lost", "peer")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    origin: str
    """One of BY_CAUSE."""
    message: str
    """One line."""
    remedy: str = ""
    file: str = ""
    line: int | None = None
    exit_code: int = 1
    log_path: str = ""
    at_s: float = 0.0

    @property
    def text(self) -> str:
        """Node, place, what: one line."""
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        said = ": ".join(part for part in (self.node, place, self.message) if part)
        return f"{said.rstrip('.')}. {self.remedy}" if self.remedy else said


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure to show. Needs at least one."""
    return min(failures, key=lambda f: (BY_CAUSE.index(f.origin), f.at_s))


def from_report(node: str, report: Mapping[str, Any], log_path: str, at_s: float) -> Failure:
    """A rank's own error report."""
    origin = str(report.get("origin", "chain"))
    kind, message = str(report.get("type", "")), str(report.get("message", ""))
    line = report.get("line")
    return Failure(
        node=node,
        origin=origin if origin in BY_CAUSE else "chain",
        message=f"{kind}: {message}" if kind else message,
        remedy=str(report.get("remedy") or ""),
        file=str(report.get("file") or ""),
        line=line if isinstance(line, int) else None,
        exit_code=6 if origin == "script" else 1,
        log_path=log_path,
        at_s=at_s,
    )


def from_exit(
    node: str,
    code: int,
    log_path: str,
    at_s: float,
    lacks: Sequence[str] = (),
    peak_bytes: int | None = None,
    oom: bool | None = None,
) -> Failure:
    """A rank that ended without a report; a negative code is the signal that ended it.

    lacks: instructions that its node's processor is known not to have. peak_bytes: the most memory that it was seen
    to hold. oom: whether the kernel killed a process for want of memory meanwhile. None: unknown.
    """
    missing = ", ".join(lacks).upper()
    message, remedy = {
        -9: (_killed(peak_bytes, oom), _LESS_MEMORY),
        -4: (
            "its processor lacks an instruction that this torch needs (SIGILL)"
            + (f": it has no {missing}" if missing else ", most often AVX2"),
            "Leave this node out, or install an older torch there",
        ),
        -6: ("its rank aborted (SIGABRT)", "The log has the last words"),
        -11: ("its rank crashed (SIGSEGV)", "The log has the last words"),
    }.get(code, (f"its rank ended with exit code {code} and no report", "The log has the last words"))
    return Failure(
        node=node, origin="killed", message=message, remedy=remedy, exit_code=1, log_path=log_path, at_s=at_s
    )


_LESS_MEMORY = (
    "Cap what it computes at once with --micro-batch N, use a smaller batch, or leave this node out with --nodes"
)


def _killed(peak_bytes: int | None, oom: bool | None) -> str:
    why = {
        True: "the kernel ended a process there for want of memory",
        False: "not by the kernel: a person, systemd-oomd or earlyoom may have done it",
        None: "most often memory ran out",
    }[oom]
    held = "" if peak_bytes is None else f"; it held {peak_bytes / 1e9:.2f} GB of memory at most, as last seen"
    return f"its rank was killed (SIGKILL); {why}{held}"
