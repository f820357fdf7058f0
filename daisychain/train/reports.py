"""What a rank tells its agent: one JSON object a line. Every kind there is, as a function that builds it.

Reports are small and frequent, so they are plain dicts; times are milliseconds, losses are floats or None.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Report = dict[str, Any]
Tell = Callable[[Report], None]
"""Takes one report; never raises."""
Origin = Literal["script", "peer", "chain"]
"""Whose fault: the user's script, another rank that went away, or DaisyChain and this machine."""


def silent(report: Report) -> None:
    """For a script that runs alone or under torchrun: nobody listens."""


def started() -> Report:
    """torch is loaded; the script runs next."""
    return {"kind": "started"}


def joined() -> Report:
    """The process group has formed."""
    return {"kind": "joined"}


def plan(epochs: int | None, steps: int | None, batch: int, shares: Sequence[int]) -> Report:
    """What will be done: passes, steps of all passes, samples a step, and the first shares. None: unknown."""
    return {"kind": "plan", "epochs": epochs, "steps": steps, "batch": batch, "shares": list(shares)}


def step(
    *,
    number: int,
    epoch: int,
    batch: int,
    share: int,
    shares: Sequence[int],
    compute_ms: float,
    exposed_ms: float,
    step_ms: float,
    loss: float | None,
    logged: Mapping[str, float],
) -> Report:
    """One finished step; steps count from 1, epochs from 0.

    compute: loading, forward, backward, optimizer. exposed: from the last gradient being ready to the exchange being
    over. batch, share, shares: of this very step, also when it is the ragged last one. loss: mean over the share.
    """
    report: Report = {
        "kind": "step",
        "step": number,
        "epoch": epoch,
        "batch": batch,
        "share": share,
        "shares": list(shares),
        "compute_ms": round(compute_ms, 3),
        "exposed_ms": round(exposed_ms, 3),
        "step_ms": round(step_ms, 3),
        "loss": loss,
    }
    return report | {"logged": dict(logged)} if logged else report


def shares(step: int, shares: Sequence[int], reason: str) -> Report:
    """From this step on the shares are others, and why."""
    return {"kind": "shares", "step": step, "shares": list(shares), "reason": reason}


def scores(scores: Mapping[str, Any]) -> Report:
    """The run's result, from rank 0."""
    return {"kind": "scores", "scores": dict(scores)}


def note(text: str) -> Report:
    """One line for people."""
    return {"kind": "note", "text": text}


def error(origin: Origin, type: str, message: str, file: str = "", line: int | None = None) -> Report:
    """Why this rank ends: one line, and where. The traceback is in the rank's log."""
    return {"kind": "error", "origin": origin, "type": type, "message": message, "file": file, "line": line}


def done() -> Report:
    """The script ended well; the last report."""
    return {"kind": "done"}


def writer(descriptor: int) -> Tell:
    """Write reports to a file descriptor, whole lines from any thread; when nobody reads any more, drop them."""
    lock = threading.Lock()

    def tell(report: Report) -> None:
        data = json.dumps(report).encode() + b"\n"
        with lock:
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                return

    return tell
