"""Shares while a run goes on: which are valid for which step, and when to measure and change them. No torch.

Every rank's time of a step reaches all ranks along with the next step's gradients. Each holds the same Balancer and
feeds it the same times, so all change the shares at the same step.
"""

from collections import deque
from collections.abc import Collection, Sequence
from math import ceil, hypot, sqrt
from statistics import mean, median, pstdev
from typing import NamedTuple

from daisychain.plan.shares import Balance, Cost, Measured, replan

FIRST_WINDOW = 8
"""Steps of a window while every window is acted on at once."""
WINDOW = 20
CALM_WINDOW = 100
"""The same where ranks don't wait for each other in each step, and shares that follow chance cost more than old ones:
on a table of flights at --sync local, over hosts under quotas of 80, 40 and 20 %, runs took 0.79 to 0.89 of head
alone's time with windows of 20 steps, over which means differ by up to 30 %, and 0.67 with the first shares kept.

Each stall counts there. Where a step takes a quarter of a quota's period (0.1 s), one in four or five is a stall: if
rare ones were left out, these could count in one window and not in the next. With all counted, and what a rank does
between its steps (train/local.py), the nodes waited 1 to 4 % of three such runs; before, the two faster ones waited 10
to 13 % of theirs."""
CALM_FIRST_WINDOW = 50
"""Of these the first ones: by a trial's half seconds, a host under a quota may seem a quarter too fast, or too slow."""
LASTING_S = 2.0
"""A first window that covers more time than this tells better what a model costs than its trial did (trial.EACH_S)."""
LONG = 5
"""Windows over which small gains count."""
COLD_STEPS = 2
"""Steps left out at the beginning: caches are cold and buckets not yet laid out."""
JUMP = 1.25
"""A change of speed that is acted on without waiting for a window's end, when the newest steps agree on it."""
JUMP_STEPS = 5
JUMP_S = 1.0
"""The newest steps must cover this much time, or be a window's: under a CPU quota (of 0.1 s) some steps in a row run at
full speed, and then some don't."""
JUMP_QUANTILE = 0.85
"""Part of the steps before that the newest must all lie beyond.

Of times that only scatter, all of JUMP_STEPS do so once in (1 - JUMP_QUANTILE) ** -JUMP_STEPS = 13,000 steps, and
then by JUMP only where that is common.
"""
REFERENCE = 40, 8
"""Steps before the newest ones that these are compared with, at most and at least."""
STALL = 2.5
"""A step of more than this many usual ones is a stall."""
COMMON = 0.2
"""Part of a window's steps from which on stalls are the machine's own way of being slow."""
HARM = 0.03
"""By what part of a step a change must have made steps longer to be taken back."""
SURELY = 3.0
"""Standard errors by which what isn't computing must have grown."""
HOLD = 10
"""Windows without a change after one was taken back; twice as many after the next one."""
LONG_STEP_S = 1.0
"""Of steps that take this long the middle half tells: each covers ten of a quota's periods, and what sticks out (the
kernel finding memory, another program) is rare and passes, but less than STALL. Two such steps of nine, of 1.4 usual
ones, took a seventh too many samples from a slow node by their mean."""
OUTLIER = 10
"""A single stall of more than this many usual steps counts as this many; one of several is cut by the others."""


