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


def beat() -> Report:
    """This process runs; every second."""
    return {"kind": "beat"}


def waiting(
    port: int, generation: int, completed: int, why: str, over: bool = False, recent: Sequence[Report] = ()
) -> Report:
    """This rank isn't in a generation and waits for the next.

    port: where it would serve the store. generation: the last one it knew of. completed: steps in its state. why: what
    ended that generation for this rank; empty when it was asked to. over: its script has ended well.
    recent: the ledger's lines of the last steps, from a
    checkpoint, for a head that was lost before it could write them down.
    """
    report: Report = {"kind": "waiting", "port": port, "generation": generation, "completed": completed, "why": why}
    report |= {"over": True} if over else {}
    return report | {"recent": list(recent)} if recent else report


def joined(generation: int, completed: int) -> Report:
    """This generation has formed, and this rank's state is that of all: after `completed` steps."""
    return {"kind": "joined", "generation": generation, "completed": completed}


def plan(
    epochs: int | None, steps: int | None, batch: int, shares: Sequence[int], samples: int, drop_last: bool
) -> Report:
    """What will be done: passes, steps of all passes, samples a step, and the first shares. None: unknown.

    samples: of a whole pass. drop_last: whether a ragged last batch is left out.
    """
    return {
        "kind": "plan", "epochs": epochs, "steps": steps, "batch": batch, "shares": list(shares), "samples": samples,
        "drop_last": drop_last,
    }  # fmt: skip


def step(
    *,
    number: int,
    generation: int,
    epoch: int,
    index: int,
    first: int,
    digest: int,
    batch: int,
    share: int,
    shares: Sequence[int],
    compute_ms: float,
    exposed_ms: float,
    step_ms: float,
    loss: float | None,
    logged: Mapping[str, float],
) -> Report:
    """One finished step; steps count from 1, epochs and indices from 0.

    index: the batch's number in its epoch. first: the place of its first sample in the epoch's order.
    digest: of the rows of the whole batch, for the ledger.
    compute: loading, forward, backward, optimizer. exposed: from the last gradient being ready to the exchange being
    over. batch, share, shares: of this very step, also when it is the ragged last one. loss: mean over the share.
    """
    report: Report = {
        "kind": "step",
        "step": number,
        "generation": generation,
        "epoch": epoch,
        "index": index,
        "first": first,
        "digest": digest,
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


def knobs(threads: int, fused: bool, plain_ms: float, fused_ms: float, bucket_bytes: int) -> Report:
    """What this rank computes with, chosen by measurement.

    fused: whether optimizers are. plain_ms, fused_ms: of all optimizers' steps on this rank; 0: there was no choice.
    bucket_bytes: what gradients are exchanged in; 0: there is nobody to exchange them with.
    """
    return {
        "kind": "knobs", "threads": threads, "fused": fused, "plain_ms": round(plain_ms, 3),
        "fused_ms": round(fused_ms, 3), "bucket_bytes": bucket_bytes,
    }  # fmt: skip


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
    """The script ended well; this process waits until all have."""
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
