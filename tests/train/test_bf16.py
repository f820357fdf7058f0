"""Gradients in 16 bits on the wire, with real ranks on loopback: replicas stay equal and end near the exact ones."""

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
generator = torch.Generator().manual_seed(5)
x = torch.randn(200, 5, generator=generator)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model, optimizer, loader = chain.prepare(model, optimizer, loader)
seen = []
for epoch in chain.epochs(int(sys.argv[1])):
    for a, b in loader:
        time.sleep(float(sys.argv[2]))
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        seen.append(all(p.grad.dtype == torch.float32 for p in model.parameters()))
        optimizer.step()
        chain.log(loss=loss)
assert all(seen)
torch.save(model.state_dict(), f"{sys.argv[3]}-{chain.rank}.pt")
"""


def run(start, tmp_path, sync, name, epochs=10, pause=0.0, meanwhile=lambda crew: None, survivors=(0, 1, 2)):
    crew = start(SCRIPT, 3, args=[str(epochs), str(pause), name], settings={"seed": 3, "sync": sync})
    meanwhile(crew)
    ended = {seat: crew[seat].finish() for seat in survivors}
    assert [code for code, _ in ended.values()] == [0] * len(survivors), crew[survivors[0]].log.read_text()
    return crew, [torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True) for rank in range(len(survivors))]


def test_replicas_stay_equal_and_the_model_is_nearly_the_exact_one(start, tmp_path):
    crew, states = run(start, tmp_path, "bf16", "rounded")
    _, exact = run(start, tmp_path, "exact", "exact")
    for state in states[1:]:
        for name, value in states[0].items():
            assert torch.equal(value, state[name]), name
    assert not torch.equal(states[0]["0.weight"], exact[0]["0.weight"])
    for name, value in exact[0].items():
        assert (value - states[0][name]).abs().max() <= 0.02 * value.abs().max(), name
    texts = [report["text"] for report in crew[0].of_kind("note")]
    assert any("bf16" in text and "approximate" in text for text in texts)
    assert not any("differ" in text for text in texts)


def test_a_killed_rank_is_left_behind(start, tmp_path):
    def kill(crew):
        crew[2].wait_for("step", 20)
        crew[2].kill()

    crew, states = run(start, tmp_path, "bf16", "rounded", pause=0.01, meanwhile=kill, survivors=(0, 1))
    assert set(range(25, 201)) <= {report["step"] for report in crew[0].of_kind("step")}
    assert torch.equal(states[0]["0.weight"], states[1]["0.weight"])


def test_a_bucket_is_rounded_once_after_it_is_weighted():
    from daisychain.train.reducer import Bucket

    parameter = nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.rand(1000)
    bucket = Bucket([parameter], 0, torch.bfloat16)
    bucket.fill(0.3)
    assert torch.equal(bucket.buffer, (parameter.grad * 0.3).bfloat16())
    bucket.hand_out([True])
    assert torch.equal(parameter.grad, bucket.buffer.float())
