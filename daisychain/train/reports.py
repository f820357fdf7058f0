"""What a rank tells its agent: one JSON object a line. Every kind there is, as a function that builds it.

Reports are small and frequent, so they are plain dicts; times are milliseconds, losses are floats or None.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

GATHER_S = 0.2
"""Steps of less than this much time are reported together."""
GATHER_STEPS = 100
"""So many at most, for a line and a message have their limits."""

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


def trial(
    costs: Sequence[tuple[float, float]],
    early: Sequence[float],
    buckets: Sequence[int],
    exchange_s: float,
    latency_s: float,
    alone_s: float,
    together: tuple[Sequence[int], float] | None,
    caps: Sequence[int],
    sums: int,
    why: str,
) -> Report:
    """What trying the run's own model before the first step has shown; lists are in rank order.

    costs: (fixed_s, per_sample_s) of a step. early: part of it that is over when the first bucket leaves. buckets:
    bytes of each, in order. exchange_s: of all of them. latency_s: of a sum of next to nothing. alone_s: of the whole
    batch on the fastest rank, 0 where unknown. together: shares, and seconds of a whole step that all made with them.
    caps: samples that memory holds, 0 where unknown. sums: further small ones in a step, of batch normalisation. why:
    why the model couldn't be tried; then the rest says nothing.
    """
    return {
        "kind": "trial", "costs": [list(cost) for cost in costs], "early": list(early),
        "buckets": list(buckets), "exchange_s": exchange_s, "latency_s": latency_s, "alone_s": alone_s,
        "together": together and {"shares": list(together[0]), "step_s": together[1]}, "caps": list(caps),
        "sums": sums, "why": why,
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


def steps(reports: Sequence[Report]) -> Report:
    """Several steps' reports, oldest first. Each has `ago_ms` too: how long before this line was sent it was over."""
    return {"kind": "steps", "steps": list(reports)}


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


def error(origin: Origin, type: str, message: str, file: str = "", line: int | None = None, remedy: str = "") -> Report:
    """Why this rank ends: one line, where, and what to try. The traceback is in the rank's log."""
    place = {"file": file, "line": line}
    return {"kind": "error", "origin": origin, "type": type, "message": message, **place, "remedy": remedy}


def done() -> Report:
    """The script ended well; this process waits until all have."""
    return {"kind": "done"}


class Writer:
    """Writes reports to a file descriptor, whole lines from any thread; when nobody reads any more, drops them.

    Steps that follow each other faster than GATHER_S go together, for what a line costs the agents is more than what a
    short step costs a rank. Any other report, and `flush`, sends what has been gathered first.
    """

    def __init__(self, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._lock = threading.Lock()
        self._gathered: list[tuple[float, Report]] = []
        self._sent_s = -GATHER_S

    def __call__(self, report: Report) -> None:
        """Write this report, now or soon."""
        with self._lock:
            if report["kind"] != "step":
                self._send_gathered()
                self._write(report)
                return
            now = self._clock()
            self._gathered.append((now, report))
            if now - self._sent_s >= GATHER_S or len(self._gathered) >= GATHER_STEPS:
                self._send_gathered()

    def flush(self) -> None:
        """Write what has been gathered."""
        with self._lock:
            self._send_gathered()

    def _send_gathered(self) -> None:
        if self._gathered:
            self._sent_s = now = self._clock()
            self._write(steps([report | {"ago_ms": round((now - at) * 1000, 1)} for at, report in self._gathered]))
            self._gathered = []

    def _write(self, report: Report) -> None:
        data = json.dumps(report).encode() + b"\n"
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._descriptor, data) :]
