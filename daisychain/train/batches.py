"""A DataLoader's batches, cut between ranks: one global order, the same for any number of ranks and any shares.

An epoch is a permutation by (seed, epoch), cut into global batches, each cut into one piece a rank by the shares of
its step. Every rank walks through the same global batches, so all have the same number of steps.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from daisychain.errors import ScriptError
from daisychain.plan.shares import cut
from daisychain.train.state import WORD, mixed, mixes

T_co = TypeVar("T_co", covariant=True)
_END = object()
AT_ONCE = 65536
"""Rows whose digests are computed together: one by one, small batches would take longer than their steps' reports."""


class Piece(NamedTuple):
    """What one rank takes of one global batch."""

    rows: Tensor
    """Indices into the dataset; never empty: a rank with share 0 gets one sample and weight 0."""
    share: int
    batch: int
    """Samples of the whole batch."""
    shares: tuple[int, ...]
    first: int = 0
    """Position of the first row in the whole batch."""
    epoch: int = 0
    number: int = 0
    """The batch's place in its epoch, counted from 0."""
    digest: int = 0
    """Of the rows of the whole batch (state.mixed)."""


class Pass(Protocol):
    """Who follows a loader's steps (steps.Steps)."""

    @property
    def rank(self) -> int: ...

    def starts(self, number: int) -> Iterator[tuple[int, int]]:
        """Epochs and batches with which to begin pass `number`, and to begin again; none when it is done already.

        The epoch is an earlier one where what is left of that must be done again.
        """

    def shares_at(self, ahead: int) -> tuple[int, ...]:
        """The shares of the step that many steps after the last start."""

    def begin(self) -> None:
        """The next batch is asked for."""

    def take(self, piece: Piece, parts: Sequence[Piece]) -> None:
        """It is there, in one part or several, the first of which comes now."""

    def next_part(self, part: Piece) -> None:
        """The next part comes."""

    def end(self) -> bool:
        """The step with it is over; False: start again, where `starts` says."""

    def drop(self) -> None:
        """There was no next batch, or the script left it between two of its parts."""


def order(samples: int, seed: int, epoch: int, *, shuffle: bool) -> Tensor:
    """Indices of one epoch, the same on every rank."""
    if not shuffle:
        return torch.arange(samples)
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(samples, generator=generator)


