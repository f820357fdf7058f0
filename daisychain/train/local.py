"""Local steps in rounds (`--sync local`): ranks step on their own shares, then parameters are averaged. Approximate.

Every rank does every step, on its part of the global batch, with its own optimizer; nothing is exchanged until the
round is over. A round ends after a number of steps, and with its pass over the data. Its average is on its way while
the next round's steps are done, and is added to what they have changed (average.py); a rank waits for it

- in the middle of the next round, and when a round is a single step,
- when the script leaves its loop, and at the end of the last pass,
- and where the script looks at the model between two passes.

A round counts as a whole, once its average is there: only then are its steps reported, and a rank that is lost before
takes the others back to the round's start, into an earlier pass too.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from daisychain.errors import ScriptError
from daisychain.plan.sync import FIRST_STEPS, ON_THE_WAY, Sync, fitted, next_steps, outer
from daisychain.train import reports
from daisychain.train.average import Average, Sum
from daisychain.train.batches import Piece
from daisychain.train.exchange import Work
from daisychain.train.meter import Times
from daisychain.train.state import digest
from daisychain.train.steps import Steps


class Done(NamedTuple):
    """A step of a round."""

    piece: Piece
    times: Times
    report: reports.Report


class Round:
    """What this rank does by itself between two averages."""

    def __init__(self, start: dict[str, Any], steps: int) -> None:
        self.start = start
        """What all ranks were when it began; while the average before is on its way, what this rank was."""
        self.steps = steps
        """Planned."""
        self.done: list[Done] = []

    @property
    def is_half_done(self) -> bool:
        """It is time for the average before, then: one that comes later does harm (plan.sync.SHORT)."""
        return len(self.done) >= self.steps * ON_THE_WAY

    @property
    def samples(self) -> int:
        """Of all ranks."""
        return sum(done.piece.batch for done in self.done)

    @property
    def own_samples(self) -> int:
        return sum(done.piece.share for done in self.done)


class News(NamedTuple):
    """What all ranks tell each other at a round's end, summed over them; lists have a place for each rank."""

    samples: float
    finished: float
    wish: float
    """Ranks that were asked to end the generation."""
    leaving: float
    """Ranks whose script leaves its loop here."""
    exchange_s: list[float]
    """From the begin of the last round's average to its end; 0: there was none."""
    hashes: list[float]
    """Of the parameters that all had at the round's start."""
    compute_s: list[list[float]]
    """Of each step."""
    moved: list[float]
    """Ranks on which the round has changed a tensor, for each (average.Average)."""

    def numbers(self) -> list[float]:
        return [*self[:4], *self.exchange_s, *self.hashes, *chain.from_iterable(self.compute_s), *self.moved]

    @classmethod
    def of(cls, numbers: list[float], ranks: int, steps: int) -> "News":
        samples, finished, wish, leaving, *rest = numbers
        exchange_s, hashes, *compute_s = (rest[at * ranks : (at + 1) * ranks] for at in range(2 + steps))
        return cls(samples, finished, wish, leaving, exchange_s, hashes, compute_s, rest[(2 + steps) * ranks :])


class Heard(NamedTuple):
    """A round whose average has arrived, and what all ranks told of it."""

    round: Round
    news: News


class Sent(NamedTuple):
    """A round that is over, and what is on its way."""

    round: Round
    finished: int
    begun_s: float
    told: Tensor
    """The news, summed once `telling` has arrived."""
    telling: Work
    sum: Sum


