"""Child: one CSV file -> columns.json and arrays, split into training and validation rows.

    python -m daisychain.jobs.tabular.prepare

stdin: one JSON line {"csv", "target", "drop": [...], "seed", "out"}, then open until the child may end.
stdout: JSON lines of kind progress (rows), columns (columns, task, rows), done (files, rows_train, rows_valid,
rows_left_out), error (exit, what, remedy).

The result depends on the file, the target, the drops and the seed alone, never on who will train on it.
"""

import random
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from daisychain import config
from daisychain.errors import DataError
from daisychain.jobs import child
from daisychain.jobs.tabular.columns import (
    Array,
    CategoryColumn,
    Column,
    DateColumn,
    DroppedColumn,
    NumberColumn,
    Table,
    Target,
    category_column,
    date_column,
    features,
    guess_column,
    guess_target,
    inputs,
    is_row_number,
    measure,
    number_column,
    read_value,
    shorten,
    slot,
    slots_of,
)
from daisychain.jobs.tabular.reading import CsvFile
from daisychain.jobs.tabular.store import ALL_TEXTS, WIDEST, Store, pick
from daisychain.jobs.tabular.values import parse_number

VALIDATION = 0.2
FEWEST_ROWS = 10
BLOCK = 4096
COLUMNS_FILE = "columns.json"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    csv: str
    target: str
    out: str
    drop: tuple[str, ...] = ()
    seed: int = 0


class Labels(msgspec.Struct, frozen=True):
    """The target of the rows that have one."""

    target: Target
    rows: list[int]
    """Positions in the file, rising."""
    values: list[float]
    """A class index or a number for each of `rows`."""
    left_out: int


def main() -> None:
    """Handle the request on stdin."""
    prepare(msgspec.convert(child.request_from_stdin(), Request))


def prepare(request: Request) -> Table:
    """Read, judge, split and write. Raises DataError, or OSError when `out` can't be written."""
    path = Path(request.csv)
    header, stores, decimal_comma = _read(path, request)
    labels = _labels(path, request.target, stores[request.target])
    train, valid = split(labels.values if labels.target.classes else [0.0] * len(labels.rows), request.seed)
    target = _scaled(labels, train)
    train_rows, valid_rows = [labels.rows[i] for i in train], [labels.rows[i] for i in valid]
    columns = tuple(
        _column(name, stores.get(name), train_rows, decimal_comma) for name in header if name != request.target
    )
    table = Table(
        columns=columns,
        target=target,
        seed=request.seed,
        rows_train=len(train),
        rows_valid=len(valid),
        rows_left_out=labels.left_out,
    )
    child.emit("columns", columns=describe(table), task=target.task, rows=len(labels.rows))
    if not table.used:
        raise DataError(f"{path.name}: no column is left to learn {target.name!r} from", "Drop fewer columns")
    out = Path(request.out)
    out.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Array] = {}
    for part, rows, picked in (("train", train_rows, train), ("valid", valid_rows, valid)):
        numbers, categories = _encode(table, stores, rows, decimal_comma)
        arrays[f"{part}.numbers"] = _write(out, f"{part}.numbers", numbers, len(rows))
        arrays[f"{part}.categories"] = _write(out, f"{part}.categories", categories, len(rows))
        arrays[f"{part}.target"] = _write(out, f"{part}.target", _target_values(labels, target, picked), None)
    table = msgspec.structs.replace(table, arrays=arrays)
    config.write_atomically(out / COLUMNS_FILE, msgspec.json.format(msgspec.json.encode(table)) + b"\n")
    files = [COLUMNS_FILE, *(a.file for a in arrays.values())]
    child.emit("done", files=files, rows_train=len(train), rows_valid=len(valid), rows_left_out=labels.left_out)
    return table


