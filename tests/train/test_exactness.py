"""Three ranks against one, everything at once: rebalancing, BatchNorm, dropout, tokens, clipping, a scheduler."""

import pytest
import torch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

kind = sys.argv[1]
chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(215, 6, 3, generator=generator)
y = torch.randint(0, 4, (215, 6), generator=generator)
y[torch.rand(215, 6, generator=generator) < 0.4] = -100
layers = {
    "batch norm": lambda: [nn.BatchNorm1d(16)],
    "dropout": lambda: [nn.Dropout(0.3)],
    "parts": lambda: [nn.Dropout(0.3)],
    "parts of tokens": lambda: [nn.Dropout(0.3)],
    "all": lambda: [nn.BatchNorm1d(16), nn.Dropout(0.3)],
}.get(kind, lambda: [])()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 16), nn.Sequential(*layers), nn.Linear(16, 4)
    def forward(self, x):
        h = self.first(x).tanh().transpose(1, 2)
        return self.last(self.middle(h).transpose(1, 2))

model = Net()
parts = kind.startswith("parts")
tokens = kind in ("tokens", "all", "parts of tokens")
optimizer = torch.optim.Adam(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=66)
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
model, optimizer, scheduler, loader = chain.prepare(model, optimizer, scheduler, loader)

if chain.world_size > 1 and chain.option("rebalance"):
    # other shares every 5 steps, alike on all ranks
    chain._steps.ensure_formed()
    class Restless:
        def __init__(self):
            self.seen = 0
        def observe(self, shares, batch, times, step_s):
            self.seen += 1
            turn = self.seen // 5
            cuts = [(14, 4, 2), (1, 9, 10), (20, 0, 0), (6, 7, 7), (0, 3, 17)]
            return (cuts[turn % 5], "restless") if self.seen % 5 == 0 else None
    chain._steps._balancer = Restless()

for epoch in chain.epochs(6):
    for x, y in loader:
        out = model(x)
        if tokens:
            chain.count((y != -100).sum())
            # a piece without any target has a mean of nothing
            total = nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")
            loss = total / (y != -100).sum().clamp(min=1)
        else:
            loss = (out - 1).square().mean()
        if not parts or epoch % 2:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if parts:
            model.zero_grad()
        chain.log(loss=loss)
torch.save({**model.state_dict(), "rate": torch.tensor(scheduler.get_last_lr())}, f"{sys.argv[2]}-{chain.rank}.pt")
"""


@pytest.mark.parametrize("kind", ["shares", "batch norm", "dropout", "tokens", "all", "parts", "parts of tokens"])
def test_three_ranks_train_the_model_of_one(start, tmp_path, kind):
    """Adam with clipping and a scheduler in each; the chain of one node is the reference, plain torch below."""
    follows, parts = kind in ("shares", "all"), kind.startswith("parts")
    settings = {"seed": 3, "rebalance": follows or parts, **({"micro": 5} if parts else {})}
    three = start(SCRIPT, 3, args=[kind, "three"], settings=settings)
    assert [code for code, _ in three.finish()] == [0, 0, 0], three[0].log.read_text()
    one = start(SCRIPT, 1, args=[kind, "one"], settings={"seed": 3})
    assert [code for code, _ in one.finish()] == [0], one[0].log.read_text()
    wanted = torch.load(tmp_path / "one-0.pt", weights_only=True)
    if follows or parts:
        assert len(three[0].of_kind("shares")) >= 10
    for rank in range(3):
        found = torch.load(tmp_path / f"three-{rank}.pt", weights_only=True)
        for name, tensor in wanted.items():
            scale = tensor.abs().max().clamp(min=1e-3) if tensor.is_floating_point() else 1
            assert float((found[name] - tensor).abs().max() / scale) <= 1e-5, name


def test_a_chain_of_one_node_in_parts_trains_the_model_of_one_at_once(start, tmp_path):
    ranks = [
        start(SCRIPT, 1, args=["parts of tokens", name], settings={"seed": 3, **more})
        for name, more in (("parts", {"micro": 3}), ("whole", {}))
    ]
    assert [code for rank in ranks for code, _ in rank.finish()] == [0, 0], ranks[0][0].log.read_text()
    found, wanted = (torch.load(tmp_path / f"{name}-0.pt", weights_only=True) for name in ("parts", "whole"))
    losses = [[report["loss"] for report in rank[0].of_kind("step")] for rank in ranks]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for name, tensor in wanted.items():
        scale = tensor.abs().max().clamp(min=1e-3)
        assert float((found[name] - tensor).abs().max() / scale) <= 1e-5, name


def test_local_steps_in_parts_are_those_at_once_but_for_rounding(start, tmp_path):
    settings = {"seed": 3, "rebalance": False, "sync": "local:4"}
    for name, more in (("parts", {"micro": 3}), ("whole", {})):
        ranks = start(SCRIPT, 2, args=["parts", name], settings=settings | more)
        assert [code for code, _ in ranks.finish()] == [0, 0], ranks[0].log.read_text()
    found, wanted = (torch.load(tmp_path / f"{name}-0.pt", weights_only=True) for name in ("parts", "whole"))
    for name, tensor in wanted.items():  # averages travel in 16 bits
        torch.testing.assert_close(found[name], tensor, rtol=0.02, atol=0.002)
