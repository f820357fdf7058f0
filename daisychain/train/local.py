"""Local steps in rounds (`--sync local`): ranks step on their own shares, then parameters are averaged. Approximate.

Every rank does every step, on its part of the global batch, with its own optimizer; nothing is exchanged until the
round is over. A round ends after a number of steps, and with its pass over the data. It counts as a whole: a rank that
is lost takes the others back to the round's start, and a step is reported once its round is complete.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from daisychain.errors import ScriptError
from daisychain.plan.sync import FIRST_STEPS, MOMENTUM_ABOVE, Sync, fitted, next_steps
from daisychain.train import reports
from daisychain.train.average import Average
from daisychain.train.balance import COLD_STEPS, typical
from daisychain.train.batches import Piece
from daisychain.train.meter import Times
from daisychain.train.state import digest
from daisychain.train.steps import Steps


class Done(NamedTuple):
    """A step of the open round."""

    piece: Piece
    times: Times
    report: reports.Report


class News(NamedTuple):
    """What all ranks tell each other at a round's end, summed over them; lists have a place for each rank."""

    samples: float
    finished: float
    wish: float
    """Ranks that were asked to end the generation."""
    leaving: float
    """Ranks whose script leaves its loop here."""
    compute_s: list[float]
    """Of a step over a whole batch; 0: there was none."""
    exchange_s: list[float]
    """Of the last round; 0: there was none."""
    hashes: list[float]
    """Of the parameters at the round's start."""
    moved: list[float]
    """Ranks on which the round has changed a tensor, for each (average.Average)."""

    def numbers(self) -> list[float]:
        return [*self[:4], *self.compute_s, *self.exchange_s, *self.hashes, *self.moved]

    @classmethod
    def of(cls, numbers: list[float], ranks: int) -> "News":
        samples, finished, wish, leaving, *rest = numbers
        compute_s, exchange_s, hashes = (rest[at : at + ranks] for at in (0, ranks, 2 * ranks))
        return cls(samples, finished, wish, leaving, compute_s, exchange_s, hashes, rest[3 * ranks :])


