"""Trying the run's own model before its first step: what is found out, and that nothing of it stays."""

import random
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from daisychain.plan.shares import Cost
from daisychain.train import trial
from daisychain.train.batches import SharedLoader, piece
from daisychain.train.exchange import Exchange
from daisychain.train.state import Training, pack
from daisychain.train.trial import PARTS, Bench, Measured, Memory, Trial, fits, line, most_samples

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(trial, "EACH_S", 0.01)
    monkeypatch.setattr(trial, "ROUNDS_S", 0.001)
    monkeypatch.setattr(trial, "TOGETHER_S", 0.05)


class Course:
    """A rank with 8 of a batch's 12 samples."""

    rank = 0
    shares_now = (8, 4)

    def __init__(self):
        self.piece_now = piece(torch.arange(12), self.shares_now, 0)
        self.weighed, self.apart = [], False

    def weigh(self, piece):
        assert self.apart
        self.weighed.append(len(piece.rows))

    @contextmanager
    def set_aside(self, sums=None):
        self.apart = True
        yield
        self.apart = False


class Setting:
    """A model with everything that a step changes."""

    def __init__(self, model=None, **more):
        torch.manual_seed(1)
        self.model = model or nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.training = Training([self.model], [self.optimizer], [])
        self.course = Course()
        self.bench = Bench(self.training, Exchange(), self.course, **more)
        data = TensorDataset(torch.randn(40, 3), torch.zeros(40))
        self.loader = SharedLoader(DataLoader(data, batch_size=12), batch=None, seed=0)
        self.x = torch.randn(8, 3)

    def run(self, *args, **kwargs):
        buckets = [[p] for p in reversed(list(self.model.parameters()))]
        return self.bench.run(self.model, args or (self.x,), kwargs, self.loader, buckets)


def test_a_model_that_can_be_tried_has_a_cost_for_its_share_and_for_the_whole_batch():
    setting = Setting()
    found = setting.run()
    assert found.known
    assert not found.why
    (mine,) = found.ranks
    assert mine.per_sample_ps > 0
    assert found.alone_s > 0
    assert found.together.shares == (12,), "of those that were tried"
    assert found.together.step_s > 0
    assert 0 < mine.early < PARTS, "the first bucket leaves before backward is over"
    assert set(setting.course.weighed) == {8, 12}
    assert found.buckets == tuple(4 * p.numel() for p in reversed(list(setting.model.parameters())))
    report = found.report(4)
    assert report["kind"] == "trial"
    assert (report["sums"], report["why"]) == (4, "")
    assert len(report["costs"]) == len(report["early"]) == len(report["caps"]) == 1


@pytest.mark.parametrize("warm", [False, True])
def test_nothing_of_it_stays(warm):
    setting = Setting()
    if warm:
        setting.model(setting.x).sum().backward()
        setting.optimizer.step()
    state, grads = (
        setting.training.capture(),
        [p.grad if p.grad is None else p.grad.clone() for p in setting.model.parameters()],
    )
    python = random.getstate()
    setting.run()
    assert torch.equal(pack(setting.training.capture()), pack(state))
    assert random.getstate() == python
    for parameter, grad in zip(setting.model.parameters(), grads, strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)


def test_inputs_by_name_and_things_that_are_no_tensors_are_taken_along():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, scale, *, x, note):
            assert note == "as is"
            return {"out": [self.layer(x) * scale]}

    setting = Setting(Named())
    assert setting.run(2.0, x=setting.x, note="as is").known


