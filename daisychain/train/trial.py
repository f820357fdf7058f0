"""The run's own model, tried before its first step: what a step of it takes on this rank, and what an exchange takes.

In the first forward of a run its inputs are known. There each rank alone makes some steps of the real model over
several numbers of these samples, loading, forward, backward and optimizer, then all sum a step's gradients together a
few times. Afterwards everything is as it was before, and the forward goes on. What the loss itself costs isn't known:
the log of a sum of exponentials of the outputs stands for it, the larger part of a cross entropy.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple, Protocol

import psutil
import torch
from torch import Tensor, nn

from daisychain.plan.shares import Cost
from daisychain.train import reports
from daisychain.train.batches import Piece
from daisychain.train.bench import measure
from daisychain.train.exchange import Exchange
from daisychain.train.state import Training
from daisychain.train.undo import gradients, put_gradients

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

FEWEST_SAMPLES = 2
"""Batch normalisation refuses a single one."""
PATIENCE_S = 6.0
"""No further number of samples after this."""
ENOUGH_S = 1.0
"""An exchange that takes longer than this is timed on a part of the gradients."""
ROUNDS_S = 0.6
LEAST_SLOPE = 0.1
SUMS = 8
"""Of next to nothing, from which the latency is taken."""
PROBE_BYTES = 64 * 1024
PARTS = 1_000_000
"""Of which `early` is told as a whole number."""


class Measured(NamedTuple):
    """What a rank has found out about itself; whole numbers only, so that all can tell each other."""

    known: int = 0
    """1 where the model could be tried."""
    fixed_ns: int = 0
    per_sample_ps: int = 0
    early: int = PARTS
    """Of PARTS of a step, those that are over when the first bucket of gradients is complete."""
    largest: int = 0
    """The most samples that were tried at once ..."""
    largest_ns: int = 0
    """... and what they took."""

    @property
    def cost(self) -> Cost:
        return Cost(self.fixed_ns / 1e9, self.per_sample_ps / 1e12)


class Trial(NamedTuple):
    """What all ranks have found out, in rank order; alike on every rank."""

    ranks: tuple[Measured, ...]
    buckets: tuple[int, ...]
    """Bytes of a step's gradients as they leave."""
    exchange_s: float
    """Of all of them, while nobody computes, on the slowest rank."""
    latency_s: float
    """Of a sum of next to nothing."""
    why: str = ""
    """Why the model couldn't be tried here; empty where it could."""

    @property
    def known(self) -> bool:
        """Whether every rank's cost is."""
        return all(rank.known and rank.per_sample_ps > 0 for rank in self.ranks)

    def report(self, sums: int) -> reports.Report:
        """For the agent. sums: small ones in every step beside those of gradients."""
        return reports.trial(
            costs=[(rank.cost.fixed_s, rank.cost.per_sample_s) for rank in self.ranks],
            early=[rank.early / PARTS for rank in self.ranks],
            largest=[(rank.largest, rank.largest_ns / 1e9) for rank in self.ranks],
            buckets=self.buckets,
            exchange_s=self.exchange_s,
            latency_s=self.latency_s,
            sums=sums,
            why=self.why or ("" if self.known else "another node couldn't try its model"),
        )


class Rows(Protocol):
    """Where a step's samples come from (batches.SharedLoader)."""

    def fetch(self, rows: Tensor) -> None:
        """Load these rows of the dataset as a step would, where that is done within a step."""


class Course(Protocol):
    """Where a rank stands in the run (steps.Steps)."""

    @property
    def piece_now(self) -> Piece | None:
        """What the script has just been given."""

    @property
    def shares_now(self) -> tuple[int, ...]:
        """Of the step that is being done."""

    @property
    def rank(self) -> int: ...

    def weigh(self, piece: Piece) -> None:
        """Make this piece the current one."""

    def set_aside(self) -> AbstractContextManager[None]:
        """Inside, other pieces may be computed, by this rank alone."""


