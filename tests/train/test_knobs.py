"""Knobs set by measurement: what may be fused, the decisions, and that nothing but speed depends on them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from daisychain.train import knobs
from daisychain.train.knobs import Link, Timing

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

KINDS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
]


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


def train(model, optimizer, steps=20):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 5, generator=generator)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_fused_steps_give_the_same_parameters(kind, settings):
    plain, fused = net(), net()
    train(plain, kind(plain.parameters(), **settings))
    optimizer = kind(fused.parameters(), **settings)
    knobs.fuse([optimizer])
    train(fused, optimizer)
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_timing_an_optimizer_changes_nothing_of_it(kind, settings):
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    optimizer = kind(model.parameters(), **settings)
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    timing = knobs.time_step(knobs.fusible([optimizer], [model]))
    assert timing.plain_ns > 0
    assert timing.fused_ns > 0
    assert not optimizer.state
    assert [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups] == groups
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_groups_are_timed_with_their_own_settings_and_a_scheduler():
    model = net()
    optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters()}], 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert knobs.time_step(knobs.fusible([optimizer], [model])).fused_ns > 0


def test_of_a_large_parameter_only_a_part_is_copied(monkeypatch):
    monkeypatch.setattr(knobs, "ELEMENTS", 100)
    sizes = []
    monkeypatch.setattr(knobs, "_timed", lambda copies: sizes.append(
        [p.numel() for copy in copies for group in copy.param_groups for p in group["params"]]
    ) or 1)  # fmt: skip
    model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 1000), nn.Linear(1000, 1))
    knobs.time_step([torch.optim.SGD(model.parameters(), 0.1)])
    assert {tuple(size) for size in sizes} == {(40, 5, 55)}


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1, fused=False),
        lambda p: torch.optim.SGD(p, 0.1, fused=True),
        lambda p: torch.optim.Adam(p, 0.1, foreach=True),
        lambda p: torch.optim.Adam(p, 0.1, differentiable=True),
        lambda p: torch.optim.Adam(p, torch.tensor(0.1)),
        lambda p: torch.optim.RMSprop(p, 0.1),
        lambda p: type("Own", (torch.optim.SGD,), {})(p, 0.1),
    ],
)
def test_what_the_script_has_decided_stays(optimizer):
    model = net()
    made = optimizer(model.parameters())
    assert knobs.fusible([made], [model]) == []
    plain = torch.optim.SGD(model.parameters(), 0.1)
    assert knobs.fusible([made, plain], [model]) == [plain]


def test_an_optimizer_that_has_made_steps_stays_as_it_is():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, steps=1)
    assert knobs.fusible([optimizer], [model]) == []


def test_beside_sparse_gradients_nothing_is_fused():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    assert knobs.fusible([torch.optim.SGD(model.parameters(), 0.1)], [model]) == []


@pytest.mark.parametrize(
    ("timings", "fused"),
    [
        ([Timing(100, 50)], True),
        ([Timing(100, 95)], False),
        ([Timing(100, 200), Timing(1000, 500)], True),
        ([Timing(100, 50), Timing(1000, 1200)], False),
        ([Timing(100, 50), Timing()], False),
        ([Timing()], False),
    ],
)
def test_the_slowest_rank_decides_whether_steps_are_fused(timings, fused):
    assert knobs.fused_is_faster(timings) is fused
    assert knobs.fused_is_faster(timings[::-1]) is fused


@pytest.mark.parametrize(
    ("link", "size"),
    [
        (None, None),
        (Link(0.0006, 94e6), 507_600),  # three nodes on gigabit Ethernet
        (Link(0.010, 6e6), 540_000),  # on Wi-Fi
        (Link(0.0001, 10e6), 256 * 1024),
        (Link(0.5, 100e6), 25 * 1024 * 1024),
    ],
)
def test_a_bucket_is_as_small_as_the_latency_allows(link, size):
    assert knobs.bucket_bytes(link) == (None if size is None else pytest.approx(size, abs=1))


def test_without_others_there_is_no_link_to_time():
    assert knobs.time_link(SimpleNamespace(alone=True)) is None


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))
x = torch.randn(40, 5, generator=torch.Generator().manual_seed(5))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=10, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, loader = chain.prepare(model, optimizer, loader)
for epoch in chain.epochs(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
chain.save(model, f"{chain.option('name')}.pt")
"""


def test_all_ranks_take_the_same_knobs_and_the_result_is_that_without(start, tmp_path):
    ranks = start(SCRIPT, 3, settings={"name": "tuned"})
    said = []
    for code, reports in ranks.finish():
        assert code == 0
        said += [report for report in reports if report["kind"] == "knobs"]
    assert len(said) == 3
    assert all(report["fused_ms"] > 0 and report["threads"] == 1 for report in said)
    assert len({(report["fused"], report["bucket_bytes"]) for report in said}) == 1
    assert said[0]["bucket_bytes"] >= 256 * 1024
    for code, reports in start(SCRIPT, 3, settings={"name": "plain", "tune": False}).finish():
        assert code == 0
        assert not [report for report in reports if report["kind"] == "knobs"]
    tuned, plain = (torch.load(tmp_path / "output" / f"{n}.pt", weights_only=True) for n in ("tuned", "plain"))
    for name in plain:
        torch.testing.assert_close(tuned[name], plain[name], atol=1e-5, rtol=1e-5)
