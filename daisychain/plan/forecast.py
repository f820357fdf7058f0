"""What a run will gain, before it starts, from each node's computing and the network between them: pure.

With shares n_i, F_i and G_i the parts of node i's step outside of backward and within it, gamma_i the part of backward
that is over when the first bucket of gradients leaves, T_o the exchange of all buckets but the last and T_u the last
one's, a step takes

    T = max(max(F_i + G_i), max(F_i + gamma_i * G_i) + T_o) + T_u

and a constant for the chain's own work. gloo sums a bucket over N nodes in a ring: 2 (N - 1) messages, in which each
node sends 2 (N - 1) / N of its bytes. Links of their own carry that as fast as the slowest node; a shared medium
carries what all nodes send, one after the other.

Not modelled, but measured where all have made whole steps together (`stretch`): what the exchange takes of a processor
that computes at the same time, and that the slowest of several is slower than any one on average. A set of some nodes
is taken to be stretched in proportion to how many others each of them waits for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from daisychain.plan.shares import Cost, solve
from daisychain.plan.sync import MAX_STEPS, Sync, exposed_s, next_steps

TIE = 0.02
"""Part of a set's speed that more nodes must add to be worth having."""
MOST = 12
"""Nodes of which every subset is tried; of more, those that adding or leaving out one node at a time leads to."""
WIRE = 0.5
"""Bytes on the wire for each of a 32-bit gradient's, where 16 bits are sent."""
WAYS = (Sync("exact"), Sync("bf16"), Sync("local"))


@dataclass(frozen=True)
class Machine:
    """A node as the forecast sees it."""

    name: str
    cost: Cost
    """Of the real model on it, with the most samples that its memory holds. `early` is taken from below."""
    backward: float = 2 / 3
    """Part of a step that is backward, below 1: two of the three products that a dense layer's step consists of."""
    gamma: float = 1.0
    """Part of backward that is over when the first bucket leaves; 1: nothing overlaps."""

    def __post_init__(self) -> None:
        if not (0 <= self.backward < 1 and 0 <= self.gamma <= 1 and self.cost.per_sample_s > 0):
            raise ValueError(f"{self.name}: parts of a step lie between 0 and 1, and a sample takes some time")

    @property
    def early(self) -> float:
        """Part of the whole step that is over when the first bucket leaves, (F + gamma * G) / (F + G)."""
        return 1 - self.backward * (1 - self.gamma)


@dataclass(frozen=True)
class Network:
    """What was measured between the nodes, with all of them sending at once."""

    bytes_per_s: Mapping[str, float]
    """By node: what it can send."""
    latency_s: float = 0.0
    """Of one message of next to nothing, between neighbours."""
    shared: bool = False
    """One medium for all, as Wi-Fi is: it carries the sum of the rates that the nodes had at once."""
    wifi: bool = False
    """Whether all nodes are known to be on Wi-Fi; only for what people are told."""

    def sum_s(self, names: Sequence[str], size: float) -> float:
        """Seconds of summing `size` bytes over these nodes; 0 for one node alone."""
        number = len(names)
        if number < 2:
            return 0.0
        if self.shared:
            sending_s = 2 * (number - 1) * size / sum(self.bytes_per_s.values())
        else:
            sending_s = 2 * (number - 1) / number * size / min(self.bytes_per_s[name] for name in names)
        return sending_s + 2 * (number - 1) * self.latency_s


@dataclass(frozen=True)
class Question:
    """What is to be forecast."""

    machines: tuple[Machine, ...]
    network: Network
    buckets: tuple[int, ...]
    """Bytes of each bucket of 32-bit gradients, in the order in which they leave; the last leaves after backward."""
    batch: int
    """Samples of a step, over all nodes."""
    sync: Sync = WAYS[0]
    steps: int | None = None
    """Of the whole run; None: unknown."""
    overhead_s: float = 0.0
    """The chain's own work in each step, on one node as on many."""
    sums: int = 0
    """Small sums over all nodes in each step, beside those of gradients: of batch normalisation."""
    alone_s: float | None = None
    """Of a step that the fastest node does alone, where that was measured."""
    stretch: float = 1.0
    """How many times longer than foretold a step of all nodes together was, where that was measured."""

    def __post_init__(self) -> None:
        names = self.names
        if not names or len(set(names)) < len(names) or not self.buckets or self.batch < 1:
            raise ValueError("a forecast needs nodes with different names, gradients, and a batch of 1 or more")
        if len(names) > 1 and any(self.network.bytes_per_s.get(name, 0) <= 0 for name in names):
            raise ValueError("a forecast needs each node's bandwidth")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(machine.name for machine in self.machines)


