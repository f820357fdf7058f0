"""Knobs set by measurement, alike on all ranks: whether optimizers are fused, and how much goes into a bucket.

Every rank measures for itself, all tell each other what they have measured, and each decides from all numbers.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from daisychain.train.exchange import Exchange
from daisychain.train.reducer import BUCKET_BYTES

ELEMENTS = 1_000_000
"""Of the optimizers' parameters, at most, on whose copies steps are timed: some milliseconds, 16 MB for Adam."""
ROUNDS = 5
"""Timed steps of either kind; the fastest counts, for whatever else runs on the machine only adds."""
PATIENCE_NS = 200_000_000
"""No further round after this: threads that wait for busy cores take very long."""
GAIN = 0.9
"""What a fused step may take of a plain one's time to be worth the change."""
PROBE_BYTES = 256 * 1024
LEAST_BUCKET_BYTES = 256 * 1024
LATENCY_PART = 0.1
"""What waiting may be of a bucket's exchange."""


class Timing(NamedTuple):
    """One optimizer step on one rank; zeros: there is no choice."""

    plain_ns: int = 0
    fused_ns: int = 0


class Link(NamedTuple):
    """What a sum over all ranks takes, on the slowest of them."""

    latency_s: float
    """Of a sum of next to nothing."""
    bytes_per_s: float


def fusible(optimizers: Iterable[Optimizer], models: Iterable[nn.Module]) -> list[Optimizer]:
    """Optimizers for which fused is a mere matter of speed, and about which the script has said nothing.

    Not those that have made steps already, nor any beside a layer with sparse gradients, which fused SGD refuses.
    """
    if any(getattr(module, "sparse", False) for model in models for module in model.modules()):
        return []
    return [optimizer for optimizer in optimizers if type(optimizer) in (SGD, Adam, AdamW) and _is_open(optimizer)]


def _is_open(optimizer: Optimizer) -> bool:
    said = ("fused", "foreach", "capturable", "differentiable")
    groups = optimizer.param_groups
    plain = all(not isinstance(value, Tensor) for group in groups for key, value in group.items() if key != "params")
    return (
        not optimizer.state
        and plain
        and not any(group.get("fused") is not None or any(group.get(name) for name in said) for group in groups)
        and all(p.device.type == "cpu" and p.is_floating_point() for group in groups for p in group["params"])
    )


def time_step(optimizers: Sequence[Optimizer]) -> Timing:
    """What all their steps take together, plain and fused, on copies of (some of) their parameters.

    Nothing of the optimizers, of their parameters or of torch's generator is changed.
    """
    if not optimizers:
        return Timing()
    kinds = [_copies(optimizers, fused=fused) for fused in (False, True)]
    until = time.perf_counter_ns() + PATIENCE_NS
    for copies in kinds:
        _timed(copies)  # makes the state
    rounds = [[_timed(copies) for copies in kinds]]
    while len(rounds) < ROUNDS and time.perf_counter_ns() < until:
        rounds.append([_timed(copies) for copies in kinds])
    return Timing(*(min(of_kind) for of_kind in zip(*rounds, strict=True)))


def _timed(optimizers: Sequence[Optimizer]) -> int:
    begun = time.perf_counter_ns()
    for optimizer in optimizers:
        optimizer.step()
    return max(1, time.perf_counter_ns() - begun)


def _copies(optimizers: Sequence[Optimizer], *, fused: bool) -> list[Optimizer]:
    left = ELEMENTS
    copies: list[Optimizer] = []
    for optimizer in optimizers:
        groups = []
        for group in optimizer.param_groups:
            parameters = []
            for parameter in group["params"]:
                if parameter.requires_grad and left > 0:
                    parameters.append(_alike(parameter, left))
                    left -= parameters[-1].numel()
            if parameters:
                groups.append({**group, "params": parameters, "fused": fused})
                groups[-1].pop("param_names", None)
        if groups:
            copies.append(cast(Any, type(optimizer))(groups))
    return copies


def _alike(parameter: Tensor, limit: int) -> nn.Parameter:
    """A parameter with a gradient, of the same shape, or of as many elements as are allowed."""
    size = tuple(parameter.shape) if parameter.numel() <= limit else (limit,)
    copy = nn.Parameter(torch.zeros(size, dtype=parameter.dtype))
    copy.grad = torch.full(size, 1e-3, dtype=parameter.dtype)
    return copy


def fused_is_faster(timings: Sequence[Timing]) -> bool:
    """Whether the slowest rank, for which all others wait, gains by fused steps. False where a rank can't choose."""
    if not all(timing.fused_ns for timing in timings):
        return False
    return max(timing.fused_ns for timing in timings) <= GAIN * max(timing.plain_ns for timing in timings)


def fuse(optimizers: Iterable[Optimizer]) -> None:
    """Make all further steps fused."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["fused"] = True


def time_link(exchange: Exchange) -> Link | None:
    """Time sums over all ranks, which must all call it. Alike on every rank; None: alone, or a rank was lost."""
    if exchange.alone:
        return None
    latency_ns, probe_ns = (
        min(_summed(exchange, torch.zeros(size)) for _ in range(rounds))
        for size, rounds in ((1, 4), (PROBE_BYTES // 4, 3))
    )
    everyone = exchange.gather([latency_ns, probe_ns])
    if exchange.broken:
        return None
    latency_ns, probe_ns = (max(of_all) for of_all in zip(*everyone, strict=True))
    return Link(latency_ns / 1e9, PROBE_BYTES * 1e9 / max(1, probe_ns - latency_ns))


def _summed(exchange: Exchange, values: Tensor) -> int:
    begun = time.perf_counter_ns()
    exchange.finish(exchange.start(values))
    return time.perf_counter_ns() - begun


def bucket_bytes(link: Link | None) -> int | None:
    """How much goes into a bucket: as little as doesn't make waiting more than LATENCY_PART of its exchange.

    Small buckets leave earlier, while backward still runs, and leave less to exchange after it; each costs the link's
    latency once. Time of a bucket: latency + bytes / rate. None where there is no link.
    """
    if link is None:
        return None
    wanted = link.latency_s * link.bytes_per_s * (1 / LATENCY_PART - 1)
    return int(min(BUCKET_BYTES, max(LEAST_BUCKET_BYTES, wanted)))