class Step(NamedTuple):
    """Of all ranks together: the longest computing, and what else it took them until the step was over."""

    compute_s: float
    rest_s: float


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
    """Collects all ranks' computing times and decides now and then; alike on every rank, from the same numbers.

    A large change that the newest steps agree on is followed at once, a smaller one after two windows. What a change
    promised is compared with what came of it: where computing became shorter and steps didn't, it is taken back. On a
    machine under a CPU quota computing looks short where exchanges break it up, and shares that go by that only grow.
    """

    def __init__(
        self,
        shares: tuple[int, ...],
        known: Sequence[Cost],
        names: Sequence[str],
        *,
        skip: int = COLD_STEPS,
        eager: bool = True,
        lockstep: bool = True,
    ) -> None:
        """known: a model's cost on each rank, the run's own or the reference one. skip: steps left out at first.

        eager: shares come from another model, and follow the first windows at once. lockstep: ranks wait for each other
        in each step; otherwise a stall costs its own rank alone, and counts.
        """
        self._known, self._names = known, names
        self._balance = Balance(shares, eager=eager)
        self._skip, self._lockstep = skip, lockstep
        self._window, self._first_window = (WINDOW, FIRST_WINDOW) if lockstep else (CALM_WINDOW, CALM_FIRST_WINDOW)
        self._times: list[Sequence[float]] = []
        """Of the steps with these shares."""
        self._earlier: list[Sequence[float]] = []
        """Of steps before these, as they would have been with these shares and at the speeds of now."""
        self._undecided = 0
        """Steps since the last window's end."""
        self._steps: deque[Step] = deque(maxlen=2 * self._window)
        """Of these shares; the first ones are left out."""
        self._step_s = 0.0
        """About what a step takes; 0: unknown."""
        self._cold = 0
        """Steps that are still to be left out of these."""
        self._unproven: tuple[tuple[int, ...], list[Step]] | None = None
        """The shares before the last changes, and their steps; None once these have proven themselves."""
        self._hold, self._holds = 0, HOLD

    def observe(
        self, shares: tuple[int, ...], batch: int, compute_s: Sequence[float], step_s: float = 0.0
    ) -> tuple[tuple[int, ...], str] | None:
        """Take one step's computing time of every rank. New shares and the reason when it is time for a change.

        Only steps of a whole batch cut by the newest shares count. step_s: of the whole step, the mean over all ranks;
        0: unknown.
        """
        if shares != self._balance.shares or batch != sum(shares):
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._times.append(compute_s)
        self._undecided += 1
        self._step_s += (step_s - self._step_s) / (JUMP_STEPS if self._step_s else 1)
        if self._cold:
            self._cold -= 1
        elif step_s > 0:
            longest_s = max(compute_s)
            self._steps.append(Step(longest_s, step_s - longest_s))
        reason = self._take_back() or self._follow_jump() or self._end_window()
        return (self._balance.shares, reason) if reason else None

    def _take_back(self) -> str:
        """Why the shares become what they were before the last change; "" when they don't."""
        if self._unproven is None or len(self._steps) not in (FIRST_WINDOW - COLD_STEPS, self._window):
            return ""
        shares, before = self._unproven
        if len(self._steps) == self._window:
            self._unproven = None
        if not (longer := became_longer(before, self._steps)):
            return ""
        self._balance = Balance(shares, eager=False, fixed=self._balance.fixed)
        self._times, self._earlier, self._undecided = [], [], 0
        self._hold, self._holds = self._holds, 2 * self._holds
        self._begin_anew(None)
        return f"steps became {longer:.0%} longer with the new shares, which are taken back"

    def _begin_anew(self, unproven: tuple[tuple[int, ...], list[Step]] | None) -> None:
        self._steps.clear()
        self._cold, self._unproven = COLD_STEPS, unproven

    def _follow_jump(self) -> str:
        steps = self._jump_steps
        newest, wanted = self._times[-steps:], steps + REFERENCE[0]
        history = self._times[-wanted:]
        if len(history) < wanted:
            history = [*self._earlier, *history][-wanted:]
        reference = history[:-steps]
        if len(newest) < steps or len(reference) < REFERENCE[1]:
            return ""
        pairs = list(zip(zip(*reference, strict=True), zip(*newest, strict=True), strict=True))
        jumps = [jump(before, now) for before, now in pairs]
        if all(factor == 1 for factor in jumps):
            return ""
        everyone = [
            typical(before) * factor if factor != 1 else typical([*before, *now])
            for factor, (before, now) in zip(jumps, pairs, strict=True)
        ]
        self._earlier, self._times, self._undecided = _scaled(reference, jumps), newest, 0
        return self._decide(everyone, jumped=True)

    @property
    def _jump_steps(self) -> int:
        """How many of the newest must agree."""
        return min(self._window, max(JUMP_STEPS, ceil(JUMP_S / self._step_s))) if self._step_s else JUMP_STEPS

    def _end_window(self) -> str:
        size = self._window
        if self._undecided not in (self._first_window if self._balance.eager else size, 2 * size):
            return ""
        window = zip(*self._times[-self._undecided :], strict=True)
        history = [*self._earlier, *self._times][-2 * size :]
        often = [self._counts_stalls(of_rank) for of_rank in zip(*history, strict=True)]
        if self._lockstep and any(often) and len(history) < 2 * size:
            return ""  # in so few steps rare stalls may look common
        self._undecided = 0
        if self._hold:
            self._hold -= 1
            return ""
        columns = list(zip(window, often, strict=True))
        noise = max(uncertainty(of_rank) for of_rank, _ in columns)
        reason = self._decide([typical(of_rank, stalls) for of_rank, stalls in columns], noise=noise)
        if not reason and len(self._times) >= LONG * size:
            everything = zip(*self._times, strict=True)
            times = [typical(of_rank, self._counts_stalls(of_rank)) for of_rank in everything]
            reason = self._decide(times, long=True)
            self._times = self._times[-(LONG - 1) * size :]
        return reason

    def _counts_stalls(self, times: Sequence[float]) -> bool:
        """Whether a rank's stalls among these steps are its own way of being slow."""
        return not self._lockstep or stalls_often(times)

    def _decide(
        self, compute_s: Sequence[float], *, jumped: bool = False, long: bool = False, noise: float = 1.0
    ) -> str:
        """Why the shares change; "" when they don't."""
        old = self._balance.shares
        measured = [Measured(share, seconds) for share, seconds in zip(old, compute_s, strict=True)]
        self._balance, reason = replan(
            self._balance, measured, self._known, self._names, jumped=jumped, long=long, noise=noise
        )
        if reason:
            scale = [self._balance.step_of(rank, old) for rank in range(len(old))]
            self._earlier = _scaled([*self._earlier, *self._times][-REFERENCE[0] :], scale)
            self._times, self._undecided = [], 0
            # what was before a jump is no measure of what comes after it
            proves = not jumped and len(self._steps) >= FIRST_WINDOW - COLD_STEPS
            if jumped:
                self._hold, self._unproven = 0, None
            # until a change has proven itself, the next ones are compared with what was before it
            self._begin_anew(self._unproven or ((old, [*self._steps]) if proves else None))
        return reason