@dataclass(frozen=True)
class Forecast:
    """How one set of nodes will run."""

    names: tuple[str, ...]
    shares: tuple[int, ...]
    """Samples of each batch, in the order of `names`."""
    sync: Sync
    """With the steps of a round where they are local."""
    compute_s: float
    """Of a step on the node that computes longest, with the chain's own work."""
    exposed_s: float
    """Of a step: exchange that isn't hidden behind computing."""
    samples_per_s: float
    total_s: float | None
    """Of the whole run; None where its steps are unknown."""
    speedup: float | None
    """Over the fastest of all nodes alone; None where no node holds the batch alone."""

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s


def forecast(question: Question, names: Iterable[str] = (), shares: Sequence[int] = ()) -> Forecast:
    """How these nodes will run; without names: all of them.

    shares: of these nodes, in the question's order, where they aren't to be the best ones; they must sum to the batch.
    Raises UsageError when the batch doesn't fit into the nodes' memory.
    """
    wanted = set(names) or set(question.names)
    members = [index for index, name in enumerate(question.names) if name in wanted]
    return _Solver(question).forecast(members, shares)


def subsets(question: Question) -> tuple[Forecast, ...]:
    """How each set of nodes will run that the batch fits into; of more than MOST nodes, some sets only."""
    solver = _Solver(question)
    number = len(question.machines)
    sets = solver.steps_between(number) if number > MOST else _every(number)
    return tuple(found for members in sets if (found := solver.try_forecast(members)) is not None)


def best(question: Question) -> Forecast:
    """How the set runs that should be taken: the fewest nodes that are within TIE of the fastest set.

    Raises UsageError when the batch doesn't fit into all nodes together.
    """
    found = subsets(question)
    if not found:
        return forecast(question)
    enough = (1 - TIE) * max(one.samples_per_s for one in found)
    return min(
        (one for one in found if one.samples_per_s >= enough), key=lambda one: (len(one.names), -one.samples_per_s)
    )


def best_by_way(question: Question) -> dict[str, Forecast]:
    """The best set for each way of keeping nodes in step; for the question's own as it was asked for."""
    ways = [question.sync if way.kind == question.sync.kind else way for way in WAYS]
    return {way.kind: best(replace(question, sync=way)) for way in ways}


def without(question: Question, names: Iterable[str] = ()) -> dict[str, Forecast | None]:
    """For each of these nodes (all, where none are named): how the others will run; None where they can't."""
    wanted = set(names) or set(question.names)
    members = [index for index, name in enumerate(question.names) if name in wanted]
    solver = _Solver(question)
    return {question.names[left]: solver.try_forecast([m for m in members if m != left]) for left in members}


def _every(number: int) -> Iterator[Sequence[int]]:
    for size in range(1, number + 1):
        yield from combinations(range(number), size)


