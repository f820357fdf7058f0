"""One column of a file being read, in little memory: distinct texts once, or numbers as doubles."""

import math
from array import array
from collections.abc import Iterable, Sequence

from daisychain.jobs.tabular.columns import UNREADABLE, Guess, guess_readable, join_notes, percent_missing
from daisychain.jobs.tabular.values import is_missing, parse_date, parse_number

WIDEST = 65_536
"""Different texts of a column that are kept as texts."""
ALL_TEXTS = 2_000_000
"""Different texts that are kept over all columns: some 250 MB."""


class _Codes(dict[str, int]):
    """Text -> its number in order of appearance; looking up a new text numbers it."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


class Store:
    """Cells of one column in the file's order.

    Few different texts: `texts` and `codes`. More than `limit` of them: `values`, one double a row (numbers, or dates
    in seconds since 1970; nan where missing), or nothing at all when the texts are neither.
    """

    def __init__(self, limit: int = WIDEST, decimal_comma: bool = False) -> None:
        self.limit = limit
        self.decimal_comma = decimal_comma
        self.texts: dict[str, int] = _Codes()
        self.codes = array("I")
        self.values = array("d")
        self.wide: Guess | None = None
        """What the column is, once it has too many different texts."""
        self._missing = 0
        self._unreadable = 0

    def extend(self, cells: Iterable[str]) -> None:
        """Add cells, one a row."""
        if self.wide is None:
            self.codes.extend(map(self.texts.__getitem__, cells))
            if len(self.texts) > self.limit:
                self._widen()
        elif self.wide.kind != "category":
            self.values.extend(map(self._read, cells))

    def guess_wide(self) -> Guess:
        """The type of a column that went wide, judged by all its rows. Needs `wide`."""
        assert self.wide is not None
        if self.wide.kind == "category":
            return Guess("dropped", f"text with more than {self.limit:,} different values")
        rows = len(self.values)
        if self._unreadable > UNREADABLE * (rows - self._missing):
            return Guess(
                "dropped", f"neither numbers nor text: {self._unreadable:,} of {rows:,} are no {self.wide.kind}"
            )
        unreadable = f"{self._unreadable:,} no {self.wide.kind}, taken as missing" if self._unreadable else ""
        order = self.wide.note if self.wide.note.startswith("read as") else ""
        note = join_notes(order.split(",")[0], unreadable, percent_missing(self._missing, rows))
        return Guess(self.wide.kind, note, self.wide.day_first)

    def _widen(self) -> None:
        self.wide = guess_readable({text: 1 for text in self.texts if not is_missing(text)}, self.decimal_comma)
        if self.wide.kind != "category":
            texts = list(self.texts)
            self.values.extend(self._read(texts[code]) for code in self.codes)
        self.texts = {}
        self.codes = array("I")

    def _read(self, text: str) -> float:
        assert self.wide is not None
        value: float | None
        if self.wide.kind == "number":
            value = parse_number(text, self.decimal_comma)
        else:
            value = parse_date(text, self.wide.day_first)
        if value is not None:
            return value
        # No missing text reads as a number or a date, so the common case is over before this question.
        if is_missing(text):
            self._missing += 1
        else:
            self._unreadable += 1
        return math.nan


def pick(values: Sequence[float], rows: Sequence[int]) -> list[float | None]:
    """Doubles at `rows`, nan as None."""
    return [None if value != value else value for value in map(values.__getitem__, rows)]
