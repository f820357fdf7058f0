"""Batch normalisation over unequal shares, in real gloo processes against one machine, and at the seam with fakes."""

import copy
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from daisychain.train.batchnorm import convert, unsupported

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from daisychain.train.batchnorm import convert

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)

class Place:
    seed, step, world_size, calls = 0, 0, 3, 0
    def __init__(self, shares):
        self.first, self.share, self.batch = sum(shares[:rank]), shares[rank], sum(shares)
        self.weight = self.share / self.batch
    def total(self, values):
        self.calls += 1
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

def cnn(**options):
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6, **options), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, **options),
        nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

def mlp(**options):
    return nn.Sequential(
        nn.Linear(5, 16), nn.BatchNorm1d(16, **options), nn.Tanh(), nn.Linear(16, 8), nn.BatchNorm1d(8, **options),
        nn.Tanh(), nn.Linear(8, 3))

def sequence(**options):
    return nn.Sequential(
        nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4, **options), nn.Flatten(), nn.Linear(20, 3))

class Rows(nn.Module):  # (N * T, C) in the middle
    def __init__(self, **options):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(5, **options), nn.Linear(20, 3)
    def forward(self, x):
        return self.out(self.norm(x.flatten(0, 1)).view(len(x), 20))

def volume(**options):
    return nn.Sequential(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3, **options), nn.Flatten(), nn.Linear(24, 3))

BUILD = {"cnn": (cnn, (2, 8, 8)), "mlp": (mlp, (5,)), "sequence": (sequence, (3, 6)), "rows": (Rows, (4, 5)),
         "volume": (volume, (1, 3, 3, 3))}
OPTIONS = {"plain": {}, "cumulative": {"momentum": None}, "bare": {"affine": False, "track_running_stats": False}}

def relative(mine, wanted, part=slice(None)):
    # to the largest value of the whole batch: all of a single sample's values may happen to be small
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(mine, wanted) else 1.0
    if not bool(mine.isfinite().all()):
        return float("inf")
    return float((mine - wanted[part]).abs().max() / wanted.abs().max().clamp(min=1e-30))

def compare(kind, option, dtype, shares, layout):
    torch.manual_seed(1)
    build, size = BUILD[kind]
    single = build(**OPTIONS[option]).to(dtype)
    chained = build(**OPTIONS[option]).to(dtype)
    with torch.no_grad():
        for p in single.parameters():
            p.add_(torch.rand_like(p) * 0.3)
    chained.load_state_dict(single.state_dict())
    place = Place(shares)
    convert(chained, place)
    worst = {"output": 0.0, "gradient": 0.0, "input": 0.0}
    norms = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in single.modules())
    for step in range(20):
        x = (torch.randn(place.batch, *size, dtype=torch.float64) * 2 + 1).to(dtype)
        y = torch.randn(place.batch, 3, dtype=torch.float64).to(dtype)
        if layout == "channels_last":
            x = x.to(memory_format=torch.channels_last)
        x.requires_grad_()
        wanted = single(x)
        wanted_gradients = torch.autograd.grad((wanted - y).square().mean(), [x, *single.parameters()])
        mine = slice(place.first, place.first + place.share)
        if place.share:
            own_x, own_y = x[mine].detach(), y[mine]
        else:
            own_x, own_y = torch.full_like(x[:1], float("nan")) if step % 2 else x[:1].detach(), y[:1]
        own_x.requires_grad_()
        place.calls = 0
        output = chained(own_x)
        assert place.calls == norms
        if place.share:
            worst["output"] = max(worst["output"], relative(output, wanted, mine))
        elif not step % 2:
            assert output.isfinite().all()
        gradients = torch.autograd.grad((output - own_y).square().mean(), [own_x, *chained.parameters()])
        assert place.calls == 2 * norms
        if place.share:
            worst["input"] = max(worst["input"], relative(place.weight * gradients[0], wanted_gradients[0], mine))
        for p, q, gradient, other in zip(
            chained.parameters(), single.parameters(), gradients[1:], wanted_gradients[1:], strict=True
        ):
            total = gradient * place.weight if place.share else torch.zeros_like(gradient)
            dist.all_reduce(total)
            # biases before a normalisation have a gradient of rounding errors only: measured by the largest of all
            scale = max(float(g.abs().max()) for g in wanted_gradients[1:])
            worst["gradient"] = max(worst["gradient"], float((total - other).abs().max()) / scale)
            with torch.no_grad():
                p -= 0.05 * total
                q -= 0.05 * other
    for what, a, b in (("parameters", chained.parameters(), single.parameters()),
                       ("buffers", chained.buffers(), single.buffers())):
        worst[what] = max((relative(p.detach(), q.detach()) for p, q in zip(a, b, strict=True)), default=0.0)
    mine = torch.cat([b.double().view(-1) for b in chained.buffers()] or [torch.zeros(1)])
    first = mine.clone()
    dist.broadcast(first, 0)
    worst["ranks"] = float((mine - first).abs().max())
    chained.eval(), single.eval()
    worst["eval"] = relative(chained(x.detach()), single(x.detach()))
    return worst

