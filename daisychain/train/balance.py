"""Shares while a run goes on: which are valid for which step, and when to measure and change them. No torch.

Every rank holds the same Balancer and feeds it the same steps, so all ask for each other's times, and change the
shares, at the same step.
"""

from collections.abc import Callable, Sequence
from statistics import mean, median

from daisychain.plan.shares import Balance, Cost, Measured, replan

FIRST_WINDOW = 8
WINDOW = 20
COLD_STEPS = 2
"""Steps left out at the beginning: caches are cold and buckets not yet laid out."""
OUTLIER = 10
"""A step of more than this many medians counts as this many."""

Gather = Callable[[float], Sequence[float]]
"""Give this rank's number, get every rank's in rank order; a collective."""


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
    """Collects a window of computing times, then decides with all ranks."""

    def __init__(self, shares: tuple[int, ...], known: Sequence[Cost], names: Sequence[str], gather: Gather) -> None:
        """known: the reference model's cost on each rank."""
        self._known, self._names, self._gather = known, names, gather
        self._balance = Balance(shares)
        self._times: list[float] = []
        self._skip = COLD_STEPS
        self._window = FIRST_WINDOW

    def observe(self, shares: tuple[int, ...], batch: int, compute_s: float) -> tuple[tuple[int, ...], str] | None:
        """Take one step's computing time. New shares and the reason when it is time for a change.

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
        everyone = self._gather(typical(self._times))
        self._times, self._window = [], WINDOW
        measured = [Measured(share, seconds) for share, seconds in zip(shares, everyone, strict=True)]
        self._balance, reason = replan(self._balance, measured, self._known, self._names)
        return (self._balance.shares, reason) if reason else None


def typical(times: Sequence[float]) -> float:
    """The mean, with outliers cut to OUTLIER medians.

    Not the median: under a CPU quota most short steps run at full speed and then one stalls for all of them; a
    median takes such a node for a fast one.
    """
    limit = OUTLIER * median(times)
    return mean(min(seconds, limit) for seconds in times)
