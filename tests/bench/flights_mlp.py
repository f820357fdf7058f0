"""A script for slow_links.py: a dense network of chosen width on the arrays that the tabular job has prepared.

Arguments: the sizes of the hidden layers. Batch, rate, optimizer and scores as in the tabular job.
"""

import math
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import daisychain
from daisychain.jobs.folders import find_folder
from daisychain.jobs.tabular import train as job


def main() -> None:
    chain = daisychain.init()
    folder = find_folder([], Path.cwd(), job.COLUMNS_FILE)
    table = job.read_table(folder)
    rows = job.load(table, folder, "train")
    batch = int(chain.option("batch", None) or job.default_batch(table.rows_train))
    epochs = int(chain.option("epochs", None) or 8)
    torch.manual_seed(chain.seed)
    job.hidden_sizes = lambda _: tuple(map(int, sys.argv[1:]))
    model = job.build(table)
    adam = job.make_optimizer(model.parameters())
    loader = DataLoader(TensorDataset(*rows), batch_size=batch, shuffle=True)
    steps = epochs * math.ceil(table.rows_train / batch)
    model, optimizer, loader = chain.prepare(model, adam, loader)
    for _ in chain.epochs(epochs):
        for numbers, categories, target in loader:
            for group in adam.param_groups:
                group["lr"] = job.rate(job.applied_steps(adam), steps)
            loss = job.loss_of(table, model(numbers, categories), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            chain.log(loss=loss)
    if chain.is_main:
        valid = job.load(table, folder, "valid")
        chain.report_scores(job.evaluate(table, chain.unwrap(model), rows.target, valid))


if __name__ == "__main__":
    main()
