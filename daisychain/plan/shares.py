"""How many samples of each global batch every rank takes: pure.

A rank's step over n samples takes fixed_s + per_sample_s * n seconds. The best shares let every rank that takes part
finish at the same time T, with sum((T - fixed_s) / per_sample_s) = batch; a rank whose fixed cost alone is T or more
would only hold the others up and gets nothing.

Where buckets of gradients leave while backward still runs, a rank's step has a second bound. With `early` the part of
its step that is over when the first bucket leaves, and T_o the exchange of all buckets but the last, it finishes at

    max(step, early * step + T_o);

the last bucket's exchange comes after everybody, and moves no share.

The first shares come from a reference model's costs. Afterwards `replan` moves them towards what was measured, with
enough inertia that noise doesn't shake them. What a rank's fixed cost is shows when its share changes: two shares and
their times are two points of its line.
"""

import heapq
from collections.abc import Sequence
from math import floor, inf, log
from statistics import median

import msgspec
from msgspec.structs import replace

from daisychain.errors import UsageError

GAIN = 0.05
"""Part of the step time that new shares must save before they are worth a change."""
SMALL_GAIN = 0.02
"""The same over a long window, whose means are surer, and for shares that are only rough."""
SURE = 3.0
"""Standard errors that a gain must exceed to count before it reaches GAIN."""
PATIENCE = 2
"""Windows in a row that must promise the gain."""
GROWTH = 2
"""A share grows at most this many times in one change."""
PROBE = 8
"""Samples that a rank may grow to from nothing."""
LEVERAGE = 0.2
"""Change of a share (of its logarithm) at which what it says about the fixed cost counts as much as the estimate."""


class Cost(msgspec.Struct, frozen=True):
    """Seconds of one step over n samples: fixed_s + per_sample_s * n, for n up to `cap`."""

    fixed_s: float
    per_sample_s: float
    cap: int | None = None
    """The most samples that fit into memory; None: no limit."""
    early: float = 1.0
    """Part of a step that is over when the first bucket of gradients leaves, over 0 and at most 1."""

    def step_s(self, samples: float) -> float:
        """Seconds that a step over `samples` takes."""
        return self.fixed_s + self.per_sample_s * samples

    def finish_s(self, samples: float, overlapped_s: float = 0.0) -> float:
        """Seconds until the step is over and so are the `overlapped_s` of exchange that may run beside backward."""
        step_s = self.fixed_s + self.per_sample_s * samples
        return max(step_s, self.early * step_s + overlapped_s)

    def samples_by(self, finish_s: float, overlapped_s: float = 0.0) -> float:
        """The inverse of finish_s: samples with which it is over at `finish_s`, below 0 where even none are."""
        step_s = min(finish_s, (finish_s - overlapped_s) / self.early)
        return (step_s - self.fixed_s) / self.per_sample_s


class Measured(msgspec.Struct, frozen=True):
    """What one rank's steps of a window typically were: samples, and seconds of computing them (no waiting)."""

    share: int
    compute_s: float


class Balance(msgspec.Struct, frozen=True):
    """The shares of the moment, and what the next decision must remember."""

    shares: tuple[int, ...]
    eager: bool = True
    """Act on each window that promises a gain, until PATIENCE in a row don't: the first shares come from the reference
    model, and a sample's cost may change with the share (caches), which the first window after a change shows badly."""
    idle: int = 0
    """Windows in a row that promised no gain while eager."""
    rough: bool = False
    """The shares come from the few steps after a jump: correct them once, by little as well."""
    promising: int = 0
    """Windows in a row that promised a gain and weren't acted on."""
    direction: tuple[int, ...] = ()
    """What the last change added to each share; empty before the first."""
    stride: float = 1.0
    """Part of the way to the best shares that the next change goes."""
    fixed: tuple[float, ...] = ()
    """Each rank's fixed cost as the number of samples that take as long; empty before the first window.

    In samples, for they stay when a machine as a whole becomes slower or faster.
    """
    before: tuple[Measured, ...] = ()
    """What the last change was decided on, until the first window after it."""

    def step_of(self, rank: int, other: Sequence[int]) -> float:
        """How many times longer the rank's step takes than over its share of `other`, at the same speed."""
        fixed = self.fixed[rank] if self.fixed else 0.0
        return (max(self.shares[rank], 1) + fixed) / (max(other[rank], 1) + fixed)


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


