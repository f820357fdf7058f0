"""Ranks on unlike devices, as far as it can be tried without a GPU: sums by way of a copy, unlike rounding."""

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from daisychain.train import api, exchange, steps
import daisychain

pretend, seat = sys.argv[1], api.Process.task.rank
if pretend == "all" or seat == 0:
    exchange.needs_staging = lambda values: True
    # pretends to be a GPU towards the others
    known = steps.Steps.standing
    steps.Steps.standing = lambda self: known(self)._replace(gpu=1)
chain = daisychain.init()
assert chain.device == torch.device("cpu")
generator = torch.Generator().manual_seed(5)
x = torch.randn(430, 5, generator=generator)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(
    nn.Linear(5, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model, optimizer, loader = chain.prepare(model, optimizer, loader)
for epoch in chain.epochs(2):
    for a, b in loader:
        if seat == 1 and pretend == "some" and chain._steps.finished == 3:
            with torch.no_grad():
                model[1].bias.add_(1e-7)  # rounds in another way
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chain.log(loss=loss)
torch.save(model.state_dict(), f"end-{seat}.pt")
"""


def train(start, tmp_path, pretend, size):
    crew = start(SCRIPT, size, args=[pretend], settings={"seed": 3, "rebalance": False})
    ended = crew.finish()
    assert [code for code, _ in ended] == [0] * size, crew[0].log.read_text()
    saved = [torch.load(tmp_path / f"end-{seat}.pt", weights_only=True) for seat in range(size)]
    return saved, [report["text"] for report in ended[0][1] if report["kind"] == "note"], ended


def largest_difference(one, other):
    floats = [name for name in one if one[name].is_floating_point()]
    return max(float((one[k] - other[k]).abs().max() / other[k].abs().max()) for k in floats)


def test_sums_by_way_of_a_copy_are_those_of_one_machine(start, tmp_path):
    (alone,), _, _ = train(start, tmp_path, "all", 1)
    three, notes, _ = train(start, tmp_path, "all", 3)
    assert largest_difference(three[0], alone) <= 1e-5
    assert all(torch.equal(three[0][k], other[k]) for other in three[1:] for k in three[0])
    assert not any("differ" in note for note in notes)


def test_ranks_on_unlike_devices_may_differ_in_the_last_bits_and_form_no_new_generation(start, tmp_path):
    some, notes, ended = train(start, tmp_path, "some", 3)
    assert 0 < largest_difference(some[1], some[2]) < 1e-3
    assert not any("differ" in note for note in notes)
    assert [len([r for r in reports if r["kind"] == "joined"]) for _, reports in ended] == [1, 1, 1]


def test_a_task_names_its_device(monkeypatch):
    from daisychain.train import api
    from daisychain.train.task import Task

    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    api._settle(torch.device(Task(device="cuda:0").device))()
    api._settle(torch.device(Task().device))()
    assert waited == [torch.device("cuda:0")]


def test_state_of_a_fused_optimizer_goes_to_its_parameters_device():
    from daisychain.train.state import Training

    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    captured = Training([model], [optimizer], []).capture()
    fresh = nn.Linear(3, 2)
    other = torch.optim.AdamW(fresh.parameters(), 0.01, fused=True)
    Training([fresh], [other], []).restore(captured)
    assert all(state["step"].device == p.device for p, state in other.state.items())
