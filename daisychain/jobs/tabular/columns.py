"""Pure: what each column of a table is, and how its cells become numbers and category indices.

A column's type is guessed from all its distinct texts; every statistic (mean, median, vocabulary) is then
taken from the training rows only. The records below are what columns.json holds.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter, mul
from typing import Literal

import msgspec

from daisychain.jobs.tabular.values import (
    DATE_PARTS,
    date_parts,
    has_year_last,
    is_day_first,
    is_missing,
    parse_date,
    parse_number,
)

VOCABULARY = 510
"""Most category values that get a slot of their own."""
MISSING_SLOT, OTHER_SLOT, FIRST_SLOT = 0, 1, 2
RARE = 2
"""A category value seen less often than this in training shares the 'other' slot, which so learns something."""
UNREADABLE = 0.01
"""A column is of numbers (dates) when at most this part of its texts are none."""
UNIQUE = 0.9
"""Text is an identifier when its different values are this part of the rows."""
FEW_CLASSES = 20
MAX_CLASSES = 1000
CLIP = 8.0
"""Standardised numbers are cut here: one absurd value must not decide a step."""
Task = Literal["binary", "multiclass", "regression"]
_ROW_NUMBER = re.compile(
    r"(column 1|id|index|idx|row|row[ _-]?(id|number|no|index)|rownames?|unnamed.*)", re.IGNORECASE
)
_FALSE_WORDS = frozenset({"false", "no", "n", "f", "off", "0"})


class Scale(msgspec.Struct, frozen=True):
    """Of a number in the training rows; `std` is never 0."""

    mean: float
    std: float
    median: float

    def __call__(self, value: float | None) -> float:
        """`value` standardised and cut to +-CLIP; the median stands in for None."""
        scaled = ((self.median if value is None else value) - self.mean) / self.std
        return min(max(scaled, -CLIP), CLIP)

    def many(self, values: Sequence[float | None]) -> list[float]:
        """The same for many values, several times faster."""
        median, mean, std = self.median, self.mean, self.std
        scaled = [((median if value is None else value) - mean) / std for value in values]
        if scaled and (min(scaled) < -CLIP or max(scaled) > CLIP):
            return [min(max(value, -CLIP), CLIP) for value in scaled]
        return scaled


class NumberColumn(msgspec.Struct, frozen=True, tag="number"):
    name: str
    note: str
    scale: Scale
    flag_missing: bool
    """Whether a further input says 1 where the value is missing."""


class DateColumn(msgspec.Struct, frozen=True, tag="date"):
    name: str
    note: str
    day_first: bool
    parts: dict[str, Scale]
    """Which of DATE_PARTS are used: those that vary in training."""
    flag_missing: bool


class CategoryColumn(msgspec.Struct, frozen=True, tag="category"):
    name: str
    note: str
    values: tuple[str, ...]
    """By falling frequency; values[i] has index FIRST_SLOT + i."""

    @property
    def slots(self) -> int:
        """How many indices there are: missing, other, and the values."""
        return FIRST_SLOT + len(self.values)


class DroppedColumn(msgspec.Struct, frozen=True, tag="dropped"):
    name: str
    note: str
    """Why it is not used."""


Column = NumberColumn | DateColumn | CategoryColumn | DroppedColumn


class Target(msgspec.Struct, frozen=True):
    """What is learnt. `classes[1]` is the positive class of a binary task; regression has no classes."""

    name: str
    task: Task
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    note: str = ""


class Array(msgspec.Struct, frozen=True):
    """One file of values in row-major order, little-endian, without any header."""

    file: str
    type: Literal["float32", "int16"]
    shape: tuple[int, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """All of columns.json."""

    version: Literal[1] = 1
    columns: tuple[Column, ...]
    target: Target
    seed: int
    rows_train: int
    rows_valid: int
    rows_left_out: int
    """Rows without a target."""
    arrays: dict[str, Array] = {}
    """train.numbers, train.categories, train.target, and the same with valid."""

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that are inputs, in the file's order."""
        return tuple(column for column in self.columns if not isinstance(column, DroppedColumn))


class Guess(msgspec.Struct, frozen=True):
    """What a column looks like, before any statistics."""

    kind: Literal["number", "date", "category", "dropped"]
    note: str = ""
    day_first: bool = False