def fitting(batch: int, costs: Sequence[Cost]) -> list[Cost]:
    """The costs, without their caps where these hold less than the batch: then it is tried all the same."""
    holds = sum(batch if cost.cap is None else cost.cap for cost in costs) >= batch
    return list(costs) if holds else [replace(cost, cap=None) for cost in costs]


def solve(batch: int, costs: Sequence[Cost], overlapped_s: float = 0.0) -> tuple[int, ...]:
    """The shares that make the slowest rank finish as early as possible; they sum to `batch` exactly.

    Costs are of one rank each, with per_sample_s > 0. overlapped_s: the exchange that may run beside backward.
    Raises UsageError when the caps hold less than `batch`.
    """
    room = [batch if cost.cap is None else max(0, min(cost.cap, batch)) for cost in costs]
    if sum(room) < batch:
        raise UsageError(
            f"a batch of {batch} samples doesn't fit: all nodes together hold {sum(room)}",
            "Use a smaller batch, or add a node",
        )
    finish_s = _common_finish(batch, costs, room, overlapped_s)
    # One below the exact answer, so that float noise can't overshoot; the loop below adds what is missing.
    exact = [cost.samples_by(finish_s, overlapped_s) for cost in costs]
    shares = [min(most, max(0, floor(samples) - 1)) for most, samples in zip(room, exact, strict=True)]
    # All with room, not only those that take part in the exact answer: samples are whole, and the last one may be
    # done earliest by a rank whose fixed cost is just over the exact finish.
    earliest = [(cost.finish_s(shares[i] + 1, overlapped_s), i) for i, cost in enumerate(costs) if shares[i] < room[i]]
    heapq.heapify(earliest)
    for _ in range(batch - sum(shares)):
        _, index = heapq.heappop(earliest)
        shares[index] += 1
        if shares[index] < room[index]:
            heapq.heappush(earliest, (costs[index].finish_s(shares[index] + 1, overlapped_s), index))
    return tuple(shares)


def _common_finish(batch: int, costs: Sequence[Cost], room: Sequence[int], overlapped_s: float) -> float:
    """The T at which ranks that all work until T, each within its room, have done `batch` samples.

    What is done by T grows piecewise linearly: a rank joins in once its fixed cost is paid, slows down from 1 / early
    to once its speed where the exchange no longer bounds it, and leaves when its room is full.
    """
    changes: list[tuple[float, float]] = []
    for cost, most in zip(costs, room, strict=True):
        joins_s, leaves_s = cost.finish_s(0, overlapped_s), cost.finish_s(most, overlapped_s)
        speed = 1 / cost.per_sample_s
        bounded_s = overlapped_s / (1 - cost.early) if cost.early < 1 else inf if overlapped_s else 0.0
        if joins_s < bounded_s:
            changes.append((joins_s, speed / cost.early))
            if bounded_s < leaves_s:
                changes.append((bounded_s, speed - speed / cost.early))
                changes.append((leaves_s, -speed))
            else:
                changes.append((leaves_s, -speed / cost.early))
        else:
            changes += [(joins_s, speed), (leaves_s, -speed)]
    changes.sort(key=lambda change: change[0])
    done, speed, now_s = 0.0, 0.0, changes[0][0]
    for at_s, change in changes:
        if done + speed * (at_s - now_s) >= batch:
            break
        done, now_s, speed = done + speed * (at_s - now_s), at_s, speed + change
    return now_s + (batch - done) / speed if speed > 0 and done < batch else now_s


