"""Collectives of the generation of the moment, which never raise: a lost rank is found out between two steps.

Whatever fails, everything from then on is skipped and gives back the local values, until the chain has formed anew.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

NETWORK_ERRORS = (RuntimeError, ValueError)
"""What torch.distributed raises; ValueError once its group is gone."""

PIECE_BYTES = 1024 * 1024
"""Sent at once from rank to rank: gloo gives each such message as long as it gives a connection, 20 s, and a whole
model may take minutes."""
LETTING_GO_S = 0.5
"""Within this time whatever is under way fails once its connections are cut. What doesn't never will: gloo forgets to
wake who waits for a message of which a part had come."""
POLL_S = 0.01


def _never() -> bool:
    return False


class Staged:
    """A sum of tensors that lie on a GPU, by way of the CPU: gloo's own way needs a torch that was built for it."""

    def __init__(self, values: Tensor, copy: Tensor, work: dist.Work) -> None:
        self._values, self._copy, self._work = values, copy, work

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, timeout: timedelta) -> None:
        """Until the sums are where the values were."""
        self._work.wait(timeout)
        self._values.copy_(self._copy)


Work: TypeAlias = "dist.Work | Staged | None"
"""What was begun; None where there is nobody, or nobody any more."""


def needs_staging(values: Tensor) -> bool:
    """Whether gloo can't take a tensor where it is."""
    return values.device.type != "cpu"


class Exchange:
    """broken: why the others can't be reached; empty while they can."""

    def __init__(self) -> None:
        self.world_size = 1
        self.generation = 0
        self.broken = ""
        self.bucket_bytes: int | None = None
        """How much is best sent at once in this generation; None: unknown."""
        self.is_apart = False
        """Whether this rank does something by itself; it counts as alone then."""
        self._backend: Any = None
        self._is_over: Callable[[], bool] = _never
        self._lets_go = False
        """Whether the generation was seen to be over while something was waited for."""
        self._under_way: list[Any] = []
        """What was begun and isn't known to have ended."""

    def open(self, generation: int, world_size: int, backend: Any, is_over: Callable[[], bool] = _never) -> None:
        """A generation has formed. backend: a ProcessGroupGloo; None when this rank is alone.

        is_over: whether it has lost a rank and its connections are cut.
        """
        self.generation, self.world_size, self.broken, self._backend = generation, world_size, "", backend
        self._is_over, self._lets_go, self.bucket_bytes = is_over, False, None

    def close(self) -> bool:
        """The generation is over. Whether all that was under way has ended, as it must before its group can go."""
        self._backend = None
        until_s = time.monotonic() + LETTING_GO_S
        while any(not work.is_completed() for work in self._under_way):
            if time.monotonic() > until_s:
                self._under_way = []
                return False
            time.sleep(POLL_S)
        self._under_way = []
        return True

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, nothing is exchanged: this rank is as if alone, though its generation goes on."""
        world_size, self.world_size, self.is_apart = self.world_size, 1, True
        try:
            yield
        finally:
            self.world_size, self.is_apart = world_size, False

    def twin(self) -> "Exchange":
        """The same ranks, by another door: it exchanges also while this one is apart. It must not outlive `close`."""
        other = Exchange()
        other.open(self.generation, self.world_size, self._backend, self._is_over)
        other.broken, other._under_way = self.broken, self._under_way
        return other

    @property
    def alone(self) -> bool:
        """Nobody to exchange with."""
        return self.world_size == 1

    def fail(self, error: BaseException) -> None:
        """The first failure is the one that is kept."""
        self.broken = self.broken or str(error) or type(error).__name__

    def start(self, values: Tensor) -> Work:
        """Begin to sum over all ranks, in place."""
        if self.alone or self.broken:
            return None
        staged = needs_staging(values)
        local = values.detach().to("cpu", copy=True) if staged else values
        try:
            work = cast(dist.Work, self._backend.allreduce([local]))
            begun = Staged(values, local, work) if staged else work
            self._under_way.append(begun)
            return begun
        except NETWORK_ERRORS as error:
            self.fail(error)
            return None

    @staticmethod
    def arrived(work: Work) -> bool:
        """Whether `finish` needn't wait."""
        return work is None or work.is_completed()

    def finish(self, work: Work) -> None:
        """Wait for what `start` began."""
        if work is not None and not self._lets_go:
            try:
                self._wait(work)
            except NETWORK_ERRORS as error:
                self.fail(error)
            else:
                self._under_way.remove(work)

    def _wait(self, work: Any) -> None:
        """Until it has ended. Raises one of NETWORK_ERRORS, also when gloo doesn't notice that it never will."""
        is_over = False
        while True:
            try:
                work.wait(timedelta(seconds=LETTING_GO_S))
                return
            except NETWORK_ERRORS:
                if work.is_completed():
                    raise
                if is_over:
                    self._lets_go = True
                    raise
                is_over = self._is_over()

    def total(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks; `values` itself may be overwritten."""
        if self.alone or self.broken:
            return values
        summed = values.clone()
        self.finish(self.start(summed))
        return values if self.broken else summed

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's whole numbers, in rank order, equally many each; only the own ones when broken."""
        mine = torch.tensor(values, dtype=torch.int64)
        if self.alone or self.broken:
            return [mine.tolist()]
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        try:
            work = self._backend.allgather([everyone], [mine])
            self._under_way.append(work)
            self._wait(work)
            self._under_way.remove(work)
        except NETWORK_ERRORS as error:
            self.fail(error)
            return [mine.tolist()]
        return [theirs.tolist() for theirs in everyone]

    def send(self, values: Tensor, to: Sequence[int]) -> None:
        """Give ranks a 1-D tensor of bytes; they must call `receive`."""
        for rank in to:
            self._pass("send", torch.tensor([len(values)], dtype=torch.int64), rank)
        for piece in _pieces(values):
            for rank in to:  # none of them is to wait for long while the others get theirs
                self._pass("send", piece, rank)

    def receive(self, source: int) -> Tensor:
        """What `send` gives; empty when broken."""
        size = torch.zeros(1, dtype=torch.int64)
        self._pass("recv", size, source)
        values = torch.empty(int(size) if not self.broken else 0, dtype=torch.uint8)
        for piece in _pieces(values):
            self._pass("recv", piece, source)
        return values if not self.broken else values[:0]

    def _pass(self, how: str, values: Tensor, rank: int) -> None:
        if not self.broken:
            try:
                getattr(self._backend, how)([values], rank, 0).wait()
            except NETWORK_ERRORS as error:
                self.fail(error)


def _pieces(values: Tensor) -> Iterator[Tensor]:
    for at in range(0, len(values), PIECE_BYTES):
        yield values[at : at + PIECE_BYTES]