results = {}
for case in json.loads(sys.argv[4]):
    kind, option, dtype, shares, layout = case
    results[json.dumps(case)] = compare(kind, option, getattr(torch, dtype), shares, layout)
with open(out, "w") as stream:
    json.dump(results, stream)
# its threads must not be at work when the process ends
dist.destroy_process_group()
"""

SHARES = ([7, 2, 1], [8, 0, 2], [9, 1, 0])
CASES = [
    *(
        [kind, "plain", dtype, shares, "contiguous"]
        for kind in ("cnn", "mlp")
        for dtype in ("float32", "float64")
        for shares in SHARES
    ),
    *([kind, "plain", "float64", [7, 2, 1], "contiguous"] for kind in ("sequence", "rows", "volume")),
    ["rows", "plain", "float64", [8, 0, 2], "contiguous"],
    *(["mlp", option, "float64", [8, 0, 2], "contiguous"] for option in ("cumulative", "bare")),
    ["cnn", "cumulative", "float32", [7, 2, 1], "channels_last"],
]
BOUND = {"float32": 1e-5, "float64": 1e-12}


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """What three ranks measured of each case."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(3):
        words = [str(rank), str(folder / "store"), str(folder / f"{rank}.json"), json.dumps(CASES)]
        with (folder / f"{rank}.log").open("wb") as log:
            ranks.append(
                subprocess.Popen([sys.executable, "-c", RANK, *words], env=environment, stdout=log, stderr=log)
            )
    try:
        codes = [rank.wait(150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0, 0], "\n".join((folder / f"{rank}.log").read_text() for rank in range(3))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}-{case[3]}-{case[4]}")
def test_twenty_steps_over_any_shares_are_those_of_one_machine(differences, case):
    for of_rank in differences:
        worst = of_rank[json.dumps(case)]
        assert worst.pop("ranks") == 0.0
        assert max(worst.values()) <= BOUND[case[2]], worst


class Fake:
    """A rank among others that are all like it, or that are lost."""

    seed, step, first = 0, 0, 0

    def __init__(self, *, share: int = 6, batch: int = 6, world_size: int = 2, others: int = 0) -> None:
        self.share, self.batch, self.world_size, self.weight = share, batch, world_size, share / batch
        self.others, self.calls = others, 0

    def total(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values * (1 + self.others)


def test_alone_a_layer_is_torchs_own():
    own, converted = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    place = Fake(world_size=1)
    convert(converted, place)
    for _ in range(3):
        x = torch.randn(6, 3, 4, 4)
        assert torch.equal(own(x), converted(x))
    assert place.calls == 0
    assert all(torch.equal(a, b) for a, b in zip(own.buffers(), converted.buffers(), strict=True))


def test_conversion_keeps_parameters_keys_hooks_and_kinds():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.BatchNorm3d(3), nn.LayerNorm(3))
    before, keys, called = list(model.parameters()), list(model.state_dict()), []
    model[0].register_forward_hook(lambda *_: called.append(1))
    convert(model, Fake())
    assert all(p is q for p, q in zip(before, model.parameters(), strict=True))
    assert list(model.state_dict()) == keys
    assert isinstance(model[1], nn.BatchNorm2d)
    model[0](torch.randn(6, 3))
    assert called == [1]
    place = Fake(world_size=1)
    convert(model, place)
    assert [module.seat.place for module in model[:3]] == [place] * 3


