"""Behind `daisychain predict`: run the apply child and turn its lines into a result or an error. No torch here."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from daisychain.errors import BY_EXIT_CODE, DaisyError, DataError


class Prediction(msgspec.Struct, frozen=True):
    """What was written."""

    out: Path
    rows: int
    added: tuple[str, ...]
    """Names of the new columns."""


def default_out(source: Path) -> Path:
    """flights.csv -> flights-predicted.csv, beside it."""
    return source.with_name(f"{source.stem}-predicted{source.suffix or '.csv'}")


def predict(
    model: Path, source: Path, out: Path | None = None, progress: Callable[[int], None] = lambda rows: None
) -> Prediction:
    """Add a trained model's predictions to a CSV file.

    model: the folder of a finished tabular run. progress: called with the rows done so far.
    Raises UsageError when the model or the file is wrong, DaisyError when the child fails.
    """
    if not model.is_dir():
        raise DataError(f"{model} is no folder", "Give the folder of a finished tabular run")
    target = out or default_out(source)
    command = [sys.executable, "-m", "daisychain.jobs.tabular.apply"]
    command += ["--model", str(model), "--csv", str(source), "--out", str(target)]
    last: dict[str, Any] = {}
    # What torch says on stderr is for nobody: the child's own errors come as lines.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = json.loads(line)
            if last["kind"] == "progress":
                progress(last["rows"])
    if last.get("kind") == "done":
        return Prediction(target, last["rows"], tuple(last["added"]))
    if last.get("kind") == "error":
        raise BY_EXIT_CODE.get(last["exit"], DaisyError)(last["what"], last["remedy"])
    raise DaisyError(
        f"predicting {source.name} ended with exit code {process.returncode}", "See whether memory ran out"
    )