def guess_column(name: str, counts: Mapping[str, int], decimal_comma: bool = False) -> Guess:
    """The type of a column with these distinct texts and how often each occurs."""
    present = {text: count for text, count in counts.items() if not is_missing(text)}
    rows, missing = sum(present.values()), sum(counts.values()) - sum(present.values())
    if not present:
        return Guess("dropped", "empty")
    if len({text.strip() for text in present}) == 1 and not missing:
        return Guess("dropped", f"always {shorten(next(iter(present)))}")
    gaps = percent_missing(missing, rows + missing)
    readable = guess_readable(present, decimal_comma)
    if readable.kind == "number" and len(present) == rows and is_row_number(name, [*_numbers(present, decimal_comma)]):
        return Guess("dropped", "numbers the rows")
    if readable.kind != "category":
        return Guess(readable.kind, join_notes(readable.note, gaps), readable.day_first)
    if rows >= 20 and len(present) >= UNIQUE * rows:
        return Guess("dropped", f"text with {len(present):,} different values in {rows:,} rows, an identifier")
    return Guess("category", join_notes(f"{len(present):,} values", gaps))


def guess_readable(present: Mapping[str, int], decimal_comma: bool = False) -> Guess:
    """number or date when (nearly) all of the non-missing texts can be read as such, otherwise category."""
    rows = sum(present.values())
    bad = sum(count for text, count in present.items() if parse_number(text, decimal_comma) is None)
    if bad <= UNREADABLE * rows:
        return Guess("number", _unreadable(bad, "number"))
    texts = list(present)
    known = is_day_first(texts)
    bad = sum(count for text, count in present.items() if parse_date(text, bool(known)) is None)
    if bad > UNREADABLE * rows:
        return Guess("category")
    order = "read as " + ("day/month" if known else "month/day") if has_year_last(texts) else ""
    return Guess("date", join_notes(order, _unreadable(bad, "date")), bool(known))


def _unreadable(bad: int, kind: str) -> str:
    return f"{bad:,} no {kind}, taken as missing" if bad else ""


def _numbers(texts: Iterable[str], decimal_comma: bool) -> Iterable[float]:
    return (value for text in texts if (value := parse_number(text, decimal_comma)) is not None)


def is_row_number(name: str, values: Sequence[float]) -> bool:
    """Whether a column only numbers the rows: by its name, and its values, in the file's order, count up by one."""
    counts_up = len(values) > 2 and all(b - a == 1 for a, b in itertools.pairwise(values))
    return counts_up and _ROW_NUMBER.fullmatch(name) is not None


def percent_missing(missing: int, rows: int) -> str:
    """'3% missing', or nothing when nothing is."""
    if not missing:
        return ""
    share = 100 * missing / rows
    return "under 1% missing" if share < 1 else f"{share:.0f}% missing"


def join_notes(*notes: str) -> str:
    """Notes that say something, with commas."""
    return ", ".join(note for note in notes if note)


def shorten(text: str, length: int = 40) -> str:
    """A value for a message: on one line, at most `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def measure(counts: Iterable[tuple[float, int]]) -> Scale | None:
    """Mean, standard deviation and median of values with their counts; None when there are none. Exact sums."""
    pairs = sorted(counts, key=itemgetter(0))
    rows = sum(map(itemgetter(1), pairs))
    if not rows:
        return None
    mean = math.fsum(itertools.starmap(mul, pairs)) / rows
    variance = math.fsum([(value - mean) * (value - mean) * count for value, count in pairs]) / rows
    return Scale(mean, math.sqrt(variance) or 1.0, _median(pairs, rows))


def _median(pairs: Sequence[tuple[float, int]], rows: int) -> float:
    seen = 0
    for value, count in pairs:
        seen += count
        if 2 * seen >= rows:
            return value
    raise ValueError("no rows")


def number_column(name: str, note: str, train: Iterable[tuple[float | None, int]]) -> Column:
    """A number column from the training rows' values (None: missing) with their counts."""
    pairs = list(train)
    scale = measure((value, count) for value, count in pairs if value is not None)
    if scale is None:
        return DroppedColumn(name, "empty in the training rows")
    return NumberColumn(name, note, scale, any(value is None and count for value, count in pairs))


def date_column(name: str, note: str, day_first: bool, train: Iterable[tuple[float | None, int]]) -> Column:
    """A date column from the training rows' seconds since 1970 (None: missing) with their counts."""
    pairs = list(train)
    present = [(date_parts(value), count) for value, count in pairs if value is not None and count]
    parts: dict[str, Scale] = {}
    for k, part in enumerate(DATE_PARTS):
        if len({values[k] for values, _ in present}) > 1:
            scale = measure((values[k], count) for values, count in present)
            parts |= {part: scale} if scale else {}
    if not parts:
        return DroppedColumn(name, "the same date in all training rows")
    missing = any(value is None and count for value, count in pairs)
    return DateColumn(name, join_notes(", ".join(parts), note), day_first, parts, missing)


def category_column(name: str, note: str, train: Mapping[str, int]) -> Column:
    """A category column from the training rows' texts with their counts."""
    counts: dict[str, int] = {}
    for text, count in train.items():
        if not is_missing(text):
            counts[text.strip()] = counts.get(text.strip(), 0) + count
    frequent = sorted((value for value in counts if counts[value] >= RARE), key=lambda value: (-counts[value], value))
    if len(frequent) > VOCABULARY:
        note = join_notes(note, f"the {VOCABULARY} most frequent kept, the rest as one")
    return CategoryColumn(name, note, tuple(frequent[:VOCABULARY]))


