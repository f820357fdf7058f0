"""A model's noise by position in the global batch: the same for any shares as on one machine."""

import copy
import io
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from daisychain.train.randomness import QUIET, _Mode, attach, begin_attempt, keyed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

BATCH = 70
SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
import daisychain

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(1, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout1d(0.2))
        self.second = nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16, momentum=None), nn.Tanh(), nn.Dropout(0.4))
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        x = self.first(x.unsqueeze(1)).flatten(1)
        return self.last(checkpoint(self.second, x, use_reentrant=False))

chain = daisychain.init()
model = Net().double()
x = torch.randn(43, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=10, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
model, optimizer, loader = chain.prepare(model, optimizer, loader)
for epoch in chain.epochs(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chain.log(loss=loss)
chain.save(model, sys.argv[1])
"""

SHARES = [(70,), (49, 14, 7), (3, 65, 2), (20, 0, 50)]


@dataclass(eq=False)
class Here:
    """A place that needs no chain."""

    first: int = 0
    share: int = BATCH
    step: int = 0
    seed: int = 5
    batch: int = BATCH
    world_size: int = 1
    weight: float = 1.0

    def total(self, values):
        return values


def places(shares, **more):
    return [Here(first=sum(shares[:rank]), share=share, **more) for rank, share in enumerate(shares)]


def outputs(function, x, shares, told=None, dim=0):
    """What all ranks of these shares make of x together, each from the same state of torch's generator."""
    parts = []
    for place in places(shares):
        torch.manual_seed(99)
        piece = x.narrow(dim, place.first * x.shape[dim] // BATCH, max(1, place.share) * x.shape[dim] // BATCH)
        with keyed(place, [].append if told is None else told.append):
            made = function(piece)
        assert bool(made.isfinite().all())
        if place.share:
            parts.append(made)
    return torch.cat(parts, dim)


def rows(x):
    return torch.ones(x.shape[0], 3)


FUNCTIONS = {
    "dropout": lambda x: F.dropout(x, 0.3, True),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.3, True, inplace=True),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "dropout1d": lambda x: F.dropout1d(x.unsqueeze(2).expand(-1, -1, 4), 0.3, True),
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x.unsqueeze(2).expand(-1, -1, 4), 0.3, True),
    "module": nn.Dropout(0.3),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.4)),
    "drop path": lambda x: x * x.new_empty(x.shape[0], 1).bernoulli_(0.6),
    "rand": lambda x: torch.rand(x.shape[0], 3),
    "randn": lambda x: torch.randn((x.shape[0], 3)),
    "rand_like": lambda x: torch.rand_like(rows(x)),
    "randn_like in float64": lambda x: torch.randn_like(rows(x), dtype=torch.float64),
    "randint": lambda x: torch.randint(0, 1000, (x.shape[0],)),
    "randint of a high": lambda x: torch.randint(1000, size=(x.shape[0],)),
    "randint_like": lambda x: torch.randint_like(rows(x), 2, 1000),
    "normal": lambda x: torch.normal(rows(x), 2 * rows(x)),
    "rsample": lambda x: torch.distributions.Normal(rows(x), rows(x)).rsample(),
    "uniform_": lambda x: torch.empty(x.shape[0], 3).uniform_(2, 5),
    "normal_": lambda x: torch.empty(x.shape[0], 3).normal_(mean=1.0, std=2.0),
    "gumbel": lambda x: F.gumbel_softmax(rows(x)),
    "pooling": lambda x: F.fractional_max_pool2d(x[:, None, None].expand(-1, 2, 8, 40), 2, output_size=(4, 20)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shares", SHARES[1:], ids=str)
def test_noise_is_one_machines_for_any_shares(name, shares):
    told: list[str] = []
    x = torch.arange(BATCH * 40.0).view(BATCH, 40) / 100 + 1
    whole = outputs(FUNCTIONS[name], x, (BATCH,), told)
    assert torch.equal(outputs(FUNCTIONS[name], x, shares, told), whole)
    assert whole.unique(dim=0).shape[0] > 1
    assert told == []


@pytest.mark.parametrize("shares", SHARES[1:], ids=str)
@pytest.mark.parametrize("width", [1, 40, 5000])
def test_rows_and_second_dimensions_have_samples_too(shares, width):
    told: list[str] = []
    for shape, dim in (((BATCH, width), 0), ((BATCH * 3, width), 0), ((11, BATCH, width), 1)):
        x = torch.ones(shape)
        whole = outputs(nn.Dropout(0.5), x, (BATCH,), told, dim)
        assert torch.equal(outputs(nn.Dropout(0.5), x, shares, told, dim), whole)
    assert all("(11, 2," in text for text in told)


def test_a_dropped_share_is_p_and_the_rest_is_scaled():
    with keyed(Here(share=BATCH)):
        for p in (0.1, 0.5, 0.9):
            made = F.dropout(torch.ones(BATCH, 4000), p, True)
            kept = made[made != 0]
            assert float((made == 0).float().mean()) == pytest.approx(p, abs=0.005)
            assert bool(kept.allclose(torch.tensor(1 / (1 - p))))
        maps = F.dropout2d(torch.ones(BATCH, 400, 3, 3), 0.5, True).flatten(2)
        assert bool((maps == maps[..., :1]).all())
        assert float(maps.mean()) == pytest.approx(1, abs=0.03)
        normal = torch.randn(BATCH, 4000)
        selu = F.alpha_dropout(normal, 0.3, True)
        assert (float(normal.mean()), float(normal.std())) == pytest.approx((0, 1), abs=0.01)
        assert (float(selu.mean()), float(selu.std())) == pytest.approx((0, 1), abs=0.02)


def test_nothing_or_everything_is_dropped_at_0_and_1_and_out_of_training():
    x = torch.randn(BATCH, 8)
    with keyed(Here()):
        assert torch.equal(F.dropout(x, 0.0, True), x)
        assert torch.equal(F.dropout(x, 1.0, True), torch.zeros_like(x))
        assert torch.equal(F.alpha_dropout(x, 1.0, True), torch.zeros_like(x))
        assert torch.equal(F.dropout(x, 0.5, False), x)
        assert torch.equal(nn.Dropout(0.5).eval()(x), x)
        assert torch.equal(F.alpha_dropout(x), x)
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(x, 1.5, True)


def masks(place, calls=1):
    with keyed(place):
        return [F.dropout(torch.ones(place.share, 50), 0.5, True) for _ in range(calls)]


def test_seeds_steps_forwards_and_calls_differ_and_an_attempt_repeats_them():
    place = Here()
    first, second = masks(place, 2), masks(place, 2)
    place.step = 1
    next_step = masks(place, 2)
    different = [*first, *second, *next_step, *masks(Here(seed=6))]
    assert len({tuple(mask.flatten().tolist()) for mask in different}) == len(different)
    begin_attempt(place)
    assert all(map(torch.equal, masks(place, 2), next_step))
    place.step = 0
    assert all(map(torch.equal, masks(place, 2), first))


def test_unequally_much_noise_by_call_leaves_later_noise_alike():
    def function(x):
        torch.rand(3 * x.shape[0] + 1)
        return F.dropout(x, 0.5, True)

    x = torch.ones(BATCH, 5)
    told: list[str] = []
    assert torch.equal(outputs(function, x, (49, 14, 7), told), outputs(function, x, (BATCH,)))
    assert len(told) == 3
    assert told[0] == "rand of shape (148,) in the model depends on the shares: its results differ from one machine's"


def test_what_has_no_samples_is_alike_on_all_ranks():
    weight = nn.Parameter(torch.ones(14, 7))
    made = []
    told: list[str] = []
    for place in places((49, 14, 7)):
        with keyed(place, told.append):
            made.append((torch.rand(()), torch.rand(1), torch.randn_like(weight), F.dropout(weight, 0.5)))
    for of_a_call in zip(*made, strict=True):
        assert all(torch.equal(of_a_call[0], other) for other in of_a_call)
    assert told == []


def test_a_single_value_is_for_all_samples_and_told_where_it_may_be_for_one():
    told: list[str] = []
    made = outputs(lambda x: torch.rand(x.shape[0]), torch.ones(BATCH, 1), (69, 1), told)
    whole = outputs(lambda x: torch.rand(x.shape[0]), torch.ones(BATCH, 1), (BATCH,))
    assert torch.equal(made[:69], whole[:69])
    assert len(told) == 1
    assert "rand of shape (1,)" in told[0]


def test_the_scripts_own_randomness_goes_on_as_if_the_model_had_none():
    torch.manual_seed(1)
    wanted = torch.rand(4)
    torch.manual_seed(1)
    masks(Here(), 3)
    generator = torch.Generator().manual_seed(1)
    with keyed(Here()):
        assert torch.equal(torch.rand(4, generator=generator), wanted)
    assert torch.equal(torch.rand(4), wanted)


class Attention(nn.Module):
    def __init__(self, *, needs_weights, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=batch_first)
        self.needs_weights = needs_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.needs_weights)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("needs_weights", [True, False])