class LocalSteps(Steps):
    """Steps whose gradients stay on their rank. Alone, each step counts at once, as usual."""

    def __init__(self, *, sync: Sync, **more: Any) -> None:
        super().__init__(**more)
        self._fixed = bool(sync.steps)
        self._steps = sync.steps or FIRST_STEPS
        """Of the round that is open or comes next; where they aren't fixed, its pass is cut into equal rounds."""
        self._planned_steps = self._steps
        self._average = Average(self._training)
        self._start: dict[str, Any] | None = None
        """What all ranks were at the open round's start; None between rounds."""
        self._start_hash = 0.0
        self._done: list[Done] = []
        self._exchange_s = 0.0

    # --- forming --------------------------------------------------------------------------------------

    def ensure_formed(self) -> None:
        if not self.has_loader:
            raise ScriptError(
                "local steps are counted by the DataLoader, and chain.prepare got none",
                "Give chain.prepare the DataLoader, or use --sync exact",
            )
        super().ensure_formed()

    def muster(self) -> None:
        if self._start is not None:
            self.restore(self._start)
        self._exchange_s = 0.0
        super().muster()
        if self._exchange.alone:
            self._average.momentum = []

    def capture(self) -> dict[str, Any]:
        """As of the open round's start, if one is open."""
        if self._start is not None:
            return self._start
        momentum = [v.clone() for v in self._average.momentum]
        return {**super().capture(), "local": {"steps": self._steps, "momentum": momentum}}

    def restore(self, captured: dict[str, Any]) -> None:
        super().restore(captured)
        self._start, self._done = None, []
        if local := captured.get("local"):  # a checkpoint of an exact run has none
            self._average.momentum = [v.clone() for v in local["momentum"]]
            self._steps = self._steps if self._fixed else int(local["steps"])

    # --- for the loader ----------------------------------------------------------------------------

    def starts(self, number: int) -> Iterator[int]:
        if self._start is not None and number > self.epoch:
            self.muster()  # the script left its last pass early, and a rank was lost before the round was complete
        yield from super().starts(number)

    def take(self, piece: Piece, parts: Sequence[Piece]) -> None:
        if self._start is None and not self._exchange.alone:
            self._start_hash = float(digest(self._training.models))
            self._start = self.capture()
            self._planned_steps = self._steps if self._fixed else fitted(self._steps, self._length - self.index)
        super().take(piece, parts)
        self._before = None  # a lost step is put back with its round

    def total(self, values: Tensor) -> Tensor:
        """Batch normalisation looks at this rank's own samples."""
        return values

    @property
    def weight(self) -> float:
        """Of the sum over a piece's parts, which are parts of the global batch, in this rank's own step."""
        return self._piece.batch / self._piece.share if self._piece is not None and self._piece.share else 1.0

    def _time_link(self) -> None:
        """Nothing is exchanged in buckets."""

    def count(self, targets: float) -> None:
        """The average weighs by samples."""

    def _complete_step(self, piece: Piece, times: Times) -> bool:
        if self._exchange.alone:
            return super()._complete_step(piece, times)
        if self._crew.called:
            return False
        self._advance(piece, times)
        self._done.append(Done(piece, times, self._step_report(piece, times)))
        # when the script leaves its loop, what follows needs the average; an error looks the same here
        leaves = isinstance(sys.exc_info()[1], GeneratorExit)
        is_over = leaves or len(self._done) >= self._planned_steps or self.index == 0
        return self._close(leaves) if is_over else True

    # --- a round's end -----------------------------------------------------------------------------

    def _close(self, leaves: bool) -> bool:
        """The round is over: average. False when a rank was lost meanwhile."""
        assert self._start is not None
        begun = time.perf_counter()
        start = self._start["training"]
        news = self._tell_all(start, leaves)
        if self._exchange.broken:
            return False
        mine = sum(done.piece.share for done in self._done)
        outer = len(self._done) > MOMENTUM_ABOVE
        told = time.perf_counter()
        self._average.take(start, news.moved, weight=mine / news.samples, outer=outer, exchange=self._exchange)
        if self._exchange.broken:
            return False
        ended = time.perf_counter()
        self._exchange_s = ended - told
        self._publish((ended - begun) / len(self._done))
        self._boundary = self._boundary or news.wish > 0
        self._look_at(news.hashes)
        self._adapt(news)
        self._start, self._done = None, []
        self._keep()
        return True

    def _tell_all(self, start: dict[str, Any], leaves: bool) -> News:
        """Everybody's news; the own ones when the exchange breaks. Raises ScriptError when ranks aren't level."""
        size = self.world_size
        samples = float(sum(done.piece.share for done in self._done))
        mine = News(
            samples,
            float(self.finished),
            float(self._crew.wants_boundary),
            float(leaves),
            self._placed(self._compute_s),
            self._placed(self._exchange_s),
            self._placed(self._start_hash),
            self._average.moved(start),
        )
        summed = self._exchange.total(torch.tensor(mine.numbers(), dtype=torch.float64))
        news = News.of(summed.tolist(), size)
        if news.leaving not in (0, size):
            self._exchange.fail(RuntimeError("the script left its loop on another node"))
        wanted = sum(done.piece.batch for done in self._done), self.finished * size
        if not self._exchange.broken and (news.samples, news.finished) != wanted:
            raise ScriptError(
                f"the nodes are not at the same step {self.finished}, with {news.samples:.0f} of {wanted[0]} samples",
                "Every node must go through all batches of the DataLoader",
            )
        return news

    def _placed(self, value: float) -> list[float]:
        """At this rank's place of a list of all ranks'."""
        values = [0.0] * self.world_size
        values[self.rank] = value
        return values

    @property
    def _compute_s(self) -> float:
        """Of a step over a whole batch with the round's newest shares; the first steps after an exchange left out."""
        times = [done.times.charged_s for done in self._measured]
        return typical(times[COLD_STEPS:] or times) if times else 0.0

    @property
    def _measured(self) -> list[Done]:
        whole = [done for done in self._done if done.piece.batch == self._batch]
        return [done for done in whole if done.piece.shares == whole[-1].piece.shares]

    def _publish(self, exposed_s: float) -> None:
        """Report the round's steps; each has its part of the exchange."""
        more = round(exposed_s * 1000, 3)
        for done in self._done:
            step_ms = round(done.report["step_ms"] + more, 3)
            self._tell_step(done.report | {"exposed_ms": more, "step_ms": step_ms})

    def _adapt(self, news: News) -> None:
        """Shares and length of the next round follow what all ranks have measured."""
        if not all(news.compute_s):
            return
        if not self._fixed:
            self._steps = next_steps(self._steps, max(news.compute_s), max(news.exchange_s))
        for done in self._measured:
            if self._rebalance(done.piece, news.compute_s):
                return
