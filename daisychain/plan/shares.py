"""How many samples of each global batch every rank takes: pure.

A rank's step over n samples takes fixed_s + per_sample_s * n seconds. The best shares let every rank that takes part
finish at the same time T, with sum((T - fixed_s) / per_sample_s) = batch; a rank whose fixed cost alone is T or more
would only hold the others up and gets nothing.

The first shares come from a reference model's costs. Afterwards `replan` moves them towards what was measured, with
enough inertia that noise doesn't shake them.
"""

import heapq
from collections.abc import Sequence
from math import floor, log
from statistics import median

import msgspec

from daisychain.errors import UsageError

GAIN = 0.05
"""Part of the step time that new shares must save before they are worth a change."""
PATIENCE = 2
"""Windows in a row that must promise the gain."""
GROWTH = 2
"""A share grows at most this many times in one change."""
PROBE = 8
"""Samples that a rank may grow to from nothing."""


class Cost(msgspec.Struct, frozen=True):
    """Seconds of one step over n samples: fixed_s + per_sample_s * n, for n up to `cap`."""

    fixed_s: float
    per_sample_s: float
    cap: int | None = None
    """The most samples that fit into memory; None: no limit."""

    def step_s(self, samples: float) -> float:
        """Seconds that a step over `samples` takes."""
        return self.fixed_s + self.per_sample_s * samples


class Measured(msgspec.Struct, frozen=True):
    """One rank's medians over a window of steps: samples, and seconds of computing them (no waiting)."""

    share: int
    compute_s: float


class Balance(msgspec.Struct, frozen=True):
    """The shares of the moment, and what the next decision must remember."""

    shares: tuple[int, ...]
    eager: bool = True
    """Act on the first window that promises a gain: the shares still come from the reference model."""
    promising: int = 0
    """Windows in a row that promised a gain and weren't acted on."""
    direction: tuple[int, ...] = ()
    """What the last change added to each share; empty before the first."""
    stride: float = 1.0
    """Part of the way to the best shares that the next change goes."""