def outlasts_trial(step_s: float, *, lockstep: bool) -> bool:
    """Whether to follow the first windows at once though shares come from the model's own trial (Balancer.eager).

    Of long steps the trial made one or two: on hosts under a quota of 0.1 s shares came out up to a third off, and 36
    steps of a second each passed before they were corrected. Of short ones the trial knows more than eight tell.
    """
    return not lockstep or FIRST_WINDOW * step_s > LASTING_S


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


def jump(reference: Sequence[float], newest: Sequence[float]) -> float:
    """How many times longer a rank's newest steps take than those before, if all of them agree; else 1.

    A few odd steps, before or now, change nothing: all of the newest must lie beyond JUMP medians of the reference
    and beyond most of it.
    """
    ordered, count = sorted(reference), len(reference)  # every step asks: statistics.median would sort once more
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    few = ceil(count * (1 - JUMP_QUANTILE))
    slower = min(newest) > max(middle * JUMP, ordered[-few])
    faster = max(newest) < min(middle / JUMP, ordered[few - 1])
    return median(newest) / middle if slower or faster else 1.0


def stalls_often(times: Sequence[float]) -> bool:
    """Whether stalls are common among these steps."""
    limit = STALL * _usual(times)
    return sum(seconds > limit for seconds in times) >= COMMON * len(times)


def typical(times: Sequence[float], often: bool | None = None) -> float:
    """The mean, without stalls when these are rare; else the longest of them are cut to STALL usual ones.

    Of long steps without common stalls, the mean of the middle half. often: whether stalls are common, where more than
    these steps tell it.

    Common stalls count, so it isn't the median: under a CPU quota most short steps run at full speed and then one
    stalls for all of them; a median takes such a node for a fast one. Rare ones don't: all ranks wait for them
    whatever the shares, so there is nothing to gain.
    """
    limit = STALL * _usual(times)
    if stalls_often(times) if often is None else often:
        stalls = [seconds for seconds in times if seconds > limit]
        longest = STALL * _usual(stalls) if len(stalls) > 1 else limit / STALL * OUTLIER
        return mean(min(seconds, longest) for seconds in times)
    if _usual(times) >= LONG_STEP_S:
        aside = len(times) // 4
        return mean(sorted(times)[aside : len(times) - aside])
    return mean(seconds for seconds in times if seconds <= limit)


def uncertainty(times: Sequence[float]) -> float:
    """Standard error of these times' mean, as a part of it; stalls make it large, also where they don't count."""
    middle = mean(times)
    return pstdev(times) / middle / sqrt(len(times)) if middle > 0 else 1.0


def became_longer(before: Collection[Step], now: Collection[Step]) -> float:
    """By what part steps became longer though computing didn't; 0 where that isn't sure, or not worth a change."""
    (computed_s, rest_s), (computes_s, rests_s) = _means(before), _means(now)
    error_s = hypot(*(pstdev(step.rest_s for step in steps) / sqrt(len(steps)) for steps in (before, now)))
    # a machine that computes more slowly now does so whatever the shares
    longer = (rests_s - rest_s + min(0.0, computes_s - computed_s)) / (computed_s + rest_s)
    return longer if longer > HARM and rests_s - rest_s > SURELY * error_s else 0.0


def _means(steps: Collection[Step]) -> tuple[float, float]:
    return mean(step.compute_s for step in steps), mean(step.rest_s for step in steps)


def _scaled(steps: Sequence[Sequence[float]], by: Sequence[float]) -> list[Sequence[float]]:
    return [[seconds * factor for seconds, factor in zip(step, by, strict=True)] for step in steps]


def _usual(times: Sequence[float]) -> float:
    """The lower quartile: of few steps, half may stall by chance."""
    return sorted(times)[(len(times) - 1) // 4]