class Odd(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.layer, self.how = nn.Linear(3, 2), forward

    def forward(self, x):
        return self.how(self.layer, x)


@pytest.mark.parametrize(
    ("model", "inputs", "why"),
    [
        (Odd(lambda layer, x: layer(x)), torch.randn(3, 8, 3), "none of its inputs has the batch's 8 samples"),
        (Odd(lambda layer, x: layer(x).detach()), torch.randn(8, 3), "none of its outputs depends on its parameters"),
        (Odd(lambda layer, x: 1 / 0), torch.randn(8, 3), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_model_that_cannot_be_tried_says_why(model, inputs, why):
    setting = Setting(model)
    before = setting.training.capture()
    found = setting.run(inputs)
    assert not found.known
    assert why in found.why
    assert why in found.report(0)["why"]
    assert torch.equal(pack(setting.training.capture()), pack(before))


def test_two_models_are_not_tried():
    setting = Setting()
    setting.training.models.append(nn.Linear(1, 1))
    assert setting.run().why == "the script trains 2 models"


def test_no_more_samples_than_may_be_computed_at_once():
    setting = Setting(most=6)
    setting.run()
    assert set(setting.course.weighed) == {3, 6}


def test_a_node_without_memory_for_the_whole_batch_is_not_tried_on_it(monkeypatch):
    setting = Setting()
    monkeypatch.setattr(trial, "fits", lambda *_: False)
    found = setting.run()
    assert found.ranks[0].cap == 8
    assert found.alone_s == 0


def test_a_slowed_rank_takes_as_much_longer():
    slow, fast = (Setting(nn.Linear(3, 2), slowdown=by).run().ranks[0].cost.step_s(12) for by in (40.0, 1.0))
    assert slow > 4 * fast


@pytest.mark.parametrize(
    ("points", "cost"),
    [
        ([(10, 2.0), (20, 3.0)], Cost(1.0, 0.1)),
        ([(10, 1.0), (15, 9.0), (20, 2.0)], Cost(0.0, 0.1)),
        ([(10, 1.0)], Cost(0.0, 0.1)),
        ([(10, 1.0), (20, 3.0)], Cost(0.0, 0.15)),
        ([(10, 3.0), (20, 2.0)], Cost(1.8, 0.01)),
    ],
)
def test_the_line_through_what_was_measured_is_never_below_zero(points, cost):
    found = line(points)
    assert (found.fixed_s, found.per_sample_s) == pytest.approx((cost.fixed_s, cost.per_sample_s))


def test_memory_is_judged_by_what_fewer_samples_took():
    before, after = Memory(1000, 0), Memory(1100, 1000)
    assert fits(50, 10, before, after), "400 more of 1000"
    assert not fits(61, 10, before, after)
    assert fits(10**9, 10, after, after), "nothing was taken"


def test_a_node_holds_what_its_free_memory_does_beside_what_is_taken():
    mb = 2**20
    few, many = (10, Memory(100 * mb, 0)), (30, Memory(120 * mb, 400 * mb))
    assert most_samples([few, many]) == 230, "1 MB each, and 200 are free"
    assert most_samples([few]) == 0
    assert most_samples([few, (30, Memory(101 * mb, 400 * mb))]) == 0, "that may as well be the allocator's"


def test_where_an_exchange_takes_longer_than_there_is_time_for_nothing_is_made_together(monkeypatch):
    monkeypatch.setattr(trial, "TOGETHER_S", 0.0)
    assert Setting().run().together is None


def test_the_whole_batch_is_not_made_alone_where_it_may_not_be_computed_at_once():
    assert Setting(most=6).run().alone_s == 0


def test_a_step_that_would_take_too_long_is_not_made_alone(monkeypatch):
    monkeypatch.setattr(trial, "PATIENCE_S", 0.0)
    assert Setting().run().alone_s == 0


def test_all_ranks_must_be_known():
    good = Measured(1, 0, 5)
    assert Trial((good, good), (4,), 0.1, 0.01).known
    other = Trial((good, Measured()), (4,), 0.1, 0.01)
    assert not other.known
    assert other.report(0)["why"] == "another node couldn't try its model"


RANKS = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import daisychain

chain = daisychain.init()
x = torch.randn(100, 6, generator=torch.Generator().manual_seed(5))
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=20, shuffle=True)
model, optimizer, scheduler, loader = chain.prepare(model, optimizer, scheduler, loader)
for epoch in chain.epochs(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        chain.log(loss=loss)
chain.save(model, f"model-{sys.argv[1]}.pt")
"""


def test_ranks_that_have_tried_their_model_train_as_if_they_had_not(start, tmp_path):
    crew = start(RANKS, 2, args=("tried",), settings={"trial": True, "rebalance": False})
    (code, said), (other, _) = crew.finish()
    assert (code, other) == (0, 0), said[-3:]
    (report,) = [line for line in said if line["kind"] == "trial"]
    assert not report["why"]
    assert len(report["costs"]) == 2
    assert report["exchange_s"] > 0
    assert report["latency_s"] > 0
    assert report["sums"] == 2
    assert report["alone_s"] > 0
    assert sum(report["together"]["shares"]) == 20
    assert report["together"]["step_s"] > 0
    assert [line["step"] for line in said if line["kind"] == "step"] == list(range(1, 16))
    alone = start(RANKS, 1, args=("plain",), name="plain.py")
    assert alone.finish()[0][0] == 0
    mine, theirs = (torch.load(tmp_path / "output" / f"model-{n}.pt", weights_only=True) for n in ("tried", "plain"))
    for name, value in theirs.items():
        assert (mine[name] - value).abs().max() <= 1e-5 * value.abs().max().clamp(min=1e-3)


def test_shares_follow_what_was_tried(start):
    # the formation's speeds say that the second rank is slow; the trial finds that the first one is
    crew = start(
        RANKS, 2, args=("x",), settings={"trial": True}, speeds=((0.0, 0.01), (0.0, 0.19)), slowdowns=(12.0, 1.0)
    )
    (_, said), _ = crew.finish()
    steps = [line for line in said if line["kind"] == "step"]
    assert steps[0]["shares"] == [19, 1]
    assert steps[1]["shares"][1] > 5
    (change,) = [line for line in said if line["kind"] == "shares"][:1]
    assert change["reason"] == "the model itself was tried on every node"
