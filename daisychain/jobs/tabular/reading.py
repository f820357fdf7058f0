"""Rows of a CSV file, with every fault named by file and line."""

import csv
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from daisychain.errors import DataError
from daisychain.jobs.tabular.columns import shorten


class CsvFile:
    """An open CSV file; iterate for its rows, each exactly as wide as the header.

    The delimiter is the comma, or the semicolon or tab when the header has those and no comma.
    Raises DataError, on opening and while iterating, that says which line and what to try.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = _open(path)
        try:
            first = self._first_line()
            self.delimiter = "," if "," in first else next((d for d in ";\t" if d in first), ",")
            self._stream.seek(0)
            self._reader = csv.reader(self._lines(), delimiter=self.delimiter, strict=True)
            self.header = self._header()
        except BaseException:
            self._stream.close()
            raise

    @property
    def decimal_comma(self) -> bool:
        """Whether numbers may be written 1,5: where semicolons separate the fields, as in much of Europe."""
        return self.delimiter == ";"

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> "CsvFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[str]]:
        """Rows below the header; empty lines are skipped."""
        width, reader, start = len(self.header), self._reader, self._reader.line_num
        try:
            for row in reader:
                if len(row) == width:
                    yield row
                elif row:
                    raise self._wrong_width(row, width, start + 1)
                start = reader.line_num
        except csv.Error as error:
            raise self._malformed(error, start + 1) from error

    def position(self, name: str) -> int:
        """Which field the column is; DataError listing the columns and the closest name when there is none."""
        if name in self.header:
            return self.header.index(name)
        close = difflib.get_close_matches(name, self.header, n=1, cutoff=0.5)
        raise DataError(
            f"{self.path.name}: there is no column {shorten(name)!r}",
            (f"Did you mean {shorten(close[0])!r}? " if close else "") + f"Columns: {list_names(self.header)}",
        )

    def _first_line(self) -> str:
        return next(self._lines(), "")

    def _header(self) -> tuple[str, ...]:
        try:
            row = next((row for row in self._reader if row), None)
        except csv.Error as error:
            raise self._malformed(error, 1) from error
        if row is None:
            raise DataError(f"{self.path.name} is empty", "Give a CSV file with a header line and rows below it")
        names = tuple(name.strip() or f"column {i}" for i, name in enumerate(row, 1))
        double = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if double is not None:
            raise DataError(
                f"{self.path.name} line 1: two columns are named {shorten(double)!r}",
                "Give each column its own name in the header line",
            )
        return names

    def _lines(self) -> Iterator[str]:
        """Lines of text; DataError for bytes that are no UTF-8, and for NUL."""
        number = 0
        try:
            for number, line in enumerate(self._stream, 1):
                if "\0" in line:
                    raise DataError(
                        f"{self.path.name} line {number}: a NUL byte, so this is no text file",
                        "Save the table as CSV in UTF-8",
                    )
                yield line
        except UnicodeDecodeError as error:
            raise not_utf8(self.path) from error
        except OSError as error:
            raise DataError(
                f"{self.path.name} line {number + 1} can't be read: {error.strerror}", "Check the disk"
            ) from error

    def _wrong_width(self, row: Sequence[str], width: int, line: int) -> DataError:
        return DataError(
            f"{self.path.name} line {line}: {len(row)} fields, the header has {width}",
            "Correct the line; a field that contains the delimiter must stand in double quotes",
        )

    def _malformed(self, error: csv.Error, line: int) -> DataError:
        text = str(error)
        if "end of data" in text or "field limit" in text:
            return DataError(
                f"{self.path.name} line {line}: a double quote is opened and never closed",
                "Close it, or write a quote inside a quoted field twice",
            )
        return DataError(
            f"{self.path.name} line {self._reader.line_num}: {text}", "Write a quote inside a quoted field twice"
        )


def _open(path: Path) -> TextIO:
    """The file as text; newlines stay as they are because csv must see those inside quotes."""
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder", "Give a CSV file")
        return path.open(encoding="utf-8-sig", newline="")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist", "Check the path") from error
    except OSError as error:
        raise DataError(f"{path} can't be opened: {error.strerror}", "Check its permissions") from error


def not_utf8(path: Path) -> DataError:
    """Which line and byte of a file is no UTF-8; found by reading it again, line by line."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                break
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return DataError(
                    f"{path.name} line {number}: byte {error.start + 1} of the line "
                    f"(0x{line[error.start]:02x}) is not UTF-8",
                    "Save the file as CSV in UTF-8",
                )
    return DataError(f"{path.name} is UTF-16, not UTF-8", "Save the file as CSV in UTF-8")


def list_names(names: Sequence[str], limit: int = 40) -> str:
    """Column names for a message, the first `limit` of them."""
    shown = ", ".join(shorten(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