def test_attention_weights_are_dropped_by_position(batch_first, needs_weights):
    torch.manual_seed(0)
    model = Attention(needs_weights=needs_weights, batch_first=batch_first)
    x = torch.randn((BATCH, 5, 8) if batch_first else (5, BATCH, 8))
    dim = 0 if batch_first else 1
    whole = outputs(model, x, (BATCH,), dim=dim)
    assert not torch.allclose(whole, model.eval()(x))
    model.train()
    for shares in SHARES[1:]:
        torch.testing.assert_close(outputs(model, x, shares, dim=dim), whole)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_layer_is_one_machines(batch_first):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=batch_first)
    x = torch.randn((BATCH, 5, 8) if batch_first else (5, BATCH, 8))
    dim = 0 if batch_first else 1
    whole = outputs(model, x, (BATCH,), dim=dim)
    torch.testing.assert_close(outputs(model, x, (49, 14, 7), dim=dim), whole)


def test_attention_without_drops_is_torchs_own():
    q, k, v = torch.randn(3, BATCH, 4, 6, 8, dtype=torch.float64)
    few = k[:, :2], v[:, :2]
    mask = torch.rand(6, 6) > 0.5
    mask[2] = False
    for keys, more in (
        ((k, v), {}),
        ((k, v), {"is_causal": True}),
        ((k, v), {"attn_mask": mask}),
        ((k, v), {"attn_mask": torch.randn(6, 6).double(), "scale": 0.3}),
        (few, {"enable_gqa": True}),
    ):
        wanted = F.scaled_dot_product_attention(q, *keys, **more)
        with keyed(Here()):
            assert torch.equal(F.scaled_dot_product_attention(q, *keys, **more), wanted)
            made = F.scaled_dot_product_attention(q, *keys, dropout_p=1e-12, **more)
            everything = F.scaled_dot_product_attention(q, *keys, dropout_p=1.0, **more)
        torch.testing.assert_close(made, wanted)
        assert not everything.any()