class LocalSteps(Steps):
    """Steps whose gradients stay on their rank. Alone, each step counts at once, as usual."""

    lockstep = False

    def __init__(self, *, sync: Sync, **more: Any) -> None:
        super().__init__(**more)
        self._fixed = bool(sync.steps)
        self._steps = sync.steps or FIRST_STEPS
        """Of the round that comes next; where they aren't fixed, its pass is cut into equal rounds."""
        self._average = Average(self._training)
        self._round: Round | None = None
        """The open one; None between rounds."""
        self._sent: Sent | None = None
        self._heard: Heard | None = None
        """The last round of this generation whose average has arrived."""
        self._arrived_s = self._exchange_s = 0.0
        """When the average on its way was seen to be there, 0 before; and how long the last one took."""
        self._waited_s = self._between_s = 0.0
        """For an average, so far; and what this rank did itself between the last two steps."""
        self._looks: RemovableHandle | None = None

    # --- forming --------------------------------------------------------------------------------------

    def ensure_formed(self) -> None:
        if not self.has_loader:
            raise ScriptError(
                "local steps are counted by the DataLoader, and chain.prepare got none",
                "Give chain.prepare the DataLoader, or use --sync exact",
            )
        super().ensure_formed()

    def muster(self) -> None:
        if self._begun is not None:
            self.restore(self._begun)
        self._exchange_s, self._between_s, self._heard = 0.0, 0.0, None
        super().muster()
        if self._exchange.alone:
            self._average.momentum = []

    @property
    def _begun(self) -> dict[str, Any] | None:
        """As of the start of the first round that doesn't count yet; None: all do."""
        if self._sent is not None:
            return self._sent.round.start
        return self._round.start if self._round is not None else None

    def capture(self) -> dict[str, Any]:
        """As of the last round that counts."""
        return self._begun or self._capture_now()

    def _capture_now(self) -> dict[str, Any]:
        return {**super().capture(), "local": {"steps": self._steps, "momentum": self._momentum()}}

    def _momentum(self) -> list[Tensor]:
        return [v.clone() for v in self._average.momentum]

    def restore(self, captured: dict[str, Any]) -> None:
        super().restore(captured)
        self._round, self._sent, self._arrived_s = None, None, 0.0
        self._stop_looking()
        if local := captured.get("local"):  # a checkpoint of an exact run has none
            self._average.momentum = [v.clone() for v in local["momentum"]]
            self._steps = self._steps if self._fixed else int(local["steps"])

    # --- for the loader ----------------------------------------------------------------------------

    def starts(self, number: int) -> Iterator[tuple[int, int]]:
        if self._begun is not None and number > self.epoch:
            self.muster()  # the script left its last pass early, and a rank was lost before the round was complete
        self.ensure_formed()
        # it may be taken back into an earlier pass, of which the script knows nothing: what it did since is kept
        turn, turn_pass, settings = self.turn, self.turn_pass, self._training.settings()
        taken_back = False
        for epoch, index in super().starts(number):
            if taken_back and epoch == number:
                self.turn, self.turn_pass = turn, turn_pass
                self._training.set(settings)
            taken_back = epoch < number
            yield epoch, index

    def take(self, piece: Piece, parts: Sequence[Piece]) -> None:
        self._stop_looking()
        if self._round is None and not self._exchange.alone:
            steps = self._steps if self._fixed else fitted(self._steps, self._length - self.index)
            self._round = Round(self._capture_now(), steps)
        super().take(piece, parts)

    def _remembered(self) -> None:
        """A lost step is put back with its round."""

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
        if self._round is None:
            return super()._complete_step(piece, times)
        if self._crew.called:
            return False
        begun_s, waited_s = time.perf_counter(), self._waited_s
        times = times._replace(charged_s=times.charged_s + self._between_s)
        self._advance(piece, times)
        self._round.done.append(Done(piece, times, self._step_report(piece, times)))
        if self._sent is not None:
            if not self._arrived_s and self._exchange.arrived(self._sent.sum.work):
                self._arrived_s = time.perf_counter()
            # not as soon as it is there, so that the same run with the same shares gives the same model again
            if self._round.is_half_done:
                self.settle()
        # when the script leaves its loop, what follows needs the average; an error looks the same here
        leaves = isinstance(sys.exc_info()[1], GeneratorExit)
        if leaves or len(self._round.done) >= self._round.steps or self.index == 0:
            self._close(self._round, leaves)
        self._between_s = time.perf_counter() - begun_s - (self._waited_s - waited_s)
        return not self._exchange.broken

    # --- a round's end -----------------------------------------------------------------------------

    def _close(self, over: Round, leaves: bool) -> None:
        """The round is over: begin to average it. What was told of the one before is heeded here, by all ranks."""
        self.settle()
        if self._exchange.broken:
            return
        parts = self._heed()
        self._send(over, leaves)
        # single steps would be done with what was averaged two steps ago, and be nothing like a single machine's
        if leaves or parts or self._is_last_pass or len(over.done) == 1:
            self.settle()
            self._boundary = parts or self._is_wished
        elif self.index == 0:
            self._look_out()

    def _heed(self) -> bool:
        """Shares and the next round's length follow what was measured; whether all form anew after this one."""
        if self._heard is None:
            return False
        over, news = self._heard
        self._look_at(news.hashes)
        if not self._fixed:
            step_s = max(map(mean, zip(*news.compute_s, strict=True)))
            # whoever began last didn't wait for the others
            self._steps = next_steps(self._steps, step_s, min(filter(None, news.exchange_s), default=0.0))
        for done, compute_s in zip(over.done, news.compute_s, strict=True):
            if self._rebalance(done.piece, compute_s, max(compute_s)):
                break
        return self._boundary or self._is_wished

    @property
    def _is_wished(self) -> bool:
        return self._heard is not None and self._heard.news.wish > 0

    @property
    def _is_last_pass(self) -> bool:
        """Whether a pass is over after which, for all that is known, the script won't ask for another."""
        return self.index == 0 and (self.epochs is None or self.turn >= self.epochs - 1)

    def _send(self, over: Round, leaves: bool) -> None:
        start = over.start["training"]
        news = News(
            samples=over.own_samples,
            finished=self.finished,
            wish=self._crew.wants_boundary,
            leaving=leaves,
            exchange_s=self._placed(self._exchange_s),
            hashes=self._placed(digest(start["models"])),
            compute_s=[self._placed(done.times.charged_s) for done in over.done],
            moved=self._average.moved(start),
        )
        told = torch.tensor(news.numbers(), dtype=torch.float64)
        telling = self._exchange.start(told)
        average = self._average.begin(
            start,
            self._heard.news.moved if self._heard is not None else [],
            weight=over.own_samples / over.samples,
            exchange=self._exchange,
        )
        self._round, self._sent = None, Sent(over, self.finished, time.perf_counter(), told, telling, average)

    def settle(self) -> None:
        """Have the average of the last round that is over; this rank stays as it is when another one is lost."""
        sent, begun_s = self._sent, time.perf_counter()
        if sent is None:
            return
        self._exchange.finish(sent.telling)
        if self._exchange.broken:
            return
        news = News.of(sent.told.tolist(), self.world_size, len(sent.round.done))
        self._check(news, sent)
        later = self._round.start if self._round is not None else None
        self._average.end(
            sent.sum,
            outer=outer(len(sent.round.done)),
            exchange=self._exchange,
            later=later and later["training"],
        )
        if self._exchange.broken:
            return
        if later is not None:
            later["local"]["momentum"] = self._momentum()
        now_s = time.perf_counter()
        self._exchange_s, self._arrived_s = (self._arrived_s or now_s) - sent.begun_s, 0.0
        self._sent, self._heard = None, Heard(sent.round, news)
        self._stop_looking()
        self._waited_s += now_s - begun_s
        self._publish(sent.round.done, now_s - begun_s)
        self._keep()

    def _check(self, news: News, sent: Sent) -> None:
        """Raises ScriptError when ranks aren't level."""
        if news.leaving not in (0, self.world_size):
            self._exchange.fail(RuntimeError("the script left its loop on another node"))
        elif (news.samples, news.finished) != (sent.round.samples, sent.finished * self.world_size):
            raise ScriptError(
                f"the nodes are not at the same step {sent.finished}, with {news.samples:.0f} of {sent.round.samples} "
                "samples",
                "Every node must go through all batches of the DataLoader",
            )

    def _placed(self, value: float) -> list[float]:
        """At this rank's place of a list of all ranks'."""
        values = [0.0] * self.world_size
        values[self.rank] = value
        return values

    def _publish(self, steps: Sequence[Done], exposed_s: float) -> None:
        """Report a round's steps; each has its part of what was waited for."""
        more = round(exposed_s / len(steps) * 1000, 3)
        for done in steps:
            step_ms = round(done.report["step_ms"] + more, 3)
            self._tell_step(done.report | {"exposed_ms": more, "step_ms": step_ms})

    # --- between two passes ----------------------------------------------------------------------------

    def look(self) -> None:
        if self._piece is None:
            self.settle()

    def schedules(self) -> bool:
        return super().schedules() if self._piece is not None else not self._skipping

    def _look_out(self) -> None:
        """Until the next pass begins: whoever computes with a model gets the average first."""
        self._looks = register_module_forward_pre_hook(lambda *_: self.settle())

    def _stop_looking(self) -> None:
        if self._looks is not None:
            self._looks.remove()
            self._looks = None