class Bench:
    """One rank's part of the trial."""

    def __init__(
        self,
        training: Training,
        exchange: Exchange,
        course: Course,
        *,
        settle: Callable[[], None] = lambda: None,
        slowdown: float = 1.0,
        most: int | None = None,
    ) -> None:
        """settle: waits until the device has finished. slowdown: each second of computing is stretched to this many.

        most: samples that may be computed at once; None: no limit.
        """
        self._training, self._exchange, self._course = training, exchange, course
        self._settle, self._slowdown, self._most = settle, slowdown, most

    def run(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        rows: Rows,
        buckets: Sequence[Sequence[nn.Parameter]],
    ) -> Trial | None:
        """Try the model on its first inputs. All ranks must call it alike; None: one was lost meanwhile.

        rows: where the inputs came from. buckets: parameters whose gradients leave together.
        """
        why, mine, piece = "", Measured(), self._course.piece_now
        if len(self._training.models) != 1 or piece is None:
            why = f"the script trains {len(self._training.models)} models"
        else:
            with self._put_back(), self._course.set_aside():
                try:
                    step = _Step(self._course, self._training, model, args, kwargs, piece, rows)
                    mine = self._measure(step, buckets, self._sizes())
                except Exception as error:  # the script's own code, called in another way than it calls it
                    why = f"its model couldn't be tried by itself ({type(error).__name__}: {error})"
        everyone = [Measured(*numbers) for numbers in self._exchange.gather(list(mine))]
        sizes_sent = tuple(sum(p.numel() * p.element_size() for p in bucket) for bucket in buckets)
        exchange_s, latency_s = self._time_exchange(sizes_sent)
        if self._exchange.broken:
            return None
        return Trial(tuple(everyone), sizes_sent, exchange_s, latency_s, why)

    def _sizes(self) -> tuple[int, ...]:
        """The planned share and a larger one; on the rank with the largest the whole batch, which it would do alone."""
        shares, me = self._course.shares_now, self._course.rank
        batch = sum(shares)
        share = min(batch, max(FEWEST_SAMPLES, shares[me]))
        larger = batch if me == shares.index(max(shares)) else min(batch, max(2 * share, batch // len(shares)))
        most = min(batch, self._most or batch)
        return (share, larger) if larger <= most else (max(FEWEST_SAMPLES, most // 2), max(FEWEST_SAMPLES, most))

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Whatever the trial changes is afterwards as it was: state, gradients, generators."""
        state, kept = self._training.capture(), gradients(self._training)
        python, numpy = random.getstate(), sys.modules.get("numpy")
        numpys = numpy.random.get_state() if numpy else None
        try:
            yield
        finally:
            self._training.restore(state)
            put_gradients(self._training, kept)
            random.setstate(python)
            if numpy:
                numpy.random.set_state(numpys)

    def _measure(self, step: "_Step", buckets: Sequence[Sequence[nn.Parameter]], sizes: Sequence[int]) -> Measured:
        points: list[tuple[int, float]] = []
        early, first, used = 1.0, buckets[0], memory()
        others = [parameter for bucket in buckets[1:] for parameter in bucket]
        begun_s = time.perf_counter()
        for size in sorted(set(sizes)):
            if points and (time.perf_counter() - begun_s > PATIENCE_S or not fits(size, points[-1][0], used, memory())):
                break
            with _watching(first, others) as seen:
                points.append((size, measure(partial(self._watched, partial(step, size), seen), self._slowdown)))
            early = sum(seen.parts) / len(seen.parts) if seen.parts else 1.0
        cost = line(points)
        return Measured(
            1,
            round(cost.fixed_s * 1e9),
            max(1, round(cost.per_sample_s * 1e12)),
            min(PARTS, max(1, round(early * PARTS))),
            points[-1][0],
            round(points[-1][1] * 1e9),
        )

    def _watched(self, step: Callable[[], None], seen: "_Seen") -> None:
        seen.begin()
        step()
        self._settle()
        seen.end()

    def _time_exchange(self, buckets: Sequence[int]) -> tuple[float, float]:
        """Seconds of summing all buckets one after the other, and of a sum of next to nothing; the slowest rank's."""
        self._summed([4])
        # the mean: on a machine that stalls now and then, sums do too
        latency_s = self._slowest(sum(self._summed([4]) for _ in range(SUMS)) / SUMS)
        probe_s = self._slowest(min(self._summed([PROBE_BYTES]) for _ in range(2)))
        total = sum(buckets)
        expected_s = latency_s + max(0.0, probe_s - latency_s) * total / PROBE_BYTES
        part = min(1.0, ENOUGH_S / expected_s) if expected_s > 0 else 1.0
        sent = [max(4, round(size * part)) for size in buckets]
        self._summed(sent)
        times: list[float] = []
        while not self._exchange.broken and (not times or sum(times) < ROUNDS_S):
            times.append(self._slowest(self._summed(sent)))
        return (sum(times) / len(times) / part if times else 0.0), latency_s

    def _summed(self, sizes: Sequence[int]) -> float:
        """Seconds of summing buffers of so many bytes, begun together."""
        buffers = [torch.zeros(max(1, size // 4)) for size in sizes]
        self._exchange.gather([0])
        begun_s = time.perf_counter()
        for work in [self._exchange.start(buffer) for buffer in buffers]:
            self._exchange.finish(work)
        return time.perf_counter() - begun_s

    def _slowest(self, seconds: float) -> float:
        return max(number for (number,) in self._exchange.gather([round(seconds * 1e9)])) / 1e9


class _Step:
    """One step of the model over any number of samples, made from those of the first piece."""

    def __init__(
        self,
        course: Course,
        training: Training,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        piece: Piece,
        rows: Rows,
    ) -> None:
        """Raises ValueError when the inputs aren't the piece's samples, one after the other."""
        self._course, self._training, self._piece, self._rows = course, training, piece, rows
        self._model, self._args, self._kwargs = model, args, kwargs
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not any(_is_batch(tensor, len(piece.rows)) for tensor in tensors):
            raise ValueError(f"none of its inputs has the batch's {len(piece.rows)} samples in its first dimension")

    def __call__(self, samples: int) -> None:
        have = len(self._piece.rows)
        index = torch.tensor(list(islice(cycle(range(have)), samples)))
        rows = self._piece.rows[index]
        self._rows.fetch(rows)
        self._course.weigh(self._piece._replace(rows=rows, share=samples, batch=samples, shares=(samples,), first=0))
        taken = [self._take(value, index) for value in self._args]
        outputs = self._model(*taken, **{name: self._take(value, index) for name, value in self._kwargs.items()})
        for parameter in self._model.parameters():
            parameter.grad = None
        torch.autograd.backward(_stand_in(outputs))
        for optimizer in self._training.optimizers:
            # past what keeps it still in dropped steps, and past its schedulers' counting
            type(optimizer).step(optimizer)

    def _take(self, value: Any, index: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach()
        return value.index_select(0, index.to(value.device)) if _is_batch(value, len(self._piece.rows)) else value


class _Seen:
    """When, in each step, the last gradient of a bucket was complete, as a part of the step; backward's end is 1."""

    def __init__(self) -> None:
        self.parts: list[float] = []
        self._begun_s = self._bucket_s = self._last_s = 0.0

    def begin(self) -> None:
        self._begun_s, self._bucket_s, self._last_s = time.perf_counter(), 0.0, 0.0

    def gradient(self, *, of_bucket: bool) -> None:
        self._last_s = time.perf_counter()
        if of_bucket:
            self._bucket_s = self._last_s

    def end(self) -> None:
        if self._bucket_s:
            self.parts.append(1 - (self._last_s - self._bucket_s) / (time.perf_counter() - self._begun_s))


@contextmanager
def _watching(bucket: Sequence[nn.Parameter], others: Sequence[nn.Parameter] = ()) -> Iterator[_Seen]:
    seen = _Seen()
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: seen.gradient(of_bucket=own))  # type: ignore[no-untyped-call]
        for own, parameters in ((True, bucket), (False, others))
        for parameter in parameters
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Memory(NamedTuple):
    """Bytes: what this process has used at most, and what programs can still get; 0 where unknown."""

    used: int
    free: int


def memory() -> Memory:
    """As it is now."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource is not None else 0
    return Memory(used * (1 if sys.platform == "darwin" else 1024), psutil.virtual_memory().available)


def fits(samples: int, tried: int, before: Memory, after: Memory) -> bool:
    """Whether so many samples leave half of the free memory, going by what `tried` of them have taken."""
    return (after.used - before.used) / max(1, tried) * (samples - tried) < after.free / 2


def _is_batch(value: Tensor, samples: int) -> bool:
    return value.dim() > 0 and len(value) == samples


def _stand_in(outputs: Any) -> Tensor:
    """A number that depends on all outputs as a loss does. Raises ValueError when none of them can be trained."""
    found = [t.float() for t in _tensors(outputs) if t.is_floating_point() and t.requires_grad]
    if not found:
        raise ValueError("none of its outputs depends on its parameters")
    return torch.stack([(t.logsumexp(-1) if t.dim() > 1 else t).mean() for t in found]).sum()


def _tensors(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case Mapping():
            for item in value.values():
                yield from _tensors(item)
        case tuple() | list():
            for item in value:
                yield from _tensors(item)


def line(points: Sequence[tuple[int, float]]) -> Cost:
    """The cost through the smallest and the largest point, (samples, seconds); from the origin through a single one.

    No fixed part is below 0, and of the largest point's time at least LEAST_SLOPE comes from its samples: times that
    scatter must not make samples free.
    """
    (few, few_s), (many, many_s) = points[0], points[-1]
    each_s = many_s / max(1, many)
    if many == few:
        return Cost(0.0, each_s)
    per_sample_s = min(each_s, max((many_s - few_s) / (many - few), LEAST_SLOPE * each_s))
    return Cost(many_s - per_sample_s * many, per_sample_s)
