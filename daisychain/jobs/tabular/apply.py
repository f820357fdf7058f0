"""Child: a trained table's model over a new CSV file.

    python -m daisychain.jobs.tabular.apply --model FOLDER --csv FILE --out OUT

OUT has FILE's columns and, for two classes, TARGET_predicted and TARGET_probability (of the positive class);
for more, TARGET_predicted and TARGET_probability (of the predicted one); for a number, TARGET_predicted.
stdout: JSON lines of kind progress (rows), done (rows, out, added), error (exit, what, remedy).
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from daisychain.errors import DataError
from daisychain.jobs import child
from daisychain.jobs.tabular.columns import Encoder, Table, shorten
from daisychain.jobs.tabular.reading import CsvFile, list_names
from daisychain.jobs.tabular.train import MODEL_FILE, build, outputs, probabilities, read_table, values

BLOCK = 4096


def main() -> None:
    """Handle the command line."""
    parser = argparse.ArgumentParser(prog="daisychain.jobs.tabular.apply")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    apply(given.model, given.csv, given.out)


def apply(folder: Path, source: Path, out: Path) -> int:
    """Write `out`, whole or not at all; returns the number of rows. DataError when model and file don't fit."""
    table = read_table(folder)
    model = load_model(table, folder / MODEL_FILE)
    if out.exists() and source.exists() and out.samefile(source):
        raise DataError(f"{out} is the file to read", "Give another file to write")
    if not out.parent.is_dir():
        raise DataError(f"{out.parent} is no folder", "Make it, or give another file to write")
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with CsvFile(source) as file, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, delimiter=file.delimiter, lineterminator="\n")
            added = new_columns(table, file.header)
            writer.writerow([*file.header, *added])
            rows = 0
            for block in _predicted(table, model, file):
                writer.writerows(block)
                rows += len(block)
                child.emit("progress", rows=rows)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    child.emit("done", rows=rows, out=str(out), added=added)
    return rows


def load_model(table: Table, file: Path) -> nn.Module:
    """The trained model; DataError when the file is missing, damaged or another table's."""
    model = build(table)
    try:
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist", "Give the folder of a finished tabular run") from error
    except Exception as error:  # torch.load raises whatever a damaged file makes it stumble over
        reason = shorten(str(error), 120)
        raise DataError(f"{file} doesn't hold the model of columns.json beside it: {reason}", "Train again") from error
    return model


def new_columns(table: Table, header: Sequence[str]) -> list[str]:
    """Names of the added columns, none of them in the header."""
    kinds = ["predicted"] if table.target.task == "regression" else ["predicted", "probability"]
    names = []
    for kind in kinds:
        name, number = f"{table.target.name}_{kind}", 2
        while name in header:
            name, number = f"{table.target.name}_{kind}_{number}", number + 1
        names.append(name)
    return names


def _predicted(table: Table, model: nn.Module, file: CsvFile) -> Iterator[list[list[str]]]:
    """The file's rows with the new cells, in blocks."""
    missing = [column.name for column in table.used if column.name not in file.header]
    if missing:
        raise DataError(
            f"{file.path.name} lacks {'a column' if len(missing) == 1 else 'columns'} that the model was trained on: "
            f"{list_names(missing)}",
            f"Add them; it has {list_names(file.header)}",
        )
    positions = [file.header.index(column.name) for column in table.used]
    encoder = Encoder(table, file.decimal_comma)
    rows = iter(file)
    while block := list(islice(rows, BLOCK)):
        encoded = [encoder.row([row[i] for i in positions]) for row in block]
        numbers = torch.tensor([numbers for numbers, _ in encoded], dtype=torch.float32)
        categories = torch.tensor([categories for _, categories in encoded], dtype=torch.int64)
        found = outputs(model, numbers, categories)
        yield [[*row, *cells] for row, cells in zip(block, cells_of(table, found), strict=True)]


def cells_of(table: Table, output: Tensor) -> list[list[str]]:
    """The new cells of each row of outputs."""
    if table.target.task == "regression":
        return [[f"{value:.6g}"] for value in values(table, output).tolist()]
    chances = probabilities(table, output)
    best = chances.argmax(dim=1)
    shown = chances[:, 1] if table.target.task == "binary" else chances.max(dim=1).values
    names = table.target.classes
    return [[names[i], f"{p:.6f}"] for i, p in zip(best.tolist(), shown.tolist(), strict=True)]


if __name__ == "__main__":
    sys.exit(child.run(main))
