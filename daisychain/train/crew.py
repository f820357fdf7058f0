"""Who this rank trains with: forming a generation, and bringing everyone level before it goes on.

A generation that lost a rank, or is to get one, is let go; every rank says that it waits and how far it is; the agents
decide who is in the next; its ranks connect, compare, and the newest state goes to whoever is behind. A rank that has
just started is behind like one that missed the last step, so joining and recovering are the same.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from daisychain.errors import LinkError, ScriptError
from daisychain.train import reports
from daisychain.train.exchange import NETWORK_ERRORS, Exchange
from daisychain.train.group import Group, Listener, WarmUp
from daisychain.train.orders import Orders
from daisychain.train.state import digest_of, pack, unpack
from daisychain.train.task import Formation, Task

FRESH = -1
"""Steps completed by a rank that has nothing but the script's own first state."""


class Standing(NamedTuple):
    """What a rank tells the others of its generation before they go on together; whole numbers only."""

    completed: int
    """Steps that are in its state; FRESH before the first."""
    per_sample_ns: int
    """Computing time of one sample as this rank measured it; 0: not yet."""
    lookahead: int
    """Steps that its loader prepares ahead."""
    samples: int
    batch: int
    model: tuple[int, ...]
    """Fingerprint of all models: names, shapes, types."""
    plain_ns: int = 0
    """Of its optimizers' steps (knobs.Timing)."""
    fused_ns: int = 0
    gpu: int = 0
    """1 where it computes on a GPU, whose rounding is another than a CPU's."""
    untried: int = 0
    """1 where its model is to be tried before its first step (trial.py)."""

    def numbers(self) -> list[int]:
        return [*self[:5], self.plain_ns, self.fused_ns, self.gpu, self.untried, *self.model]

    @classmethod
    def of(cls, numbers: list[int]) -> "Standing":
        completed, per_sample_ns, lookahead, samples, batch, plain_ns, fused_ns, gpu, untried, *model = numbers
        return cls(completed, per_sample_ns, lookahead, samples, batch, tuple(model), plain_ns, fused_ns, gpu, untried)


class Course(Protocol):
    """What a rank has done so far (steps.Steps)."""

    @property
    def recent(self) -> Sequence[reports.Report]:
        """The ledger's lines of the last steps, if this rank has just read a checkpoint."""

    def standing(self) -> Standing: ...
    def capture(self) -> dict[str, Any]:
        """Everything that a rank needs to go on from here."""

    def restore(self, captured: dict[str, Any]) -> None:
        """Be where another rank is."""

    def save(self) -> None:
        """Write a checkpoint now, and wait until it is on the disk."""