def test_gradients_flow_through_the_kept_values():
    x = torch.ones(BATCH, 9, requires_grad=True)
    with keyed(Here()):
        made = F.dropout(x, 0.5, True)
    made.sum().backward()
    assert torch.equal(x.grad, made.detach())


def test_a_recurrent_layers_dropout_is_told_once():
    told: list[str] = []
    lstm, x = nn.LSTM(3, 4, 2, dropout=0.5), torch.randn(6, BATCH, 3)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    with keyed(Here(), told.append):
        for _ in range(2):
            lstm(x)
        nn.GRU(3, 4, 2)(x)
        nn.RNN(3, 4, 2, dropout=0.5).eval()(x)
        assert len(told) == 1
        nn.GRU(3, 4, 2, dropout=0.5)(packed)
    assert [text.split()[0] for text in told] == ["lstm", "gru"]


class Deep(nn.Module):
    """Layers with dropout, repeated in backward or not; gives a dictionary."""

    def __init__(self, repeats):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh()) for _ in range(3))
        self.repeats = repeats

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.repeats is None else checkpoint(layer, x, use_reentrant=self.repeats)
        return {"out": x}


def gradients(model, place, forwards=1):
    attach(model, place, [].append)
    x = torch.linspace(-1, 1, place.share * 6).view(-1, 6).requires_grad_()
    sum(model(x)["out"].square().sum() for _ in range(forwards)).backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("forwards", [1, 3])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_have_the_same_masks_when_backward_repeats_them(reentrant, forwards):
    torch.manual_seed(0)
    plain = Deep(None)
    repeated = copy.deepcopy(plain)
    repeated.repeats = reentrant
    wanted = gradients(plain, Here(), forwards)
    for mine, theirs in zip(gradients(repeated, Here(), forwards), wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_checkpoint_around_the_whole_model_repeats_its_masks():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    repeated = copy.deepcopy(plain)
    x = torch.randn(BATCH, 6)
    attach(plain, Here(), [].append)
    attach(repeated, Here(), [].append)
    plain(x).square().sum().backward()
    checkpoint(repeated, x, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close(repeated[0].weight.grad, plain[0].weight.grad)


def test_errors_in_forward_or_backward_leave_no_mode_behind():
    class Fails(nn.Module):
        def forward(self, x):
            x = F.dropout(x, 0.5, self.training)
            if self.training:
                raise ValueError("no")
            return x

    def fail(_):
        raise ValueError("no")

    place = Here()
    model = Fails()
    attach(model, place, [].append)
    with pytest.raises(ValueError, match="no"):
        model(torch.ones(BATCH, 2))
    assert not torch.overrides._get_current_function_mode_stack()
    other = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    attach(other, place, [].append)
    x = torch.ones(BATCH, 2, requires_grad=True)
    x.register_hook(fail)
    with pytest.raises(ValueError, match="no"):
        other(x).sum().backward()
    assert not torch.overrides._get_current_function_mode_stack()


class Late(nn.Module):
    """Draws nothing until it is told to; notes whether random functions are replaced."""

    def __init__(self):
        super().__init__()
        self.draws, self.replaced = False, []

    def forward(self, x):
        self.replaced.append(_Mode.is_active)
        return F.dropout(x, 0.5) if self.draws else x + 1


def test_a_model_that_draws_nothing_goes_without_the_mode_until_it_draws():
    told, seen = [], []
    for shares in ((BATCH,), (30, 40)):
        model, place = Late(), places(shares)[0]
        attach(model, place, told.append)
        for _ in range(QUIET + 2):
            model(torch.ones(place.share, 4))
        assert model.replaced == [True] * QUIET + [False] * 2
        assert told == []
        model.draws = True
        begin_attempt(place)
        model(torch.ones(place.share, 4))
        assert len(told) == 1
        assert "begins after some steps" in told.pop()
        seen.append(model(torch.ones(place.share, 4))[:30])
        assert model.replaced[-2:] == [False, True]
    assert torch.equal(*seen)


def test_a_model_in_eval_mode_or_a_copy_of_one_needs_nothing():
    place = Here()
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    attach(model, place, [].append)
    torch.manual_seed(3)
    twin = copy.deepcopy(model).eval()
    noisy = nn.Dropout(0.5)
    torch.manual_seed(3)
    wanted = noisy(torch.ones(BATCH, 2))
    torch.manual_seed(3)
    assert torch.equal(twin(torch.ones(BATCH, 2)), model.eval()(torch.ones(BATCH, 2)))
    model[1].train()
    assert torch.equal(model[1](torch.ones(BATCH, 2)), wanted)


def test_a_prepared_model_within_another_one_is_keyed_once():
    inner = nn.Dropout(0.5)
    outer = nn.Sequential(inner)
    made = []
    for shares in ((BATCH,), (49, 14, 7)):
        parts = []
        for place in places(shares):
            twin = copy.deepcopy(outer)
            attach(twin[0], place, [].append)
            attach(twin, place, [].append)
            parts.append(twin(torch.ones(place.share, 3)))
        made.append(torch.cat(parts))
    assert torch.equal(*made)


def test_a_prepared_model_can_be_pickled_whole():
    model = Deep(False)
    gradients(model, Here())
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    x = torch.ones(3, 6)
    assert torch.equal(loaded.eval()(x)["out"], model.eval()(x)["out"])
    loaded.train()(x)["out"].sum().backward()


def test_a_chain_trains_the_model_that_the_script_trains_alone(start, tmp_path):
    """Convolution, batch normalisation, dropout and a checkpoint, over 7/2/1 and, in the last batch, 2/1/0."""
    ranks = start(SCRIPT, 3, args=["chain.pt"], settings={"seed": 3, "rebalance": False, "batch": None})
    ended = [rank.finish() for rank in ranks]
    assert [code for code, _ in ended] == [0, 0, 0], ranks[0].log.read_text()
    environment = {**os.environ, "DAISYCHAIN_SEED": "3", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "script.py", "alone.pt"], cwd=tmp_path, env=environment, check=True, timeout=90)
    chained = torch.load(tmp_path / "output/chain.pt", weights_only=True)
    alone = torch.load(tmp_path / "alone.pt", weights_only=True)
    assert list(chained) == list(alone)
    for name, value in alone.items():
        torch.testing.assert_close(chained[name], value, rtol=1e-11, atol=1e-12)
    assert [report for report in ended[0][1] if report["kind"] == "note"] == []
