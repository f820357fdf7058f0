"""Gradients summed over unequal pieces, against one process with the whole batch: real gloo between threads."""

import copy
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from daisychain.train.exchange import Exchange
from daisychain.train.reducer import Reducer, _groups, fingerprint

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SHARES = (7, 2, 1)
X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X.sum(1, keepdim=True).sin()
REAL = (0.0, 1.5, 1000003.0)
"""Bulletins that come out wrong if they are rounded."""


class FakeSteps:
    """One rank's weight, and what the reducer told it."""

    in_parts = False

    def __init__(self, rank, weight):
        self.rank, self.weight = rank, weight
        self.calls, self.bulletins = [], []

    def ready(self):
        self.calls.append("ready")

    def reduced(self):
        self.calls.append("reduced")

    def bulletin(self):
        return [REAL[self.rank], 1.0]

    def posted(self, bulletin):
        self.calls.append("posted")
        self.bulletins.append(bulletin)


def in_threads(work, size):
    """work(rank) on each rank at once; what they return."""
    found, errors = [None] * size, []

    def run(rank):
        try:
            found[rank] = work(rank)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "the ranks wait for each other"
    return found


@pytest.fixture(scope="module")
def backends():
    """One ProcessGroupGloo a rank, all in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        store, limit = dist.HashStore(), timedelta(seconds=20)
        return in_threads(lambda rank: dist.ProcessGroupGloo(store, rank, len(SHARES), limit), len(SHARES))


class Rank:
    """One rank's copy of the models, reduced."""

    def __init__(self, rank, backend, models, shares, bucket_bytes):
        self.rank, self.exchange = rank, Exchange()
        self.exchange.open(1, len(shares), backend)
        first = sum(shares[:rank])
        # a rank without samples gets one that doesn't count
        self.rows = slice(first, first + shares[rank]) if shares[rank] else slice(0, 1)
        self.steps = FakeSteps(rank, shares[rank] / sum(shares))
        self.models = copy.deepcopy(models)
        self.reducers = [Reducer(m, self.steps, self.exchange, bucket_bytes=bucket_bytes) for m in self.models]


class Whole:
    """One process with the whole batch, and no reducer."""

    def __init__(self, models):
        self.rank, self.rows, self.models = None, slice(None), copy.deepcopy(models)


@pytest.fixture
def chained(backends):
    """The same script on every rank and in one process: work(part, *models). Their parts."""

    def run(work, *models, shares=SHARES, bucket_bytes=100, tolerance=1e-6):
        whole = Whole(nn.ModuleList(models))
        work(whole, *whole.models)

        def on(rank):
            part = Rank(rank, backends[rank], nn.ModuleList(models), shares, bucket_bytes)
            work(part, *part.models)
            return part

        ranks = in_threads(on, len(shares))
        for part in ranks:
            assert not part.exchange.broken
            for (name, mine), wanted in zip(part.models.named_parameters(), whole.models.parameters(), strict=True):
                assert difference(mine.detach(), wanted.detach()) <= tolerance, name
                assert (mine.grad is None) == (wanted.grad is None), name
                if mine.grad is not None:
                    assert difference(mine.grad, wanted.grad) <= tolerance, name
        return ranks, whole

    return run


def difference(mine, wanted):
    return float((mine - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))


def net(dtype=torch.float64):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def loss_of(part, model, dtype=torch.float64):
    return mse_loss(model(X[part.rows].to(dtype)), Y[part.rows].to(dtype))


def train(part, model, steps=3, optimizer=None, dtype=torch.float64, clip=0.0):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(part, model, dtype).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


