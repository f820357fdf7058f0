"""Random values that depend on a key and a sample's position in the global batch, never on the shares.

Positions go in blocks; each block has a generator seeded by a hash of key and block, and a rank makes only the blocks
that it has samples in.
"""

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from daisychain.train.place import Place

BLOCK_SAMPLES = 64
BLOCK_VALUES = 4096
"""A block is so many samples, or fewer that have so many values: seeding costs little, and little is made in vain."""

Fill = Callable[[Tensor, torch.Generator], Any]
Tell = Callable[[str], None]


def mix(*words: int) -> int:
    """A seed of 64 bits from whole numbers."""
    packed = struct.pack(f"<{len(words)}Q", *(word % 2**64 for word in words))
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


class Draws:
    """Draws for one model. again: the mode that replaces torch's functions, to be entered within a replacement.

    Every draw takes its key from torch's own generator, which must be alike on all ranks, and stays so.
    """

    def __init__(self, place: Place, tell: Tell, again: AbstractContextManager[Any]) -> None:
        self._place, self._tell, self.again = place, tell, again
        self._told: set[str] = set()
        self._generator = torch.Generator()

    def tell(self, kind: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(f"{kind} in the model depends on the shares: its results differ from one machine's")

    def draw(self, kind: str, like: Tensor, shape: Any, dtype: torch.dtype, fill: Fill) -> Tensor:
        """New values by position in the global batch; alike on all ranks where there is no dimension for samples.

        like: what they are for; a parameter has no samples.
        """
        shape, key = torch.Size(shape), _key()
        layout = None if isinstance(like, nn.Parameter) else _layout(shape, self._place.share)
        if layout is None:
            is_guess = tuple(shape) == (1,) and self._place.share == 1 < self._place.batch
            if is_guess or (shape.numel() > 1 and not isinstance(like, nn.Parameter)):
                self.tell(f"{kind} of shape {tuple(shape)}")
            values = torch.empty(shape, dtype=dtype)
            _common(key, lambda: fill(values, torch.default_generator))
            return values
        if layout.is_guess:
            self.tell(f"{kind} of shape {tuple(shape)}")
        sizes = [shape[layout.dim], *shape[: layout.dim], *shape[layout.dim + 1 :]]
        return self._positions(key, shape.numel(), dtype, fill).view(sizes).movedim(0, layout.dim)

    def _positions(self, key: int, numel: int, dtype: torch.dtype, fill: Fill) -> Tensor:
        """So many values for all of this rank's samples, in their order."""
        first, share = self._place.first, max(1, self._place.share)
        each = numel // share
        block = _block(each)
        begin, end = first // block, -(-(first + share) // block)
        made = torch.empty((end - begin) * block, each, dtype=dtype)
        for number, rows in zip(range(begin, end), made.view(-1, block, each), strict=True):
            self._generator.manual_seed(mix(key, number))
            fill(rows, self._generator)
        skipped = first - begin * block
        return made[skipped : skipped + share]

    def leave_to_torch(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.tell(func.__name__)
        return _common(_key(), lambda: func(*args, **kwargs))


def _key() -> int:
    return int(torch.empty((), dtype=torch.int64).random_())


def _common(key: int, run: Callable[[], Any]) -> Any:
    """Seed torch's generator by the key; then it goes on alike on all ranks, which may have taken unequally much."""
    torch.default_generator.manual_seed(mix(key, 1))
    try:
        return run()
    finally:
        torch.default_generator.manual_seed(mix(key, 2))


class _Layout(NamedTuple):
    """Which dimension has the samples; is_guess: another one could as well."""

    dim: int
    is_guess: bool


def _layout(shape: torch.Size, share: int) -> _Layout | None:
    """Samples come first, also as N * T rows; or second, as in (T, N, C). None: neither fits.

    A single value is taken for one draw for all samples, as a layer is dropped by: ranks must not differ in that.
    """
    share = max(1, share)
    if not shape.numel() or tuple(shape) in ((), (1,)):
        return None
    if shape[0] == share:
        return _Layout(0, is_guess=False)
    second = len(shape) > 2 and shape[1] == share
    if shape[0] % share == 0:
        square = second and shape[2] == share  # (N * heads, T, T)
        return _Layout(1 if second and not square else 0, is_guess=second and share > 1)
    return _Layout(1, is_guess=False) if second else None


def _block(values_per_sample: int) -> int:
    """Samples in a block, a power of two."""
    block = BLOCK_SAMPLES
    while block > 1 and block * values_per_sample > BLOCK_VALUES:
        block //= 2
    return block