class Crew:
    """The ranks of the moment, as one of them sees them."""

    def __init__(self, task: Task, orders: Orders, tell: reports.Tell) -> None:
        self._task, self._orders, self._tell = task, orders, tell
        self.exchange = Exchange()
        self.formation = Formation(rank=task.rank, names=task.names)
        """Before the first generation: as launched."""
        self._group = Group()
        self._listener = Listener(task.address)
        self._warm_up = WarmUp(task.address) if task.launcher == "agent" else None
        self._formed = self._over = False
        orders.sever = self._sever

    def _sever(self, generation: int) -> None:
        if self.formation.generation <= generation:
            self._group.sever()

    @property
    def called(self) -> bool:
        """Whether this generation is over for this rank: broken, or to be ended between two steps."""
        number, exchange = self.formation.generation, self.exchange
        if exchange.broken or self._orders.broken(number):
            return True
        return exchange.alone and self._orders.wants_boundary(number)

    @property
    def wants_boundary(self) -> bool:
        """Whether this rank was asked to end the generation together with the others."""
        return self._orders.wants_boundary(self.formation.generation)

    def muster(self, course: Course) -> list[Standing]:
        """Be part of the next generation; everyone's standing, in rank order, once all are level.

        Doesn't return when there is none: then a checkpoint is written if one was asked for, and the process ends.
        Raises ScriptError when the ranks don't train the same model on the same data, LinkError under torchrun when
        another rank is lost.
        """
        why = self.exchange.broken
        while True:
            if why:
                self._group.sever()
            self._group.close(has_ended=self.exchange.close())
            why = self._form(course, why)
            if not why:
                everyone = self._level(course)
                why = self.exchange.broken
                if not why:
                    self._formed = True
                    self._tell(reports.joined(self.formation.generation, course.standing().completed))
                    return everyone

    def _form(self, course: Course, why: str) -> str:
        """Connect to the next generation; empty, or why it didn't come about."""
        if self._task.launcher == "agent":
            if self._warm_up is not None:
                self._warm_up.wait()
            completed = max(0, course.standing().completed)
            self._tell(
                reports.waiting(
                    self._listener.port, self.formation.generation, completed, why, self._over, course.recent
                )
            )
            formation = self._orders.next_formation(self.formation.generation)
            if formation is None:
                self._part(course)
            self.formation = formation
            if self._orders.broken(formation.generation):
                return "it lost a rank before it began"
        elif self._formed:
            raise LinkError(f"lost the connection to another node: {why}", "Start the script on all nodes again")
        try:
            if self.formation.world_size > 1:
                self._connect()
        except NETWORK_ERRORS as error:
            return str(error) or type(error).__name__
        self.exchange.open(
            self.formation.generation, self.formation.world_size, self._group.backend, self._is_broken(self.formation)
        )
        return ""

    def _is_broken(self, formation: Formation) -> Callable[[], bool]:
        return lambda: self._orders.broken(formation.generation)

    def _connect(self) -> None:
        if self._task.launcher == "torchrun":
            self._group.form_by_environment()
        else:
            self._group.form(self.formation, self._listener, self._is_broken(self.formation))

    def _level(self, course: Course) -> list[Standing]:
        """Compare, then send the newest state to whoever is behind. Everyone's standing as it was before."""
        everyone = [Standing.of(numbers) for numbers in self.exchange.gather(course.standing().numbers())]
        if self.exchange.broken:
            return everyone
        self._compare(everyone)
        done = [standing.completed for standing in everyone]
        if all(steps == FRESH for steps in done) and self._begin_alike(course):
            return everyone  # as usual: all have the same seed
        source, me = done.index(max(done)), self.formation.rank
        behind = [rank for rank, steps in enumerate(done) if rank != source and (steps < max(done) or steps == FRESH)]
        if me == source and behind:
            self.exchange.send(pack(course.capture()), behind)
        elif me in behind:
            packed = self.exchange.receive(source)
            if not self.exchange.broken:
                course.restore(unpack(packed))
        return everyone

    def _begin_alike(self, course: Course) -> bool:
        """Whether all ranks' states are equal to the bit; a large model takes minutes to send on a slow link."""
        digests = self.exchange.gather([digest_of(pack(course.capture()))])
        return all(theirs == digests[0] for theirs in digests)

    def _compare(self, everyone: list[Standing]) -> None:
        """Raises ScriptError, the same on every rank, naming the first rank that differs from rank 0, and in what."""
        files = "Give every node the same files, and make the script use them in the same way everywhere"
        remedies = {
            "model": "Build the same model on every node: it may not depend on the rank, the machine or its files",
            "samples": files,
            "batch": "Don't let it depend on the machine",
        }
        for name, what in (("model", "the model"), ("samples", "the number of samples"), ("batch", "the batch size")):
            values = [getattr(standing, name) for standing in everyone]
            for node, value in zip(self.formation.names, values, strict=True):
                if value != values[0]:
                    detail = "" if name == "model" else f" ({value} and {values[0]})"
                    raise ScriptError(
                        f"{what} on {node} differs from {self.formation.names[0]}'s{detail}", remedies[name]
                    )

    def _part(self, course: Course) -> NoReturn:
        """No further generation: leave a checkpoint behind if one was asked for."""
        if self._orders.save:
            course.save()
        os._exit(0)

    def linger(self, course: Course) -> None:
        """After the script's end: help those who are behind, until every rank has finished or this process is ended."""
        self._over = True
        while self._task.launcher == "agent" and self._formed:
            self._orders.wait_over(self.formation.generation)
            if self._orders.leave:
                return
            self.muster(course)

    def close(self) -> None:
        """Part from the others."""
        self._group.close()
