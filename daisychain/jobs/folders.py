"""Where a job finds the data that was prepared for it and shipped with the run."""

from collections.abc import Sequence
from pathlib import Path

from daisychain.errors import DataError


def find_folder(given: Sequence[str], here: Path, marker: str) -> Path:
    """The folder of prepared data: the first argument, or the one at or below `here` that holds the file `marker`.

    Raises DataError when there is none, or more than one.
    """
    if given:
        return Path(given[0])
    found = [here] if (here / marker).exists() else sorted(file.parent for file in here.glob(f"**/{marker}"))
    if len(found) != 1:
        raise DataError(f"{here}: {len(found)} folders with a {marker} below it, not one", "Give the folder to use")
    return found[0]