def equal(batch: int, ranks: int) -> tuple[int, ...]:
    """`batch` samples over `ranks`, as evenly as can be, the first ranks taking the rest."""
    return tuple(batch // ranks + (rank < batch % ranks) for rank in range(ranks))


def cut(samples: int, shares: Sequence[float]) -> tuple[int, ...]:
    """`samples` in proportion to `shares`, by largest remainder; sums to `samples` exactly.

    The shares must not all be 0. A share of 0 gets 0.
    """
    total = sum(shares)
    exact = [samples * share / total for share in shares]
    parts = [floor(value) for value in exact]
    by_remainder = sorted((i for i, s in enumerate(shares) if s > 0), key=lambda i: (parts[i] - exact[i], i))
    for index in by_remainder[: samples - sum(parts)]:
        parts[index] += 1
    return tuple(parts)


def solve(batch: int, costs: Sequence[Cost]) -> tuple[int, ...]:
    """The shares that make the slowest rank's step as short as possible; they sum to `batch` exactly.

    Costs are of one rank each, with per_sample_s > 0. Raises UsageError when the caps hold less than `batch`.
    """
    room = [batch if cost.cap is None else max(0, min(cost.cap, batch)) for cost in costs]
    if sum(room) < batch:
        raise UsageError(
            f"a batch of {batch} samples doesn't fit: all nodes together hold {sum(room)}",
            "Use a smaller batch, or add a node",
        )
    finish_s = _common_finish(batch, costs, room)
    taking = [index for index, cost in enumerate(costs) if cost.fixed_s < finish_s and room[index] > 0]
    shares = [0] * len(costs)
    for index in taking:
        # One below the exact answer, so that float noise can't overshoot; the loop below adds what is missing.
        exact = (finish_s - costs[index].fixed_s) / costs[index].per_sample_s
        shares[index] = min(room[index], max(0, floor(exact) - 1))
    # All with room, not only those that take part in the exact answer: samples are whole, and the last one may be
    # done earliest by a rank whose fixed cost is just over the exact finish.
    earliest = [(cost.step_s(shares[i] + 1), i) for i, cost in enumerate(costs) if shares[i] < room[i]]
    heapq.heapify(earliest)
    for _ in range(batch - sum(shares)):
        _, index = heapq.heappop(earliest)
        shares[index] += 1
        if shares[index] < room[index]:
            heapq.heappush(earliest, (costs[index].step_s(shares[index] + 1), index))
    return tuple(shares)


def _common_finish(batch: int, costs: Sequence[Cost], room: Sequence[int]) -> float:
    """The T at which ranks that all work until T, each within its room, have done `batch` samples.

    What is done by T grows piecewise linearly: a rank joins in at its fixed cost and leaves when its room is full.
    """
    changes = [(cost.fixed_s, 1 / cost.per_sample_s) for cost in costs]
    changes += [(cost.step_s(n), -1 / cost.per_sample_s) for cost, n in zip(costs, room, strict=True)]
    changes.sort(key=lambda change: change[0])
    done, speed, now_s = 0.0, 0.0, changes[0][0]
    for at_s, change in changes:
        if done + speed * (at_s - now_s) >= batch:
            break
        done, now_s, speed = done + speed * (at_s - now_s), at_s, speed + change
    return now_s + (batch - done) / speed if speed > 0 and done < batch else now_s


def replan(
    balance: Balance, measured: Sequence[Measured], known: Sequence[Cost], names: Sequence[str]
) -> tuple[Balance, str]:
    """What a window of measurements says about the shares.

    measured: one entry a rank, over steps of a whole batch cut by `balance.shares`. known: the reference
    model's costs, of which the fixed part and the caps are taken.

    Returns the balance to go on with, and why its shares changed ("old is 31% slower: 120 -> 84 samples"), or ""
    when they didn't. Shares change when the predicted gain exceeds GAIN in PATIENCE windows running (at once while
    `eager`); no share grows more than GROWTH times; a change that reverses the last one goes half as far.
    """
    costs = _costs(measured, known)
    shares, batch = balance.shares, sum(balance.shares)
    now_s = max(cost.step_s(n) for cost, n in zip(costs, shares, strict=True) if n)
    limits = [max(GROWTH * n, PROBE) for n in shares]
    best = solve(batch, [_capped(cost, limit) for cost, limit in zip(costs, limits, strict=True)])
    best_s = max(cost.step_s(n) for cost, n in zip(costs, best, strict=True) if n)
    if best == shares or best_s > now_s * (1 - GAIN):
        return msgspec.structs.replace(balance, promising=0, eager=False), ""
    if not balance.eager and balance.promising + 1 < PATIENCE:
        return msgspec.structs.replace(balance, promising=balance.promising + 1), ""
    wanted = tuple(new - old for new, old in zip(best, shares, strict=True))
    stride = _stride(balance, wanted)
    taken = cut(batch, [old + stride * change for old, change in zip(shares, wanted, strict=True)])
    if taken == shares:
        return msgspec.structs.replace(balance, promising=0, eager=False), ""
    clipped = any(n == limit for n, limit in zip(best, limits, strict=True))
    after = Balance(
        shares=taken,
        eager=balance.eager and clipped,
        direction=tuple(new - old for new, old in zip(taken, shares, strict=True)),
        stride=stride,
    )
    return after, _reason(shares, taken, measured, best_s, names)


def _capped(cost: Cost, limit: int) -> Cost:
    return msgspec.structs.replace(cost, cap=limit if cost.cap is None else min(limit, cost.cap))


def _costs(measured: Sequence[Measured], known: Sequence[Cost]) -> list[Cost]:
    """Each rank's cost such that it predicts exactly what was measured.

    The known fixed cost is taken as it is, up to half of what was measured: scaled to a heavier model it would shut
    slow nodes out. When it is wrong, shares only converge more slowly: they rest where all finish together. A rank
    without samples was measured on one that doesn't count; its per-sample cost is taken to differ from the known one
    as the others' do.
    """
    found: list[Cost | None] = []
    for at, cost in zip(measured, known, strict=True):
        seconds = max(at.compute_s, 1e-9)
        fixed_s = min(cost.fixed_s, seconds / 2)
        found.append(Cost(fixed_s, (seconds - fixed_s) / at.share, cost.cap) if at.share else None)
    scale = median(new.per_sample_s / old.per_sample_s for new, old in zip(found, known, strict=True) if new)
    return [
        new or Cost(max(0.0, at.compute_s - old.per_sample_s * scale), old.per_sample_s * scale, old.cap)
        for new, old, at in zip(found, known, measured, strict=True)
    ]


def _stride(balance: Balance, wanted: Sequence[int]) -> float:
    """Half of the last stride when the change turns back on the last one, up to twice of it when it goes on."""
    if not balance.direction:
        return 1.0
    turned = sum(a * b for a, b in zip(balance.direction, wanted, strict=True)) < 0
    return balance.stride / 2 if turned else min(1.0, balance.stride * 2)


def _reason(
    old: Sequence[int], new: Sequence[int], measured: Sequence[Measured], best_s: float, names: Sequence[str]
) -> str:
    """The rank furthest from the common finish, in words."""
    moved = [rank for rank in range(len(old)) if new[rank] != old[rank]]
    late = {rank: max(measured[rank].compute_s, 1e-9) / best_s for rank in moved}
    rank = max(moved, key=lambda r: abs(log(late[r])))
    how = f"{late[rank] - 1:.0%} slower" if late[rank] > 1 else f"{1 / late[rank] - 1:.0%} faster"
    return f"{names[rank]} is {how}: {old[rank]} -> {new[rank]} samples"