def _read(path: Path, request: Request) -> tuple[tuple[str, ...], dict[str, Store], bool]:
    """The header, the columns that are not dropped by request, and whether numbers use a decimal comma."""
    with CsvFile(path) as file:
        file.position(request.target)
        dropped = set(request.drop)
        for name in request.drop:
            file.position(name)
        if request.target in dropped:
            raise DataError(f"{request.target!r} is both the target and dropped", "Drop other columns")
        limit = min(WIDEST, max(1024, ALL_TEXTS // len(file.header)))
        stores = {name: Store(limit, file.decimal_comma) for name in file.header if name not in dropped}
        rows = 0
        for block in _blocks(file):
            for name, cells in zip(file.header, zip(*block, strict=True), strict=True):
                if name in stores:
                    stores[name].extend(cells)
            rows += len(block)
        if not rows:
            raise DataError(f"{path.name} has a header line and no rows", "Give a file with rows")
        return file.header, stores, file.decimal_comma


def _blocks(file: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Rows in lists of BLOCK; says how many were read a few times a second."""
    rows, told = iter(file), time.monotonic()
    count = 0
    while block := list(islice(rows, BLOCK)):
        yield block
        count += len(block)
        if time.monotonic() - told > 0.25:
            told = time.monotonic()
            child.emit("progress", rows=count)
    child.emit("progress", rows=count)


def _labels(path: Path, name: str, store: Store) -> Labels:
    """What is to be learnt, row by row; DataError when nothing can be."""
    if store.wide is None:
        counts = Counter(store.codes)
        texts = {text: counts[code] for text, code in store.texts.items()}
        try:
            task, index, classes, note = guess_target(name, texts, store.decimal_comma)
        except ValueError as error:
            raise DataError(f"{path.name}: the target {shorten(name)!r} {error}", "Choose another target") from None
        found: dict[int, float | None] = {}
        for text, code in store.texts.items():
            found[code] = parse_number(text, store.decimal_comma) if index is None else index.get(text)
        values = [found[code] for code in store.codes]
    else:
        guess = store.guess_wide()
        if guess.kind != "number":
            raise DataError(
                f"{path.name}: the target {shorten(name)!r} is {guess.note or 'a date'}",
                "Choose a column of numbers, words or yes/no",
            )
        task, classes, note = "regression", (), guess.note
        values = pick(store.values, range(len(store.values)))
    rows = [row for row, value in enumerate(values) if value is not None]
    if len(rows) < FEWEST_ROWS:
        raise DataError(
            f"{path.name} has {len(rows)} rows with a {shorten(name)!r}, too few to learn from",
            f"Give at least {FEWEST_ROWS} rows, better thousands",
        )
    kept = [value for value in values if value is not None]
    return Labels(Target(name, task, classes, note=note), rows, kept, len(values) - len(kept))


def split(labels: Sequence[float], seed: int) -> tuple[list[int], list[int]]:
    """Positions of training and of validation rows, rising. The first row of each label, in shuffled order, trains."""
    order = list(range(len(labels)))
    random.Random(seed).shuffle(order)
    wanted = max(1, round(VALIDATION * len(labels)))
    seen: set[float] = set()
    train: list[int] = []
    valid: list[int] = []
    for i in order:
        if labels[i] in seen and len(valid) < wanted:
            valid.append(i)
        else:
            seen.add(labels[i])
            train.append(i)
    return sorted(train), sorted(valid)


def _scaled(labels: Labels, train: Sequence[int]) -> Target:
    """The target with the training rows' mean and standard deviation, for regression."""
    if labels.target.classes:
        return labels.target
    scale = measure(Counter(labels.values[i] for i in train).items())
    assert scale is not None
    return msgspec.structs.replace(labels.target, mean=scale.mean, std=scale.std)


def _target_values(labels: Labels, target: Target, picked: Sequence[int]) -> "array[Any]":
    values = map(labels.values.__getitem__, picked)
    if target.classes:
        return array("h", map(int, values))
    return array("f", ((value - target.mean) / target.std for value in values))


def _column(name: str, store: Store | None, train: Sequence[int], decimal_comma: bool) -> Column:
    """What a column is; all statistics from the `train` rows."""
    if store is None:
        return DroppedColumn(name, "dropped as asked")
    if store.wide is not None:
        return _wide_column(name, store, train)
    everywhere = Counter(store.codes)
    counts = Counter(map(store.codes.__getitem__, train))
    guess = guess_column(name, {text: everywhere[code] for text, code in store.texts.items()}, decimal_comma)
    if guess.kind == "dropped":
        return DroppedColumn(name, guess.note)
    texts = {text: counts[code] for text, code in store.texts.items() if counts[code]}
    if guess.kind == "category":
        return category_column(name, guess.note, texts)
    reader = _reader(guess.kind, name, guess.day_first)
    pairs = [(read_value(reader, text, decimal_comma), count) for text, count in texts.items()]
    if guess.kind == "number":
        return number_column(name, guess.note, pairs)
    return date_column(name, guess.note, guess.day_first, pairs)


def _reader(kind: Literal["number", "date"], name: str, day_first: bool) -> NumberColumn | DateColumn:
    """A column that can read values and knows no statistics yet."""
    scale = measure([(0.0, 1)])
    assert scale is not None
    if kind == "number":
        return NumberColumn(name, "", scale, False)
    return DateColumn(name, "", day_first, {}, False)


def _wide_column(name: str, store: Store, train: Sequence[int]) -> Column:
    guess = store.guess_wide()
    if guess.kind == "number":
        if is_row_number(name, store.values):
            return DroppedColumn(name, "numbers the rows")
        return number_column(name, guess.note, ((value, 1) for value in pick(store.values, train)))
    if guess.kind == "date":
        return date_column(name, guess.note, guess.day_first, ((value, 1) for value in pick(store.values, train)))
    return DroppedColumn(name, guess.note)


def _encode(
    table: Table, stores: dict[str, Store], rows: Sequence[int], decimal_comma: bool
) -> "tuple[array[Any], array[Any]]":
    """Numbers and categories of `rows`, row-major: a column at a time, each distinct text looked at once."""
    width = sum(inputs(column) for column in table.used)
    slots = sum(isinstance(column, CategoryColumn) for column in table.used)
    numbers = array("f", bytes(4 * width * len(rows)))
    categories = array("h", bytes(2 * slots * len(rows)))
    at_number = at_category = 0
    for column in table.used:
        store = stores[column.name]
        if isinstance(column, CategoryColumn):
            index = slots_of(column)
            found = [slot(index, text) for text in store.texts]
            categories[at_category::slots] = array("h", [found[store.codes[row]] for row in rows])
            at_category += 1
        elif isinstance(column, NumberColumn | DateColumn):
            for values in _feature_columns(column, store, rows, decimal_comma):
                numbers[at_number::width] = array("f", values)
                at_number += 1
    return numbers, categories


def _feature_columns(
    column: NumberColumn | DateColumn, store: Store, rows: Sequence[int], decimal_comma: bool
) -> Iterator[Iterable[float]]:
    """Each input of one column, over `rows`."""
    if store.wide is not None:
        yield from _wide_features(column, pick(store.values, rows))
        return
    by_code = [features(column, read_value(column, text, decimal_comma)) for text in store.texts]
    codes = [store.codes[row] for row in rows]
    for k in range(inputs(column)):
        yield map([values[k] for values in by_code].__getitem__, codes)


def _wide_features(column: NumberColumn | DateColumn, picked: Sequence[float | None]) -> Iterator[Iterable[float]]:
    """The same for values that hardly ever repeat."""
    if isinstance(column, NumberColumn):
        yield column.scale.many(picked)
        if column.flag_missing:
            yield [float(value is None) for value in picked]
        return
    encoded = [features(column, value) for value in picked]
    for k in range(inputs(column)):
        yield [values[k] for values in encoded]


def _write(out: Path, name: str, values: "array[Any]", rows: int | None) -> Array:
    """Write one array; `rows` gives it a second dimension."""
    kind: Literal["float32", "int16"] = "float32" if values.typecode == "f" else "int16"
    file = f"{name}.{kind}"
    if sys.byteorder == "big":
        values.byteswap()
    with (out / file).open("wb") as stream:
        values.tofile(stream)
    return Array(file, kind, (len(values),) if rows is None else (rows, len(values) // max(rows, 1)))


def describe(table: Table) -> list[dict[str, str]]:
    """Each column's name, type and note, the target first, for people."""
    kinds = {NumberColumn: "number", DateColumn: "date", CategoryColumn: "category", DroppedColumn: "dropped"}
    target = table.target
    note = f"{', '.join(map(shorten, target.classes[:6]))}{', …' if len(target.classes) > 6 else ''}"
    if table.rows_left_out:
        note += f"{', ' if note else ''}{table.rows_left_out:,} rows without it left out"
    first = {"name": target.name, "type": "target", "note": note}
    return [first, *({"name": c.name, "type": kinds[type(c)], "note": c.note} for c in table.columns)]


if __name__ == "__main__":
    sys.exit(child.run(main))
