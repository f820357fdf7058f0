"""Shares while a run goes on: which are valid for which step, and when to measure and change them. No torch.

Every rank's time of a step reaches all ranks along with the next step's gradients. Each holds the same Balancer and
feeds it the same times, so all change the shares at the same step.
"""

from collections.abc import Sequence
from statistics import mean, median

from daisychain.plan.shares import Balance, Cost, Measured, replan

FIRST_WINDOW = 8
WINDOW = 20
COLD_STEPS = 2
"""Steps left out at the beginning: caches are cold and buckets not yet laid out."""
OUTLIER = 10
"""A step of more than this many medians counts as this many."""


class Schedule:
    """The shares of each step. A change is announced some steps ahead, since loader workers prepare batches early."""

    def __init__(self, shares: tuple[int, ...]) -> None:
        self._before = self._after = shares
        self._from = 0

    def at(self, index: int) -> tuple[int, ...]:
        """The shares of the step with this index, counted from 0."""
        return self._after if index >= self._from else self._before

    def change(self, index: int, shares: tuple[int, ...]) -> None:
        """From the step with this index on. The change before this one must have been reached."""
        self._before, self._after, self._from = self._after, shares, index


class Balancer:
    """Collects a window of all ranks' computing times, then decides; alike on every rank, from the same numbers."""

    def __init__(
        self, shares: tuple[int, ...], known: Sequence[Cost], names: Sequence[str], *, skip: int = COLD_STEPS
    ) -> None:
        """known: the reference model's cost on each rank. skip: steps left out at first."""
        self._known, self._names = known, names
        self._balance = Balance(shares)
        self._times: list[Sequence[float]] = []
        self._skip = skip
        self._window = FIRST_WINDOW

    def observe(
        self, shares: tuple[int, ...], batch: int, compute_s: Sequence[float]
    ) -> tuple[tuple[int, ...], str] | None:
        """Take one step's computing time of every rank. New shares and the reason when it is time for a change.

        Only steps of a whole batch cut by the newest shares count.
        """
        if shares != self._balance.shares or batch != sum(shares):
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._times.append(compute_s)
        if len(self._times) < self._window:
            return None
        everyone = [typical(of_rank) for of_rank in zip(*self._times, strict=True)]
        self._times, self._window = [], WINDOW
        measured = [Measured(share, seconds) for share, seconds in zip(shares, everyone, strict=True)]
        self._balance, reason = replan(self._balance, measured, self._known, self._names)
        return (self._balance.shares, reason) if reason else None


def first_costs(known: Sequence[Cost], measured: Sequence[float]) -> list[Cost]:
    """What shares to begin a generation with come from.

    known: the reference model's costs. measured: seconds a sample that the ranks have measured in this run, 0 where
    one has none yet. Ranks without are taken to differ from the known cost as the others do. The reference model's
    fixed cost, a large part of its own short step, says nothing about a heavier model's, so it is left out.
    """
    ratios = [new / old.per_sample_s for new, old in zip(measured, known, strict=True) if new > 0]
    scale = median(ratios) if ratios else 1.0
    return [
        Cost(0.0, new if new > 0 else old.per_sample_s * scale, old.cap)
        for new, old in zip(measured, known, strict=True)
    ]


def typical(times: Sequence[float]) -> float:
    """The mean, with outliers cut to OUTLIER medians.

    Not the median: under a CPU quota most short steps run at full speed and then one stalls for all of them; a
    median takes such a node for a fast one.
    """
    limit = OUTLIER * median(times)
    return mean(min(seconds, limit) for seconds in times)