class _Solver:
    """A question with what all its sets have in common."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._costs = [
            Cost(machine.cost.fixed_s, machine.cost.per_sample_s, machine.cost.cap, machine.early)
            for machine in question.machines
        ]
        wire = 1.0 if question.sync.kind == "exact" else WIRE
        self._buckets = tuple(size * wire for size in question.buckets)
        alone = [cost.step_s(question.batch) for index, cost in enumerate(self._costs) if self._fits([index])]
        known = question.alone_s if question.alone_s is not None else min(alone, default=None)
        # what a node does alone was foretold from what it did beside the others
        self._alone_factor = known / min(alone) if known is not None and alone else 1.0
        self._alone_s = None if known is None else known + question.overhead_s

    def _fits(self, members: Sequence[int]) -> bool:
        batch = self._question.batch
        caps = [self._costs[index].cap for index in members]
        return bool(members) and sum(batch if cap is None else max(0, cap) for cap in caps) >= batch

    def try_forecast(self, members: Sequence[int]) -> Forecast | None:
        """None where the batch doesn't fit."""
        return self.forecast(members) if self._fits(members) else None

    def forecast(self, members: Sequence[int], shares: Sequence[int] = ()) -> Forecast:
        """members: positions among the question's nodes. Raises UsageError when the batch doesn't fit."""
        question = self._question
        names = tuple(question.machines[index].name for index in members)
        costs = [self._costs[index] for index in members]
        local = question.sync.kind == "local"
        overlapped_s, last_s = (0.0, 0.0) if local else self._exchange(names)
        given = tuple(shares) or solve(question.batch, costs, overlapped_s)
        if sum(given) != question.batch or len(given) != len(costs):
            raise ValueError(f"shares {given} for {len(costs)} nodes and a batch of {question.batch}")
        # a rank without samples computes one that doesn't count
        taken = [max(1, share) for share in given]
        compute_s = max(cost.step_s(n) for cost, n in zip(costs, taken, strict=True))
        over_s = max(cost.finish_s(n, overlapped_s) for cost, n in zip(costs, taken, strict=True))
        sync, exposed_s = question.sync, over_s - compute_s + last_s
        if len(members) == 1:
            compute_s *= self._alone_factor
        compute_s += question.overhead_s
        exposed_s += 0.0 if local else question.sums * question.network.sum_s(names, 0)
        others = (len(members) - 1) / max(1, len(question.machines) - 1)
        exposed_s += 0.0 if local else (question.stretch - 1) * others * (compute_s + exposed_s)
        if local:
            sync, exposed_s = self._rounds(names, compute_s)
        step_s = compute_s + exposed_s
        return Forecast(
            names=names,
            shares=given,
            sync=sync,
            compute_s=compute_s,
            exposed_s=exposed_s,
            samples_per_s=question.batch / step_s,
            total_s=None if question.steps is None else question.steps * step_s,
            speedup=None if self._alone_s is None else self._alone_s / step_s,
        )

    def _exchange(self, names: Sequence[str]) -> tuple[float, float]:
        """T_o and T_u."""
        *first, last = self._buckets
        network = self._question.network
        # as all sums are over the same nodes, of which each byte costs the same and each message its latency
        latency_s = network.sum_s(names, 0)
        per_byte_s = network.sum_s(names, 1) - latency_s
        return len(first) * latency_s + sum(first) * per_byte_s, latency_s + last * per_byte_s

    def _rounds(self, names: Sequence[str], step_s: float) -> tuple[Sync, float]:
        """The way with a round's steps, and what its exchange adds to each of them."""
        exchange_s = self._question.network.sum_s(names, sum(self._buckets))
        steps = self._question.sync.steps or next_steps(MAX_STEPS, step_s, exchange_s)
        return Sync("local", steps), exposed_s(steps, step_s, exchange_s)

    def steps_between(self, number: int) -> Iterator[Sequence[int]]:
        """Sets on the way from one node to all, each time with the node that helps most, and back without the worst."""
        members: list[int] = []
        for _ in range(number):
            others = [index for index in range(number) if index not in members]
            members = self._fastest([*members, index] for index in others)
            yield members
        while len(members) > 1:
            members = self._fastest([m for m in members if m != left] for left in members)
            yield members

    def _fastest(self, sets: Iterable[list[int]]) -> list[int]:
        return min((sorted(members) for members in sets), key=self._time_of)

    def _time_of(self, members: Sequence[int]) -> tuple[bool, float]:
        """What sets are ordered by: seconds of a step, and behind all those, how few samples fit."""
        found = self.try_forecast(members)
        if found is not None:
            return False, found.step_s
        return True, -sum(self._costs[index].cap or 0 for index in members)
