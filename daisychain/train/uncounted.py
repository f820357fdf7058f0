"""Further loaders beside the main one, whose steps aren't counted."""

from collections.abc import Iterator, Sequence

from daisychain.train.batches import Piece
from daisychain.train.steps import Steps


class Uncounted:
    """For further loaders (a second dataset): cut by the shares that are valid when a pass begins, not measured."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._shares: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return self._steps.rank

    def starts(self, number: int) -> Iterator[tuple[int, int]]:
        self._shares = self._steps.shares_now
        yield number, 0

    def shares_at(self, ahead: int) -> tuple[int, ...]:
        return self._shares

    def begin(self) -> None:
        pass

    def take(self, piece: Piece, parts: Sequence[Piece]) -> None:
        self._steps.weigh(piece)

    def next_part(self, part: Piece) -> None:
        """It is never cut into parts."""

    def end(self) -> bool:
        return True

    def drop(self) -> None:
        pass
