"""In a rank: learn the target from the prepared arrays.

    python -m daisychain.jobs.tabular.train [FOLDER]

FOLDER holds what prepare.py wrote; without it, the working folder or the one folder below it that does.
Options of the run: batch (global batch), epochs. Writes model.pt (tensors only) and columns.json to chain.folder.
"""

import math
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import daisychain
from daisychain.errors import DataError
from daisychain.jobs.folders import find_folder
from daisychain.jobs.tabular import metrics
from daisychain.jobs.tabular.columns import CategoryColumn, Table, inputs

COLUMNS_FILE = "columns.json"
MODEL_FILE = "model.pt"
EPOCHS = 4
FEWEST_STEPS = 600
"""A small table is gone through more often, up to MOST_EPOCHS, to reach this many steps."""
MOST_EPOCHS = 40
PEAK_RATE = 4e-3
WEIGHT_DECAY = 1e-2
WARMUP = 0.1
"""Part of the steps over which the learning rate rises; after it, it falls along a cosine."""
CHUNK = 8192
"""Rows of one forward pass outside training."""
_TYPES = {"float32": torch.float32, "int16": torch.int16}


class Split(NamedTuple):
    """Rows of one split: numbers (n, width) float32, categories (n, columns) int64, target (n,)."""

    numbers: Tensor
    categories: Tensor
    target: Tensor
    """int64 class indices, or float32 standardised values."""


class Tabular(nn.Module):
    """Embeddings of the categories beside the numbers, then a multilayer perceptron.

    Forward takes numbers (n, width) and categories (n, columns) and returns (n, outputs): a logit for each
    class (one logit, of the positive class, when there are two), or the standardised value.
    """

    def __init__(self, width: int, slots: list[int], hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, embedding_size(n)) for n in slots)
        size = width + sum(embedding_size(n) for n in slots)
        layers: list[nn.Module] = []
        for units in hidden:
            layers += [nn.Linear(size, units), nn.ReLU()]
            size = units
        self.layers = nn.Sequential(*layers, nn.Linear(size, outputs))
        for embedding in self.embeddings:
            assert isinstance(embedding, nn.Embedding)
            nn.init.normal_(embedding.weight, std=0.1)
            with torch.no_grad():
                # Slots that never occur in training stay where they began: at no effect.
                embedding.weight[:2] = 0

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        parts = [embedding(categories[:, i]) for i, embedding in enumerate(self.embeddings)]
        found: Tensor = self.layers(torch.cat([numbers, *parts], dim=1))
        return found


def embedding_size(slots: int) -> int:
    """Width of a category's embedding: about 1.6 n^0.56, at most 32."""
    return min(32, max(2, round(1.6 * math.pow(slots, 0.56))))


def hidden_sizes(rows: int) -> tuple[int, ...]:
    """Units of the hidden layers for so many training rows."""
    if rows < 2_000:
        return (64, 32)
    return (128, 64) if rows < 20_000 else (384, 256, 128)


def default_batch(rows: int) -> int:
    """Global batch for so many training rows: at least some 40 steps an epoch, a power of 2 from 32 to 2048."""
    return min(2048, max(32, 1 << int(math.log2(rows / 40 + 1))))