def digests(rows: Tensor, size: int) -> Iterator[int]:
    """state.mixed of each batch of an epoch's rows; the last one may be ragged."""
    for block in torch.split(rows, max(1, AT_ONCE // size) * size):
        sums = [words.sum() for words in torch.split(mixes(block), size)]
        yield from (word % WORD for word in torch.stack(sums).tolist())


def piece(
    batch: Tensor, shares: tuple[int, ...], rank: int, epoch: int = 0, index: int = 0, digest: int | None = None
) -> Piece:
    """The rank's piece of a global batch; a batch smaller than the shares is cut in proportion to them.

    digest: the batch's, where it is known.
    """
    size = len(batch)
    parts = shares if sum(shares) == size else cut(size, shares)
    first = sum(parts[:rank])
    digest = mixed(batch) if digest is None else digest
    rows = batch[first : first + parts[rank]]
    return Piece(rows if len(rows) else batch[:1], parts[rank], size, parts, first, epoch, index, digest)


class SharedLoader(Generic[T_co]):
    """Iterates like the DataLoader it was made from, over this rank's pieces, each in one part or several.

    batch_size is the global batch, len() the number of global steps of an epoch. Each pass is the next epoch.
    """

    def __init__(
        self,
        loader: "DataLoader[T_co]",
        *,
        batch: int | None,
        seed: int,
        parts: Callable[[Piece], list[Piece]] = lambda piece: [piece],
    ) -> None:
        """batch overrides the loader's batch size. parts: cuts a piece into what the script gets at once.

        Raises ScriptError for a loader that can't be cut.
        """
        own = _batch_size(loader)
        self.dataset: Any = loader.dataset
        self.batch_size = own if batch is None else batch
        self.drop_last = bool(loader.drop_last)
        self.passes = 0
        """Passes begun, or passed over because others had done them."""
        self._samples: int = len(cast(Any, loader.dataset))
        if self._samples == 0:
            raise ScriptError("the DataLoader's dataset is empty", "Check the path of the data")
        if self.drop_last and self._samples < self.batch_size:
            raise ScriptError(
                f"drop_last=True leaves nothing of {self._samples} samples at a batch of {self.batch_size}",
                "Use a smaller batch, or drop_last=False",
            )
        self._shuffle = isinstance(loader.sampler, RandomSampler)
        self._seed, self._parts = seed, parts
        self._steps: Pass | None = None
        self._plan: Iterator[Tensor] = iter(())
        whole = type(self.dataset) is TensorDataset and loader.collate_fn is default_collate
        self._inner = None if whole else _inner(loader, self, seed)
        self.lookahead = 0 if self._inner is None else loader.num_workers * (loader.prefetch_factor or 0)
        """Steps that workers prepare ahead."""

    def follow(self, steps: Pass) -> None:
        """Who gives the shares and follows the steps; before the first pass."""
        self._steps = steps

    def __len__(self) -> int:
        full, rest = divmod(self._samples, self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[T_co]:
        steps = self._steps
        assert steps is not None
        number = self.passes
        self.passes += 1
        for epoch, start in steps.starts(number):
            yield from self._from(start, epoch, steps)

    def _from(self, start: int, epoch: int, steps: Pass) -> Iterator[T_co]:
        """Batches of an epoch from number `start` on, until its end or until the chain has to form anew."""
        pieces: deque[tuple[Piece, list[Piece]]] = deque()
        self._plan = self._cut(start, epoch, pieces, steps)
        batches = self._load()
        open_step = False
        try:
            while True:
                steps.begin()
                batch = next(batches, _END)
                if batch is _END:
                    steps.drop()
                    return
                whole, parts = pieces.popleft()
                steps.take(whole, parts)
                open_step = len(parts) == 1
                yield cast(T_co, batch)
                for number, part in enumerate(parts[1:], 2):
                    batch = next(batches)
                    steps.next_part(part)
                    open_step = number == len(parts)
                    yield cast(T_co, batch)
                open_step = False
                if not steps.end():
                    return
        except GeneratorExit:  # the script left its loop early: its last step counts if it was a whole one
            if open_step:
                steps.end()
            else:
                steps.drop()
            raise

    def _cut(self, start: int, epoch: int, pieces: "deque[tuple[Piece, list[Piece]]]", steps: Pass) -> Iterator[Tensor]:
        """Row indices of each part, leaving the piece and its parts in `pieces`."""
        rows = order(self._samples, self._seed, epoch, shuffle=self._shuffle)
        size = self.batch_size
        for index, digest in zip(range(start, len(self)), digests(rows[start * size :], size), strict=False):
            batch = rows[index * size : (index + 1) * size]
            mine = piece(batch, steps.shares_at(index - start), steps.rank, epoch, index, digest)
            parts = self._parts(mine)
            pieces.append((mine, parts))
            for part in parts:
                yield part.rows

    def _load(self) -> Iterator[Any]:
        if self._inner is not None:
            return iter(self._inner)
        return ([tensor.index_select(0, rows) for tensor in self.dataset.tensors] for rows in self._plan)

    def fetch(self, rows: Tensor) -> None:
        """Load rows of the dataset as a step does, for the time that it takes; nothing where workers do that beside."""
        if self._inner is None:
            for tensor in self.dataset.tensors:
                tensor.index_select(0, rows)
        elif self._inner.num_workers == 0:
            self._inner.collate_fn([self.dataset[row] for row in rows.tolist()])

    def rows(self) -> Iterator[list[int]]:
        """The current pass as a batch sampler yields it."""
        return (rows.tolist() for rows in self._plan)


class _Feed:
    """The batch sampler of the DataLoader inside: whatever the current pass has cut."""

    def __init__(self, loader: SharedLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.rows()

    def __len__(self) -> int:
        return len(self._loader)


def _inner(loader: "DataLoader[Any]", shared: SharedLoader[Any], seed: int) -> "DataLoader[Any]":
    """A DataLoader with the user's dataset, collate function and workers, and our batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=_Feed(shared),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(seed),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _batch_size(loader: Any) -> int:
    """The loader's batch size. Raises ScriptError, saying what to do, when its batches aren't a plain cut."""
    if isinstance(loader.dataset, IterableDataset):
        raise ScriptError(
            "an IterableDataset can't be cut between nodes: its samples have no numbers",
            "Use a Dataset with __len__ and __getitem__",
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        raise ScriptError(
            "the DataLoader has its own batch_sampler, or no batches",
            "Give it batch_size and shuffle instead; DaisyChain cuts the batches itself",
        )
    sampler: Any = loader.sampler
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset)
    )
    if not plain:
        raise ScriptError(
            f"the DataLoader's sampler ({type(sampler).__name__}) can't be cut between nodes",
            "Use shuffle=True or shuffle=False without a sampler; DaisyChain does what a DistributedSampler would",
        )
    return int(loader.batch_size)
