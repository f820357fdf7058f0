"""What the tests of the jobs share: a made-up table, a chain of one that needs no agent, and child processes."""

import json
import random
import subprocess
import sys

import pytest


@pytest.fixture
def guests():
    """Lines of a table whose `paid` follows from its other columns; with gaps, an identifier and a constant."""
    dice = random.Random(1)
    lines = ["id,colour,size,when,name,always,paid,price"]
    for i in range(400):
        colour, size = dice.choice(["red", "green", "blue"]), dice.uniform(0, 10)
        paid = (size > 5) != (colour == "red")
        price = 3 * size + (10 if colour == "red" else 0)
        shown = "" if i % 50 == 7 else f"{size:.3f}"
        lines.append(f"{i},{colour},{shown},2024-{1 + i % 12:02}-03,guest {i},x,{paid},{price:.4f}")
    return lines


@pytest.fixture
def child():
    """Run a job's child with a request; returns its exit code and its lines."""

    def run(module, request, timeout=60):
        command = [sys.executable, "-m", f"daisychain.jobs.{module}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            lines = [json.loads(line) for line in process.stdout]
            return process.wait(timeout), lines

    return run


@pytest.fixture
def lone_chain(tmp_path, monkeypatch):
    """daisychain.init() gives a chain of one, whose answers can be looked at afterwards."""
    import torch

    import daisychain

    class Chain:
        device = torch.device("cpu")
        rank, world_size, is_main, seed = 0, 1, True, 0

        def __init__(self):
            self.folder = tmp_path / "run"
            self.folder.mkdir()
            self.options, self.losses, self.scores = {}, [], {}

        def option(self, name, default):
            return self.options.get(name, default)

        def prepare(self, model, optimizer, loader):
            return model, optimizer, loader

        def epochs(self, count):
            return range(count)

        def log(self, loss):
            self.losses.append(loss.item())

        def unwrap(self, model):
            return model

        def save(self, model, path):
            torch.save(model.state_dict(), self.folder / path)

        def report_scores(self, scores):
            self.scores = scores

    chain = Chain()
    monkeypatch.setitem(vars(daisychain), "init", lambda: chain)
    return chain