@pytest.mark.parametrize("share", [6, 1, 0])
def test_a_total_that_gives_back_local_values_raises_nothing(share):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    convert(model, Fake(share=share))
    x = torch.randn(max(1, share), 3, requires_grad=True)
    y = model(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def test_a_sample_that_does_not_count_touches_nothing():
    norm = nn.BatchNorm1d(3)
    convert(norm, Fake(share=0))
    seen = []
    norm.seat.place.total = lambda values: seen.append(values.clone()) or values
    x = torch.full((1, 3), float("nan"), requires_grad=True)
    norm(x).sum().backward()
    assert all(not values.any() for values in seen)
    assert len(seen) == 2
    assert not x.grad.any()


def test_a_large_mean_does_not_cost_the_variance():
    """A mean of a thousand deviations: a sum of squares in float32 would lose six of seven digits."""
    x = torch.randn(64, 3, dtype=torch.float64) + 1000
    own, exact = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3)
    convert(exact, Fake(share=64, batch=128, others=1))
    wanted = own(x.float().double())
    assert (exact(x.float()) - wanted).abs().max() <= 2e-4
    assert (exact.running_mean - own.running_mean).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameters", ["float32", "half", "none"])
def test_half_precision_inputs_use_statistics_in_full_precision(dtype, parameters):
    torch.manual_seed(2)
    exact = nn.BatchNorm2d(4, affine=parameters != "none").to(dtype if parameters == "half" else torch.float32)
    wanted = nn.BatchNorm2d(4, affine=parameters != "none")
    convert(exact, Fake())
    x = (torch.randn(6, 4, 3, 3) + 3).to(dtype).requires_grad_()
    y = exact(x)
    assert y.dtype == dtype
    full = x.detach().float().requires_grad_()
    reference = wanted(full)
    weights = torch.randn_like(reference)
    (y.float() * weights).sum().backward()
    (reference * weights).sum().backward()
    step = torch.finfo(dtype).eps
    assert (y.float() - reference).abs().max() <= 2 * step * reference.abs().max()
    assert (x.grad.float() - full.grad).abs().max() <= 4 * step * full.grad.abs().max()


def test_autocast_and_channels_last_pass_through():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    convert(model, Fake())
    x = torch.randn(6, 2, 8, 8).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.float().sum().backward()
    assert model[0].weight.grad.dtype == torch.float32


def test_a_copy_asks_the_same_place_and_a_saved_one_is_torchs_own_again():
    norm, place = nn.BatchNorm1d(3), Fake()
    convert(norm, place)
    copied = copy.deepcopy(norm)
    copied(torch.randn(6, 3))
    assert place.calls == 1
    stream = io.BytesIO()
    torch.save(norm, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)  # a whole module, written just now
    x = torch.randn(6, 3)
    assert torch.equal(loaded(x), nn.BatchNorm1d(3)(x))
    assert place.calls == 1


def test_an_input_that_needs_no_gradient_costs_no_exchange_in_backward():
    norm, place = nn.BatchNorm1d(3), Fake()
    convert(norm, place)
    norm(torch.randn(6, 3)).sum().backward()
    assert place.calls == 1
    assert norm.weight.grad is not None


def test_a_wrong_input_is_refused_as_by_torch():
    norm = nn.BatchNorm2d(3)
    convert(norm, Fake())
    with pytest.raises(ValueError, match="expected 4D input"):
        norm(torch.randn(6, 3))


class OwnForward(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class OwnName(nn.BatchNorm1d):
    pass


def test_what_cannot_be_exact_is_named_and_left_alone():
    model = nn.Sequential()
    for name, module in {
        "plain": nn.BatchNorm1d(3),
        "renamed": OwnName(3),
        "sync": nn.SyncBatchNorm(3),
        "lazy": nn.LazyBatchNorm2d(),
        "instance": nn.InstanceNorm2d(3),
        "tracking": nn.InstanceNorm2d(3, track_running_stats=True),
        "own": OwnForward(3),
    }.items():
        model.add_module(name, module)
    wanted = ["sync (SyncBatchNorm)", "lazy (LazyBatchNorm2d)", "tracking (InstanceNorm2d)", "own (OwnForward)"]
    assert unsupported(model) == wanted
    place = Fake()
    convert(model, place)
    assert unsupported(model) == wanted
    assert type(model.own) is OwnForward
    model.renamed(torch.randn(6, 3))
    assert place.calls == 1
    assert isinstance(model.renamed, OwnName)


def test_a_lazy_one_counts_once_it_is_materialised():
    model = nn.Sequential(nn.LazyBatchNorm1d())
    model(torch.randn(4, 3))
    assert unsupported(model) == []
    place = Fake()
    convert(model, place)
    model(torch.randn(6, 3))
    assert place.calls == 1