def inputs(column: Column) -> int:
    """How many numbers (not category indices) a column gives."""
    if isinstance(column, NumberColumn):
        return 1 + column.flag_missing
    return len(column.parts) + column.flag_missing if isinstance(column, DateColumn) else 0


def features(column: NumberColumn | DateColumn, value: float | None) -> tuple[float, ...]:
    """The numbers, inputs(column) many, for one value (None: missing)."""
    flag = (float(value is None),) if column.flag_missing else ()
    if isinstance(column, NumberColumn):
        return (column.scale(value), *flag)
    found = {} if value is None else dict(zip(DATE_PARTS, date_parts(value), strict=True))
    return (*(scale(found.get(part)) for part, scale in column.parts.items()), *flag)


def slots_of(column: CategoryColumn) -> dict[str, int]:
    """Index of each value of a category column."""
    return {value: FIRST_SLOT + i for i, value in enumerate(column.values)}


def slot(slots: Mapping[str, int], text: str) -> int:
    """Index of a category cell: its value's, the missing slot, or the slot of all other values."""
    found = slots.get(text.strip())
    if found is not None:
        return found
    return MISSING_SLOT if is_missing(text) else OTHER_SLOT


class Encoder:
    """Rows of a table -> numbers and category indices, the same way as in training."""

    CACHE = 50_000

    def __init__(self, table: Table, decimal_comma: bool = False) -> None:
        self._columns = table.used
        self._comma = decimal_comma
        self._slots = [slots_of(column) if isinstance(column, CategoryColumn) else {} for column in self._columns]
        self._seen: list[dict[str, tuple[float, ...]]] = [{} for _ in self._columns]

    def row(self, cells: Sequence[str]) -> tuple[list[float], list[int]]:
        """Numbers and category indices of one row; `cells` are those of table.used, in that order."""
        numbers: list[float] = []
        categories: list[int] = []
        for i, (column, text) in enumerate(zip(self._columns, cells, strict=True)):
            if isinstance(column, CategoryColumn):
                categories.append(slot(self._slots[i], text))
            else:
                numbers.extend(self._numbers(i, text))
        return numbers, categories

    def _numbers(self, i: int, text: str) -> tuple[float, ...]:
        seen = self._seen[i]
        if text not in seen:
            if len(seen) >= self.CACHE:
                seen.clear()
            column = self._columns[i]
            assert isinstance(column, NumberColumn | DateColumn)
            seen[text] = features(column, read_value(column, text, self._comma))
        return seen[text]


def read_value(column: NumberColumn | DateColumn, text: str, decimal_comma: bool = False) -> float | None:
    """A cell's number, or its date in seconds; None when missing or unreadable."""
    if is_missing(text):
        return None
    if isinstance(column, NumberColumn):
        return parse_number(text, decimal_comma)
    return parse_date(text, column.day_first)


def _label(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def guess_target(
    name: str, counts: Mapping[str, int], decimal_comma: bool = False
) -> tuple[Task, dict[str, int] | None, tuple[str, ...], str]:
    """What kind of target a column with these texts is.

    Returns the task, each text's class index (None for regression; texts without a class are left out), the
    classes and a note. Raises ValueError with the reason, a sentence that starts after the column's name.
    """
    present = {text: count for text, count in counts.items() if not is_missing(text)}
    if not present:
        raise ValueError("is empty in every row")
    readable = guess_readable(present, decimal_comma)
    if readable.kind == "date":
        raise ValueError("holds dates, which can't be learnt: choose a column of numbers, words or yes/no")
    if readable.kind == "number":
        numbers = {text: n for text in present if (n := parse_number(text, decimal_comma)) is not None}
        distinct = sorted(set(numbers.values()))
        whole = all(value == int(value) for value in distinct)
        few = whole and len(distinct) <= FEW_CLASSES and 5 * len(distinct) <= sum(present.values())
        if len(distinct) > 2 and not few:
            return "regression", None, (), readable.note
        keys = {text: _label(value) for text, value in numbers.items()}
        classes = [_label(value) for value in distinct]
    else:
        keys = {text: text.strip() for text in present}
        classes = sorted(set(keys.values()), key=lambda word: (word.lower() not in _FALSE_WORDS, word))
    if len(classes) < 2:
        raise ValueError(f"is {shorten(classes[0])!r} in every row: nothing can be learnt from it")
    if len(classes) > MAX_CLASSES:
        raise ValueError(f"has {len(classes):,} different texts, more than {MAX_CLASSES:,} classes")
    index = {label: i for i, label in enumerate(classes)}
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    return task, {text: index[key] for text, key in keys.items()}, tuple(classes), readable.note
