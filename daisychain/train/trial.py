"""The run's own model, tried before its first step: what a step of it takes on this rank, and what an exchange takes.

In the first forward of a run its inputs are known. There each rank makes some steps of the real model over several
numbers of these samples, loading, forward, backward and optimizer; the fastest does the whole batch while the others
rest, as it would alone; then all sum a step's gradients together a few times, and make some whole steps together.
These show what no sum of the parts does: that processors which compute and exchange at once do both more slowly, and
that whoever waits for the slowest of several waits longer than for any one. Afterwards everything is as it was before,
and the forward goes on. What the loss itself costs isn't known: the log of a sum of exponentials of the outputs stands
for it, the larger part of a cross entropy.
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

from daisychain.plan.shares import Cost, fitting, solve
from daisychain.train import reports
from daisychain.train.batches import Piece
from daisychain.train.bench import measure
from daisychain.train.exchange import Exchange
from daisychain.train.reducer import Bucket, Departures
from daisychain.train.state import Training
from daisychain.train.undo import gradients, put_gradients

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

FEWEST_SAMPLES = 2
"""Batch normalisation refuses a single one."""
EACH_S = 0.5
"""For each number of samples: several periods of a CPU quota (0.1 s)."""
PATIENCE_S = 6.0
"""No further number of samples after this, and no step that takes longer."""
TOGETHER_S = 1.2
"""Of whole steps, all together; ..."""
FEWEST_TOGETHER = 3
"""... where fewer than these fit into it, the exchange is so slow that nothing else counts."""
LEAST_GROWTH_BYTES = 8 * 2**20
"""What more samples must have taken for their memory to be known: allocators keep some in hand."""
ENOUGH_S = 1.0
"""An exchange that takes longer than this is timed on a part of the gradients."""
ROUNDS_S = 0.6
FEWEST_ROUNDS = 3
"""What is lost on the way and sent again makes single ones differ."""
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
    cap: int = 0
    """The most samples that memory holds; 0: unknown."""

    @property
    def cost(self) -> Cost:
        return Cost(self.fixed_ns / 1e9, self.per_sample_ps / 1e12, self.cap or None)


class Together(NamedTuple):
    """Whole steps that all ranks made together."""

    shares: tuple[int, ...]
    """Samples of each, in rank order."""
    step_s: float


class Trial(NamedTuple):
    """What all ranks have found out, in rank order; alike on every rank."""

    ranks: tuple[Measured, ...]
    buckets: tuple[int, ...]
    """Bytes of a step's gradients as they leave."""
    exchange_s: float
    """Of all of them, while nobody computes, on the slowest rank."""
    latency_s: float
    """Of a sum of next to nothing."""
    alone_s: float = 0.0
    """Of the whole batch on the fastest rank while the others rest; 0: unknown."""
    together: Together | None = None
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
            buckets=self.buckets,
            exchange_s=self.exchange_s,
            latency_s=self.latency_s,
            alone_s=self.alone_s,
            together=self.together,
            caps=[rank.cap for rank in self.ranks],
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

    def set_aside(self, sums: Exchange | None = None) -> AbstractContextManager[None]:
        """Inside, other pieces may be computed, by this rank alone; with `sums`, layers that look at the whole batch
        do so by it."""


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
        why, mine, step, piece = "", Measured(), None, self._course.piece_now
        if len(self._training.models) != 1 or piece is None:
            why = f"the script trains {len(self._training.models)} models"
        sizes_sent = tuple(sum(p.numel() * p.element_size() for p in bucket) for bucket in buckets)
        with self._put_back():
            if piece is not None and not why:
                try:
                    step = _Step(self._course, self._training, model, args, kwargs, piece, rows)
                    with self._course.set_aside():
                        mine = self._measure(step, buckets, self._sizes())
                except Exception as error:  # the script's own code, called in another way than it calls it
                    why = f"its model couldn't be tried by itself ({type(error).__name__}: {error})"
            everyone = tuple(Measured(*numbers) for numbers in self._exchange.gather(list(mine)))
            exchange_s, latency_s = self._time_exchange(sizes_sent)
            found = Trial(everyone, sizes_sent, exchange_s, latency_s, why=why)
            if step is not None and found.known:
                # what has worked for all so far works again
                found = found._replace(alone_s=self._time_alone(step, everyone))
                found = found._replace(together=self._time_together(step, buckets, found))
        return None if self._exchange.broken else found

    def _sizes(self) -> tuple[int, ...]:
        """The planned share and a larger one."""
        shares, me = self._course.shares_now, self._course.rank
        batch = sum(shares)
        share = min(batch, max(FEWEST_SAMPLES, shares[me]))
        larger = min(batch, max(2 * share, batch // len(shares)))
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
        used: list[tuple[int, Memory]] = []
        early, before, full, seen = 1.0, memory(), False, _Seen()
        begun_s = time.perf_counter()
        for size in sorted(set(sizes)):
            full = bool(points) and not fits(size, points[-1][0], before, memory())
            if full or (points and time.perf_counter() - begun_s > PATIENCE_S):
                break
            seen.parts.clear()
            with _watching(buckets, seen.gradient):
                watched = partial(self._watched, partial(step, size), seen)
                points.append((size, measure(watched, self._slowdown, each_s=EACH_S)))
            used.append((size, memory()))
            early = sum(seen.parts) / len(seen.parts) if seen.parts else 1.0
        cost, cap = line(points), points[-1][0] if full else most_samples(used)
        return Measured(
            1,
            round(cost.fixed_s * 1e9),
            max(1, round(cost.per_sample_s * 1e12)),
            min(PARTS, max(1, round(early * PARTS))),
            0 if any(p.is_cuda for p in step.parameters) else cap,
        )

    def _watched(self, step: Callable[[], None], seen: "_Seen") -> None:
        seen.begin()
        step()
        self._settle()
        seen.end()

    def _time_alone(self, step: "_Step", everyone: Sequence[Measured]) -> float:
        """Seconds of the whole batch on the rank that is fastest with it, while the others wait for it; 0: unknown."""
        batch = sum(self._course.shares_now)
        able = [n for n, rank in enumerate(everyone) if (self._most or batch) >= batch and (rank.cap or batch) >= batch]
        fastest = min(able, key=lambda n: everyone[n].cost.step_s(batch), default=None)
        took_s = 0.0
        if fastest == self._course.rank and everyone[fastest].cost.step_s(batch) < PATIENCE_S:
            with self._course.set_aside():
                took_s = measure(partial(self._settled, step, batch), self._slowdown, each_s=EACH_S)
        return self._slowest(took_s)

    def _settled(self, step: "_Step", samples: int) -> None:
        step(samples)
        self._settle()

    def _time_together(self, step: "_Step", buckets: Sequence[Sequence[nn.Parameter]], found: Trial) -> Together | None:
        """Whole steps over the shares that go by what was found; None where there is no time for some."""
        batch, costs = sum(self._course.shares_now), [rank.cost for rank in found.ranks]
        shares = solve(batch, fitting(batch, costs))
        expected_s = max(cost.step_s(n) for cost, n in zip(costs, shares, strict=True)) + found.exchange_s
        number = round(TOGETHER_S / expected_s)
        if number < FEWEST_TOGETHER or max(shares) > (self._most or batch):
            return None
        share, twin = max(FEWEST_SAMPLES, shares[self._course.rank]), self._exchange.twin()
        departures = Departures([Bucket(list(bucket), 0) for bucket in buckets], twin, lambda: share / batch)
        with self._course.set_aside(twin), _watching(buckets, departures.complete):
            for at in range(number + 1):
                if at == 1:  # the first one is for allocations
                    self._exchange.gather([0])
                    begun_s = time.perf_counter()
                before_s = time.perf_counter()
                step(share, shares, departures.begin)
                self._settle()
                if self._slowdown > 1:
                    time.sleep((time.perf_counter() - before_s) * (self._slowdown - 1))
                departures.send_others()
                departures.send()
                departures.wait()
                for bucket in departures.buckets:
                    bucket.hand_out([False] * len(bucket.parameters))
            took_s = (time.perf_counter() - begun_s) / number
        if twin.broken:
            self._exchange.fail(ConnectionError(twin.broken))
        return Together(shares, self._slowest(took_s))

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
        while not self._exchange.broken and (len(times) < FEWEST_ROUNDS or sum(times) < ROUNDS_S):
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
        self.parameters = list(model.parameters())

    def __call__(
        self, samples: int, shares: tuple[int, ...] = (), backwards: Callable[[], None] = lambda: None
    ) -> None:
        """shares: of all ranks, in a step that all make together. backwards: called before the backward pass."""
        have = len(self._piece.rows)
        index = torch.tensor(list(islice(cycle(range(have)), samples)))
        rows = self._piece.rows[index]
        self._rows.fetch(rows)
        shares = shares or (samples,)
        now = self._piece._replace(rows=rows, share=samples, batch=sum(shares), shares=shares, first=0)
        self._course.weigh(now)
        taken = [self._take(value, index) for value in self._args]
        outputs = self._model(*taken, **{name: self._take(value, index) for name, value in self._kwargs.items()})
        for parameter in self.parameters:
            parameter.grad = None
        backwards()
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
    """When, in each step, the first bucket's last gradient was complete, as a part of the step; backward's end is 1."""

    def __init__(self) -> None:
        self.parts: list[float] = []
        self._begun_s = self._bucket_s = self._last_s = 0.0

    def begin(self) -> None:
        self._begun_s, self._bucket_s, self._last_s = time.perf_counter(), 0.0, 0.0

    def gradient(self, bucket: int) -> None:
        """One of a bucket's gradients is complete."""
        self._last_s = time.perf_counter()
        if bucket == 0:
            self._bucket_s = self._last_s

    def end(self) -> None:
        if self._bucket_s:
            self.parts.append(1 - (self._last_s - self._bucket_s) / (time.perf_counter() - self._begun_s))


@contextmanager
def _watching(buckets: Sequence[Sequence[nn.Parameter]], complete: Callable[[int], None]) -> Iterator[None]:
    """Inside, `complete` is told of each gradient's bucket, by its number, once the gradient is complete."""
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, at=at: complete(at))  # type: ignore[no-untyped-call]
        for at, bucket in enumerate(buckets)
        for parameter in bucket
    ]
    try:
        yield
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


def most_samples(used: Sequence[tuple[int, Memory]]) -> int:
    """How many samples of a step half of the free memory holds, beside what is taken; 0: unknown.

    used: after steps over so many samples. A model and its optimizer take the same for few samples as for many, so the
    difference counts.
    """
    (few, before), (many, after) = used[0], used[-1]
    growth = after.used - before.used
    if many <= few or growth < LEAST_GROWTH_BYTES:
        return 0
    return many + int(after.free / 2 / (growth / (many - few)))


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