@pytest.mark.parametrize("shares", [SHARES, (4, 3, 3), (10, 0, 0), (0, 9, 1)])
@pytest.mark.parametrize("bucket_bytes", [1, 300, 10**6])
def test_the_gradients_are_those_of_the_whole_batch(chained, shares, bucket_bytes):
    ranks, _ = chained(train, net(), shares=shares, bucket_bytes=bucket_bytes)
    for part in ranks:
        assert part.steps.calls == ["ready", "reduced", "posted"] * 3
        assert part.steps.bulletins == [[sum(REAL), 3.0]] * 3


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.1)])
def test_bulletins_travel_exactly_whatever_the_parameters_are(chained, dtype, tolerance):
    ranks, _ = chained(lambda part, m: train(part, m, dtype=dtype), net(dtype), tolerance=tolerance)
    assert [part.steps.bulletins for part in ranks] == [[[sum(REAL), 3.0]] * 3] * 3


def test_parameters_of_several_types_in_one_model(chained):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.wide, self.narrow = nn.Linear(4, 8).double(), nn.Linear(8, 1)
            self.last = nn.Linear(1, 1).double()

        def forward(self, x):
            return self.last(self.narrow(self.wide(x).float()).double())

    for bucket_bytes in (1, 10**6):
        chained(train, Mixed(), bucket_bytes=bucket_bytes)


def test_clipping_and_an_adaptive_optimizer_see_the_sums(chained):
    def work(part, model):
        train(part, model, 5, torch.optim.AdamW(model.parameters(), 0.01), clip=0.05)

    chained(work, net())


# --- parameters that are not always used ----------------------------------------------------------------------------