def default_epochs(rows: int, batch: int) -> int:
    """How often to go through so many training rows."""
    return min(MOST_EPOCHS, max(EPOCHS, FEWEST_STEPS // math.ceil(rows / batch)))


def build(table: Table) -> Tabular:
    """The model for a table, new; its shape follows from the table alone."""
    slots = [column.slots for column in table.used if isinstance(column, CategoryColumn)]
    outputs = len(table.target.classes) if table.target.task == "multiclass" else 1
    return Tabular(sum(map(inputs, table.used)), slots, hidden_sizes(table.rows_train), outputs)


def read_table(folder: Path) -> Table:
    """columns.json of a folder; DataError naming the file."""
    file = folder / COLUMNS_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Table)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{file} can't be read: {error}", "Train again") from error


def load(table: Table, folder: Path, part: str) -> Split:
    """The arrays of `part`, train or valid; DataError naming a file that is missing or of the wrong size."""
    numbers, categories, target = (_array(table, folder, f"{part}.{n}") for n in ("numbers", "categories", "target"))
    return Split(numbers, categories.long(), target.long() if table.target.classes else target)


def _array(table: Table, folder: Path, name: str) -> Tensor:
    """One array, in memory."""
    array = table.arrays[name]
    file, kind = folder / array.file, _TYPES[array.type]
    try:
        data = bytearray(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}", "Prepare the table again") from error
    count = math.prod(array.shape)
    if len(data) != count * kind.itemsize:
        raise DataError(f"{file} has {len(data)} bytes, not {count * kind.itemsize}", "Prepare the table again")
    if sys.byteorder == "big":
        raise DataError(f"{file} is little-endian and this machine is not", "Use another machine")
    flat = torch.frombuffer(data, dtype=kind) if count else torch.empty(0, dtype=kind)
    return flat.reshape(array.shape)


def loss_of(table: Table, output: Tensor, target: Tensor) -> Tensor:
    """Mean loss over a batch: cross entropy, or squared error of the standardised value."""
    if table.target.task == "multiclass":
        return nn.functional.cross_entropy(output, target)
    if table.target.task == "binary":
        return nn.functional.binary_cross_entropy_with_logits(output[:, 0], target.float())
    return nn.functional.mse_loss(output[:, 0], target)


def rate(step: int, steps: int) -> float:
    """Learning rate of a step: a rise over WARMUP of the steps, then half a cosine down to (nearly) nothing."""
    rise = max(1, round(WARMUP * steps))
    if step < rise:
        return PEAK_RATE * (step + 1) / rise
    done = min(1.0, (step - rise) / max(1, steps - rise))
    return PEAK_RATE * max(0.01, (1 + math.cos(math.pi * done)) / 2)


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW, fused where this torch and device have that: 2-5 times faster on a CPU."""
    kept = list(parameters)
    try:
        return torch.optim.AdamW(kept, lr=PEAK_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    except (RuntimeError, ValueError):
        return torch.optim.AdamW(kept, lr=PEAK_RATE, weight_decay=WEIGHT_DECAY)


def applied_steps(optimizer: torch.optim.Optimizer) -> int:
    """Steps in the optimizer's own count, which travels with its state to a node that joins and through a resume.

    A count kept by this script would differ between nodes after one is lost, and so would the learning rate.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in optimizer.state:
                return int(optimizer.state[parameter]["step"])
    return 0


@torch.no_grad()
def outputs(model: nn.Module, numbers: Tensor, categories: Tensor) -> Tensor:
    """What the model says, in chunks: (n, outputs) float64 on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    chunks = [slice(start, start + CHUNK) for start in range(0, len(numbers), CHUNK)]
    return torch.cat([model(numbers[c].to(device), categories[c].to(device)).cpu() for c in chunks]).double()


def probabilities(table: Table, output: Tensor) -> Tensor:
    """(n, classes) of a classification's outputs."""
    if table.target.task == "multiclass":
        return output.softmax(dim=1)
    positive = output[:, 0].sigmoid()
    return torch.stack([1 - positive, positive], dim=1)


def values(table: Table, output: Tensor) -> Tensor:
    """(n,) in the target's own unit, of a regression's outputs."""
    return output[:, 0] * table.target.std + table.target.mean


def evaluate(table: Table, model: nn.Module, train_target: Tensor, valid: Split) -> dict[str, float | dict[str, float]]:
    """Scores on the validation rows, and the baseline's on the same rows."""
    output = outputs(model, valid.numbers, valid.categories)
    if table.target.classes:
        truth = valid.target.tolist()
        baseline = metrics.class_baseline(train_target.tolist(), truth, len(table.target.classes))
        return {**metrics.class_scores(probabilities(table, output).tolist(), truth), "baseline": baseline}
    known = values(table, valid.target.double()[:, None]).tolist()
    baseline = metrics.value_baseline(table.target.mean, known)
    return {**metrics.value_scores(values(table, output).tolist(), known), "baseline": baseline}


def main(arguments: list[str]) -> None:
    """Train, then on rank 0 score and save."""
    chain = daisychain.init()
    folder = find_folder(arguments, Path.cwd(), COLUMNS_FILE)
    table = read_table(folder)
    train = load(table, folder, "train")
    batch = int(chain.option("batch", None) or default_batch(table.rows_train))
    epochs = int(chain.option("epochs", None) or default_epochs(table.rows_train, batch))
    torch.manual_seed(chain.seed)
    model: nn.Module = build(table).to(chain.device)
    adam = make_optimizer(model.parameters())
    loader: Iterable[list[Tensor]] = DataLoader(TensorDataset(*train), batch_size=batch, shuffle=True)
    steps = epochs * math.ceil(table.rows_train / batch)
    model, optimizer, loader = chain.prepare(model, adam, loader)
    for _ in chain.epochs(epochs):
        for numbers, categories, target in loader:
            for group in adam.param_groups:
                group["lr"] = rate(applied_steps(adam), steps)
            output = model(numbers.to(chain.device), categories.to(chain.device))
            loss = loss_of(table, output, target.to(chain.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            chain.log(loss=loss)
    if chain.is_main:
        plain = chain.unwrap(model)
        chain.report_scores(evaluate(table, plain, train.target, load(table, folder, "valid")))
        chain.save(model, MODEL_FILE)
        described = Path(chain.folder) / COLUMNS_FILE
        if described.resolve() != (folder / COLUMNS_FILE).resolve():
            shutil.copyfile(folder / COLUMNS_FILE, described)


if __name__ == "__main__":
    main(sys.argv[1:])