def replan(
    balance: Balance,
    measured: Sequence[Measured],
    known: Sequence[Cost],
    names: Sequence[str],
    *,
    jumped: bool = False,
    long: bool = False,
    noise: float = 1.0,
) -> tuple[Balance, str]:
    """What a window of measurements says about the shares.

    measured: one entry a rank, over steps of a whole batch cut by `balance.shares`. known: the reference
    model's costs, of which the caps are taken, and the fixed part until a change of shares has shown it.
    jumped: a rank's speed has just changed for certain. long: the window is long enough for small gains.
    noise: standard error of the measured times, as a part of them, on the rank where it is largest.

    Returns the balance to go on with, and why its shares changed ("old is 31% slower: 120 -> 84 samples"), or ""
    when they didn't. Shares change when the predicted gain exceeds GAIN (less where `noise` is small) in PATIENCE
    windows running (at once while `eager` and after a jump), or SMALL_GAIN in a long one or while `rough`; no share
    grows more than GROWTH times; a change that reverses the last one goes half as far, unless that was rough.
    """
    fixed = tuple(_fixed(balance, rank, at, known[rank], jumped) for rank, at in enumerate(measured))
    balance = replace(balance, fixed=fixed, before=())
    costs = _costs(measured, known, fixed)
    shares, batch = balance.shares, sum(balance.shares)
    now_s = max(cost.step_s(n) for cost, n in zip(costs, shares, strict=True) if n)
    limits = [max(GROWTH * n, PROBE) for n in shares]
    best = solve(batch, [_capped(cost, limit) for cost, limit in zip(costs, limits, strict=True)])
    best_s = max(cost.step_s(n) for cost, n in zip(costs, best, strict=True) if n)
    idle = balance.idle + 1
    eager = balance.eager and idle < PATIENCE
    quiet = balance if long else replace(balance, promising=0, eager=eager, idle=idle, rough=False)
    wanted_gain = SMALL_GAIN if long or balance.rough else min(GAIN, max(SMALL_GAIN, SURE * noise))
    if best == shares or best_s > now_s * (1 - wanted_gain):
        return quiet, ""
    if not (balance.eager or jumped or long) and balance.promising + 1 < PATIENCE:
        return replace(balance, promising=balance.promising + 1), ""
    wanted = tuple(new - old for new, old in zip(best, shares, strict=True))
    stride = 1.0 if jumped or balance.rough else _stride(balance, wanted)
    taken = cut(batch, [old + stride * change for old, change in zip(shares, wanted, strict=True)])
    if taken == shares:
        return quiet, ""
    after = Balance(
        shares=taken,
        eager=jumped or balance.eager,
        rough=jumped,
        direction=tuple(new - old for new, old in zip(taken, shares, strict=True)),
        stride=stride,
        fixed=fixed,
        before=tuple(measured),
    )
    return after, _reason(shares, taken, measured, best_s, names)


def _capped(cost: Cost, limit: int) -> Cost:
    return replace(cost, cap=limit if cost.cap is None else min(limit, cost.cap))


def _fixed(balance: Balance, rank: int, now: Measured, known: Cost, jumped: bool) -> float:
    """The rank's fixed cost in samples, at most its share: scaled to a heavier model it would shut slow nodes out.

    The line through the window before the last change and the first one after it, (n0, t0) and (n1, t1), has the
    slope k = (t1 - t0) / (n1 - n0) and begins at t0 - k * n0. As the variance of that grows with 1 / log(n1 / n0)^2,
    it replaces the estimate so far by log^2 / (log^2 + LEVERAGE^2) of the way: a Kalman filter's gain.
    When the estimate is wrong, shares only converge more slowly: they rest where all finish together.
    """
    seconds = max(now.compute_s, 1e-9)
    first_s = min(known.fixed_s, seconds / 2)
    fixed = balance.fixed[rank] if balance.fixed else first_s * now.share / (seconds - first_s)
    if balance.before and not jumped:
        before = balance.before[rank]
        n0, n1 = max(before.share, 1), max(now.share, 1)
        if n0 != n1:
            slope = (now.compute_s - before.compute_s) / (n1 - n0)
            seen = min(max(before.compute_s / slope - n0, 0.0), n0, n1) if slope > 0 else min(n0, n1)
            fixed += (seen - fixed) * log(n1 / n0) ** 2 / (log(n1 / n0) ** 2 + LEVERAGE**2)
    return min(fixed, now.share)


def _costs(measured: Sequence[Measured], known: Sequence[Cost], fixed: Sequence[float]) -> list[Cost]:
    """Each rank's cost such that it predicts exactly what was measured.

    A rank without samples was measured on one that doesn't count; its per-sample cost is taken to differ from the
    known one as the others' do.
    """
    found: list[Cost | None] = []
    for at, cost, samples in zip(measured, known, fixed, strict=True):
        per_sample_s = max(at.compute_s, 1e-9) / (at.share + samples) if at.share else 0.0
        found.append(Cost(samples * per_sample_s, per_sample_s, cost.cap) if at.share else None)
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