class Branches(nn.Module):
    """`used(rank, step)` says which branches this forward takes."""

    def __init__(self, used):
        super().__init__()
        torch.manual_seed(2)
        self.stem = nn.Linear(4, 4).double()
        self.branches = nn.ModuleList(nn.Linear(4, 1).double() for _ in range(3))
        self.used = used

    def forward(self, x, part, step=0):
        x = torch.tanh(self.stem(x))
        return sum((branch(x) for i, branch in enumerate(self.branches) if i in self.used(part, step)), x[:, :1] * 0)


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
def test_parameters_that_nobody_uses_keep_no_gradient(chained, bucket_bytes):
    def work(part, model):
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            mse_loss(model(X[part.rows], part), Y[part.rows]).backward()
            optimizer.step()

    _, whole = chained(work, Branches(lambda part, step: (0, 2)), bucket_bytes=bucket_bytes)
    assert whole.models[0].branches[1].weight.grad is None


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
def test_parameters_that_some_ranks_use_get_the_sum_everywhere(chained, bucket_bytes):
    """By sample: branch 1 is for the rows of rank 1 only, so the whole batch takes it for these rows."""
    first, end = SHARES[0], SHARES[0] + SHARES[1]

    def work(part, model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.tanh(model.stem(X[part.rows]))
            out = model.branches[0](x)
            if part.rank is None:
                out = torch.cat([out[:first], model.branches[1](x[first:end]), out[end:]])
            elif part.rank == 1:
                out = model.branches[1](x)
            # what the rows of the others never touch has no gradient of its own
            mse_loss(out, Y[part.rows]).backward()
            optimizer.step()

    ranks, _ = chained(work, Branches(lambda *_: ()), bucket_bytes=bucket_bytes)
    for part in ranks:
        assert part.models[0].branches[2].weight.grad is None


def test_parameters_that_are_frozen_and_freed_later(chained):
    def work(part, model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            model[2].requires_grad_(step in (2, 3, 5))
            model[0].requires_grad_(step != 3)
            optimizer.zero_grad()
            loss_of(part, model).backward()
            optimizer.step()

    chained(work, net())


def test_a_model_that_is_all_frozen_at_first(chained):
    def work(part, model):
        train(part, model)

    model = net().requires_grad_(False)

    def freed(part, model):
        model.requires_grad_(True)
        work(part, model)

    chained(freed, model)


def test_shared_parameters_count_once(chained):
    model = net()
    model[2].weight = model[0].weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
    wide = nn.Sequential(nn.Linear(4, 8).double(), *model)
    chained(train, wide)


# --- several passes -------------------------------------------------------------------------------------------------


def test_gradients_add_up_over_two_batches_for_one_step(chained):
    def work(part, model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            for scale in (1.0, -2.0):
                (mse_loss(model(scale * X[part.rows]), Y[part.rows]) / 2).backward()
            optimizer.step()

    ranks, _ = chained(work, net())
    assert ranks[0].steps.calls.count("reduced") == 6


def test_two_backward_passes_through_one_graph(chained):
    def work(part, model):
        loss = loss_of(part, model)
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()

    chained(work, net())


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
def test_two_models_in_one_loss_or_one_after_the_other(chained, bucket_bytes):
    def work(part, one, other):
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
        for step in range(4):
            optimizer.zero_grad()
            if step % 2:
                mse_loss(one(X[part.rows]) + other(X[part.rows]), Y[part.rows]).backward()
            else:
                loss_of(part, other).backward()
                loss_of(part, one).backward()
            optimizer.step()

    chained(work, net(), net(), bucket_bytes=bucket_bytes)


def test_a_checkpointed_forward_is_summed_too(chained):
    def work(part, model):
        x = torch.utils.checkpoint.checkpoint(model[:3], X[part.rows], use_reentrant=False)
        mse_loss(model[3:](x), Y[part.rows]).backward()

    chained(work, net())


# --- weights, and failures ------------------------------------------------------------------------------------------


def test_a_sample_that_does_not_count_may_have_a_gradient_of_nan(chained):
    def work(part, model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = loss_of(part, model)
            (loss * float("nan") if part.rank == 2 else loss).backward()
            optimizer.step()

    chained(work, net(), shares=(6, 4, 0))


def test_alone_gradients_are_left_as_they_are():
    model, exchange = net(), Exchange()
    steps = FakeSteps(0, 0.25)
    Reducer(model, steps, exchange)
    whole = Whole(nn.ModuleList([net()]))
    loss_of(whole, model).backward()
    loss_of(whole, whole.models[0]).backward()
    assert torch.equal(model[0].weight.grad, whole.models[0][0].weight.grad)
    assert steps.calls == []


def test_a_lost_rank_raises_nothing_in_the_script_and_posts_nothing():
    class Lost:
        def allreduce(self, values):
            raise RuntimeError("Connection reset by peer")

    model, exchange = net(), Exchange()
    exchange.open(1, 2, Lost())
    steps = FakeSteps(0, 0.5)
    Reducer(model, steps, exchange, bucket_bytes=1)
    for _ in range(2):
        loss_of(Whole(nn.ModuleList()), model).backward()
    assert steps.calls == ["ready", "reduced"] * 2
    assert exchange.broken == "Connection reset by peer"


# --- buckets and fingerprints ---------------------------------------------------------------------------------------


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def test_a_bucket_is_closed_once_it_has_reached_its_limit_and_at_a_change_of_type():
    plain = parameters(2, 2, 3, 100, 1)
    assert [len(group) for group in _groups(plain, 16)] == [2, 2, 1]
    mixed = [*parameters(1, 1), *parameters(1, dtype=torch.float64), *parameters(1)]
    assert [len(group) for group in _groups(mixed, 10**6)] == [2, 1, 1]
    assert list(_groups([], 16)) == []


def test_fingerprints_differ_by_names_shapes_and_types_but_not_by_values():
    torch.manual_seed(1)
    first = fingerprint([nn.Linear(2, 3)])
    assert fingerprint([nn.Linear(2, 3)]) == first
    others = [[nn.Linear(3, 2)], [nn.Linear(2, 3).double()], [nn.Linear(2, 3, bias=False)], [nn.Bilinear(2, 2, 3)], []]
    assert len({fingerprint(models) for models in others} | {first}) == len(others) + 1
    assert all(-(2**63) <= word < 2**63 for word in first)
