"""Ranks that are killed, frozen and come back: the others go on, and the model is that of an undisturbed run."""

import os
import signal
import time

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(43, 5, generator=generator)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model, optimizer, loader, scheduler = chain.prepare(model, optimizer, loader, scheduler)
for epoch in chain.epochs(int(sys.argv[1])):
    for x, y in loader:
        if not os.path.exists("hurry"):
            time.sleep(float(sys.argv[2]))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        chain.log(loss=loss)
    if chain.is_main:
        print("epoch", epoch, "is over", flush=True)
torch.save({**model.state_dict(), "rate": torch.tensor(scheduler.get_last_lr())}, f"{sys.argv[3]}-{chain.rank}.pt")
chain.save(model)
chain.report_scores({"done": 1})
"""


def undisturbed(epochs):
    """Plain torch, no DaisyChain: the same order of batches."""
    from daisychain.train.batches import order

    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(43, 5, generator=generator)
    y = x.sum(1, keepdim=True).sin()
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for epoch in range(epochs):
        for rows in order(43, 3, epoch, shuffle=True).split(10):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    return {**model.state_dict(), "rate": torch.tensor(scheduler.get_last_lr())}


def difference(path, wanted):
    """Largest difference of saved tensors from those wanted, relative to the largest of each tensor."""
    saved = torch.load(path, weights_only=True)
    return max(float((saved[k] - wanted[k]).abs().max() / wanted[k].abs().max()) for k in wanted)


def applied(crew, seats):
    """Steps in the order in which each seat applied them."""
    return {seat: [r["step"] for r in crew[seat].of_kind("step")] for seat in seats}


def begin(start, epochs=12, pause=0.01, size=3, **more):
    return start(SCRIPT, size, args=[str(epochs), str(pause), "end"], settings={"seed": 3}, **more)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_left_behind_at_once_and_the_model_is_the_same(start, tmp_path, victim):
    crew = begin(start)
    crew[victim].wait_for("step", 17)
    others = [seat for seat in range(3) if seat != victim]
    crew[victim].kill()
    killed = time.monotonic()
    seen = len(crew[others[0]].of_kind("step"))
    crew[others[0]].wait_for("step", seen + 2)
    assert time.monotonic() - killed < 1
    ended = {seat: crew[seat].finish() for seat in others}
    assert [code for code, _ in ended.values()] == [0, 0], crew[others[0]].log.read_text()
    found = applied(crew, others)
    for steps in found.values():
        assert sorted(steps) == steps
        # the step in flight may come to one of them with the other's state
        assert len(set(range(1, 61)) - set(steps)) <= 1
    assert set().union(*found.values()) == set(range(1, 61))
    for rank in range(2):
        assert difference(tmp_path / f"end-{rank}.pt", undisturbed(12)) <= 1e-5
    assert crew[others[0]].of_kind("scores")


def test_a_rank_comes_back_and_gets_the_state_of_the_others(start, tmp_path):
    crew = begin(start, epochs=60, pause=0.05, restarts=True)
    old = crew[1]
    old.wait_for("step", 10)
    old.kill()
    while crew[1] is old:
        time.sleep(0.02)
    crew[1].wait_for("step", 3)
    (tmp_path / "hurry").touch()
    first = crew[1].of_kind("step")[0]
    # where the others were, not at the beginning; it may be back before they have done another step
    assert first["step"] > 10
    assert len(first["shares"]) == 3
    assert first["epoch"] == (first["step"] - 1) // 5
    assert [code for code, _ in crew.finish()] == [0, 0, 0], crew[1].log.read_text()
    assert "epoch" not in crew[1].log.read_text()
    for rank in range(3):
        assert difference(tmp_path / f"end-{rank}.pt", undisturbed(60)) <= 1e-5


def test_a_frozen_rank_is_left_behind_once_it_is_missed_and_comes_back_when_it_thaws(start, tmp_path):
    crew = begin(start, epochs=60, pause=0.02)
    crew[2].wait_for("step", 10)
    os.killpg(crew[2].process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    stuck = len(crew[0].of_kind("step"))
    missed = time.monotonic()
    with crew._lock:
        crew.decisions.frozen(2, missed)
    crew.act()
    crew[0].wait_for("step", stuck + 3)
    assert time.monotonic() - missed < 1
    os.killpg(crew[2].process.pid, signal.SIGCONT)
    crew[2].wait_for("joined", 2)
    (tmp_path / "hurry").touch()
    assert [code for code, _ in crew.finish()] == [0, 0, 0], crew[2].log.read_text()
    for rank in range(3):
        assert difference(tmp_path / f"end-{rank}.pt", undisturbed(60)) <= 1e-5


def test_when_all_are_told_to_save_a_later_run_goes_on_at_the_very_sample(start, tmp_path):
    crew = begin(start, checkpoints=str(tmp_path / "saved"))
    crew[0].wait_for("step", 23)
    crew[0].kill()
    crew.restarts = False
    crew[1].wait_for("joined", 2)
    crew.order((1, 2), {"kind": "boundary", "generation": 2})
    crew.order((1, 2), {"kind": "save"})
    assert [crew[seat].finish()[0] for seat in (1, 2)] == [0, 0]
    reached = max(report["step"] for report in crew[1].of_kind("step"))
    assert reached < 60
    later = begin(start, size=2, checkpoints=str(tmp_path / "saved"), resume=True)
    # seat 0 has an older checkpoint or none: it gets the state from seat 1
    assert [code for code, _ in later.finish()] == [0, 0], later[0].log.read_text()
    assert later[1].of_kind("step")[0]["step"] == reached + 1
    assert difference(tmp_path / "end-0.pt", undisturbed(12)) <= 1e-5
    assert later[0].of_kind("scores")[0]["scores"] == {"done": 1}


def test_the_last_one_goes_on_alone(start, tmp_path):
    crew = begin(start, epochs=12)
    crew[0].wait_for("step", 8)
    crew[1].kill()
    crew[0].wait_for("step", 20)
    crew[2].kill()
    assert crew[0].finish()[0] == 0, crew[0].log.read_text()
    assert crew[0].of_kind("step")[-1]["shares"] == [3]
    assert difference(tmp_path / "end-0.pt", undisturbed(12)) <= 1e-5


TWICE = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(43, 5, generator=generator)
first, second = nn.Linear(5, 4), nn.Linear(4, 1)
optimizers = [torch.optim.Adam(first.parameters(), 0.01), torch.optim.Adam(second.parameters(), 0.01)]
loader = DataLoader(TensorDataset(x), batch_size=10, shuffle=True)
first, second, *optimizers, loader = chain.prepare(first, second, *optimizers, loader)
number = 0
for epoch in chain.epochs(12):
    for (x,) in loader:
        time.sleep(0.01)
        if sys.argv[1] == "two networks":
            for network, optimizer in ((first, optimizers[0]), (second, optimizers[1])):
                loss = second(first(x).tanh()).square().mean()
                first.zero_grad(); second.zero_grad()
                loss.backward()
                optimizer.step()
        else:
            loss = second(first(x).tanh()).square().mean()
            loss.backward()
            number = (chain._steps.finished + 1) % 3
            if number == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        chain.log(loss=loss)
torch.save({**first.state_dict(), "b": second.weight.detach()}, f"{sys.argv[2]}-{chain.rank}.pt")
"""


@pytest.mark.parametrize("kind", ["two networks", "gradients of three batches"])
def test_what_steps_more_or_less_than_once_a_batch_survives_too(start, tmp_path, kind):
    crew = start(TWICE, 3, args=[kind, "three"], settings={"seed": 3})
    crew[2].wait_for("step", 13)
    crew[2].kill()
    assert [crew[seat].finish()[0] for seat in (0, 1)] == [0, 0], crew[0].log.read_text()
    alone = start(TWICE, 1, args=[kind, "one"], settings={"seed": 3})
    assert alone[0].finish()[0] == 0, alone[0].log.read_text()
    assert difference(tmp_path / "three-0.pt", torch.load(tmp_path / "one-0.pt", weights_only=True)) <= 1e-5
