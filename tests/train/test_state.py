"""A training's state: captured, put back, packed into bytes and hashed."""

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler as lr

from daisychain.errors import DaisyError, ScriptError
from daisychain.run import ledger
from daisychain.train.api import _guard_scheduler
from daisychain.train.state import DTYPES, Training, _home, _put, digest, digest_of, mixed, pack, unpack

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


class Halving:
    """A LambdaLR's function that remembers something."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.5**epoch


def net(seed: int = 0, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "tensor lr": lambda p: torch.optim.Adam(p, torch.tensor(0.01)),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.01, max_iter=2, history_size=3),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "plateau": lambda o: lr.ReduceLROnPlateau(o, patience=1),
    "one cycle": lambda o: lr.OneCycleLR(o, 0.1, total_steps=40),
    "lambda": lambda o: lr.LambdaLR(o, lambda epoch: 0.9**epoch),
    "object": lambda o: lr.LambdaLR(o, Halving()),
    "multi-step": lambda o: lr.MultiStepLR(o, [3, 6, 6]),
    "cyclic": lambda o: lr.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.1),
    "sequential": lambda o: lr.SequentialLR(
        o, [lr.ConstantLR(o, 0.5, 3), lr.ExponentialLR(o, 0.9), lr.MultiStepLR(o, [1, 2])], [3, 7]
    ),
    "chained": lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.5, 3), lr.ExponentialLR(o, 0.9)], o),
}


def made(optimizer: str = "AdamW", scheduler: str | None = None, seed: int = 0, width: int = 8) -> Training:
    model = net(seed, width)
    made_optimizer = OPTIMIZERS[optimizer](model.parameters())
    return Training([model], [made_optimizer], [SCHEDULERS[scheduler](made_optimizer)] if scheduler else [])


def steps(training: Training, count: int) -> None:
    """Training steps whose dropout depends on torch's own generator; data by the generator, too."""
    (model,), (optimizer,) = training.models, training.optimizers
    for _ in range(count):
        x = torch.randn(16, 4)
        y = x.sum(1, keepdim=True)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss.detach()

        loss = optimizer.step(closure)
        for scheduler in training.schedulers:
            scheduler.step(*([float(loss)] if isinstance(scheduler, lr.ReduceLROnPlateau) else []))


def same(one: Any, other: Any) -> bool:
    """Bitwise the same, types and dtypes included."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        flat = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
        return torch.equal(*flat)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def travelled(value: Any) -> Any:
    return unpack(pack(value))


CASES = [(name, None) for name in OPTIMIZERS] + [("momentum", name) for name in SCHEDULERS] + [("tensor lr", "lambda")]


@pytest.mark.parametrize("into", ["a fresh one", "one that has trained", "itself"])
@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
def test_a_restored_training_goes_on_bit_by_bit(optimizer: str, scheduler: str | None, into: str) -> None:
    source = made(optimizer, scheduler)
    steps(source, 5)
    captured = source.capture()
    kept = copy.deepcopy(captured)
    steps(source, 6)
    assert same(captured, kept), "a later step changed what was captured"
    wanted = source.capture()

    target = source if into == "itself" else made(optimizer, scheduler, seed=9)
    if into == "one that has trained":
        steps(target, 8)
    parameters = [id(p) for p in target.models[0].parameters()]
    groups = [id(g) for g in target.optimizers[0].param_groups]
    target.restore(travelled(captured))
    assert same(target.capture(), captured)
    assert [id(p) for p in target.models[0].parameters()] == parameters
    assert [id(g) for g in target.optimizers[0].param_groups] == groups
    steps(target, 6)
    assert same(target.capture(), wanted)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_guarded_scheduler_takes_a_plain_ones_state_and_gives_it_back(scheduler: str) -> None:
    source, guarded = made("momentum", scheduler), made("momentum", scheduler, seed=9)
    _guard_scheduler(guarded.schedulers[0], lambda: True)
    steps(source, 5)
    captured = source.capture()
    steps(source, 4)
    wanted = source.capture()
    guarded.restore(travelled(captured))
    steps(guarded, 4)
    reached = guarded.capture()
    assert same(reached, wanted)
    back = made("momentum", scheduler, seed=8)
    back.restore(travelled(reached))
    assert same(back.capture(), wanted)


def test_what_was_restored_from_isnt_shared() -> None:
    source, target = made("momentum", "multi-step"), made("momentum", "multi-step", seed=1)
    steps(source, 3)
    captured = source.capture()
    kept = copy.deepcopy(captured)
    target.restore(captured)
    steps(target, 3)
    assert same(captured, kept)


def test_state_from_before_the_first_step_takes_the_optimizers_state_away() -> None:
    training = made("AdamW")
    captured = training.capture()
    steps(training, 1)
    assert training.optimizers[0].state
    training.restore(captured)
    assert not training.optimizers[0].state


def test_a_fused_optimizer_goes_on_exactly_with_channels_last_parameters() -> None:
    """Bytes travel in logical order; the new state must lie in memory as the parameter does."""

    def build(seed: int) -> Training:
        torch.manual_seed(seed)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return Training([model], [torch.optim.AdamW(model.parameters(), 0.01, fused=True)], [])

    def step(training: Training) -> None:
        training.optimizers[0].zero_grad()
        training.models[0](torch.linspace(-1, 1, 2 * 3 * 36).reshape(2, 3, 6, 6)).square().mean().backward()
        training.optimizers[0].step()

    source, target = build(0), build(1)
    step(source)
    target.restore(travelled(source.capture()))
    for training in (source, target):
        step(training)
        step(training)
    assert same(source.capture(), target.capture())


def test_hyperparameters_that_the_script_changed_are_restored() -> None:
    source, target = made("tensor lr"), made("tensor lr", seed=1)
    rate = target.optimizers[0].param_groups[0]["lr"]
    source.optimizers[0].param_groups[0]["lr"].fill_(0.25)
    source.optimizers[0].param_groups[0]["betas"] = (0.5, 0.6)
    target.restore(travelled(source.capture()))
    assert target.optimizers[0].param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
    assert target.optimizers[0].param_groups[0]["betas"] == (0.5, 0.6)


def test_a_lambdas_function_stays_the_own_one_and_its_memory_comes_along() -> None:
    source, target = made("SGD", "object"), made("SGD", "object")
    (own,) = target.schedulers[0].lr_lambdas
    steps(source, 4)
    target.restore(travelled(source.capture()))
    assert target.schedulers[0].lr_lambdas == [own]
    assert own.calls == source.schedulers[0].lr_lambdas[0].calls == 5


def test_buffers_that_arent_saved_and_several_models_come_along() -> None:
    def build(value: float) -> Training:
        model = nn.Linear(1, 1)
        model.register_buffer("hidden", torch.tensor([value]), persistent=False)
        model.register_buffer("spread", torch.ones(1).expand(3))
        return Training([model, net(int(value))], [], [])

    source, target = build(1.0), build(2.0)
    target.restore(travelled(source.capture()))
    assert same(target.capture(), source.capture())
    assert float(target.models[0].hidden) == 1.0


def strange(change: Callable[[dict[str, Any]], Any]) -> Callable[[], dict[str, Any]]:
    def build() -> dict[str, Any]:
        source = made("momentum", "sequential", seed=5)
        steps(source, 2)
        captured = source.capture()
        change(captured)
        return captured

    return build


@pytest.mark.parametrize(
    ("captured", "named"),
    [
        (lambda: made("momentum", "sequential", width=9).capture(), "0.weight of model 0 (Sequential) doesn't fit"),
        (lambda: made("AdamW", "sequential").capture(), "optimizer 0 doesn't fit: AdamW in the state, SGD here"),
        (lambda: made("momentum", "chained").capture(), "scheduler 0 doesn't fit: ChainedScheduler in the state"),
        (lambda: made("momentum").capture(), "the number of schedulers doesn't fit: 0 in the state, 1 here"),
        (strange(lambda c: c["models"][0]["parameters"].pop("0.bias")), "0.bias is missing in the state"),
        (strange(lambda c: c["models"][0]["buffers"].update(more=torch.ones(1))), "more isn't known here"),
        (
            strange(lambda c: c["models"][0]["buffers"].update({"1.running_var": torch.ones(8).double()})),
            "(8,) float64 in the state, (8,) float32 here",
        ),
        (strange(lambda c: c["optimizers"][0]["param_groups"].append({})), "number of groups"),
        (strange(lambda c: c["optimizers"][0]["param_groups"][0]["params"].pop()), "parameters in group 0"),
        (strange(lambda c: c["optimizers"][0]["state"].update({99: {}})), "parameter 99, of 6"),
        (strange(lambda c: c["schedulers"][0]["state"]["_schedulers"].pop()), "number of schedulers"),
        (strange(lambda c: c["schedulers"][0]["state"]["_schedulers"][1].pop("gamma")), "scheduler 1 keeps"),
        (strange(lambda c: c["schedulers"][0]["state"].update(_schedulers=[{}, 3, None])), "keeps"),
        (strange(lambda c: c.update(random=torch.zeros(3))), "torch's generator"),
        (strange(lambda c: c.update(random=torch.zeros_like(c["random"]))), "doesn't take its state back"),
        (strange(lambda c: c.update(models=None)), "isn't the state of a training"),
        (strange(lambda c: c.update(optimizers=[3])), "isn't the state of a training"),
        (dict, "the state's parts"),
        (list, "the state's parts"),
    ],
)
def test_what_doesnt_fit_is_named_and_changes_nothing(captured: Callable[[], Any], named: str) -> None:
    wrong = captured()
    target = made("momentum", "sequential")
    steps(target, 4)
    before = target.capture()
    with pytest.raises(ScriptError) as caught:
        target.restore(wrong)
    assert named in str(caught.value)
    assert same(target.capture(), before)


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda t: t.models.append(nn.LazyLinear(3)), "weight has no shape yet"),
        (lambda t: t.optimizers[0].param_groups[0].update(extra={1, 2}), "extra is a set"),
        (lambda t: t.optimizers[0].state.update(more=torch.eye(2).to_sparse()), "more is a sparse"),
        (lambda t: setattr(t.schedulers[0], "odd", {(1, 2): 3}), "odd has a key of type tuple"),
    ],
)
def test_what_cant_be_captured_is_named(break_it: Callable[[Training], Any], named: str) -> None:
    training = made("momentum", "lambda")
    break_it(training)
    with pytest.raises(DaisyError) as caught:
        training.capture()
    assert named in str(caught.value)


# --- bytes ------------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TENSORS = st.builds(
    lambda name, shape, seed: (
        torch.randint(
            0, 256, (*shape, DTYPES[name].itemsize), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
        )
        .view(DTYPES[name])
        .reshape(shape)
    ),
    st.sampled_from([name for name, dtype in DTYPES.items() if dtype != torch.bool]),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 99),
) | st.lists(st.booleans()).map(lambda values: torch.tensor(values, dtype=torch.bool))
VALUES = st.recursive(
    SCALARS | TENSORS,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inside, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
@settings(deadline=None)
def test_what_is_packed_unpacks_the_same(value: Any) -> None:
    packed = pack(value)
    assert packed.dtype == torch.uint8
    assert packed.dim() == 1
    assert same(unpack(packed), value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).T,
        torch.ones(2, 3, requires_grad=True),
        torch.tensor(1 + 2j).conj(),
        torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last),
        torch.tensor(3.0, dtype=torch.bfloat16),
        torch.arange(7, dtype=torch.float16)[3:],
        torch.ones(1).expand(4),
    ],
)
def test_a_tensor_that_isnt_plain_in_memory_packs_too(tensor: Tensor) -> None:
    back = unpack(pack(tensor))
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("value", [{1, 2}, {(1,): 2}, {True: 1}, b"x", object(), torch.eye(2).to_sparse()])
def test_what_cant_be_packed_raises_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="can't pack"):
        pack([value])


def raw(skeleton: bytes, more: bytes = b"") -> Tensor:
    return torch.frombuffer(bytearray(len(skeleton).to_bytes(8, "little") + skeleton + more), dtype=torch.uint8)


@pytest.mark.parametrize(
    "packed",
    [
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(7, dtype=torch.uint8),
        torch.full((20,), 255, dtype=torch.uint8),
        torch.zeros(20),
        torch.zeros(4, 4, dtype=torch.uint8),
        raw(b""),
        raw(b"nonsense"),
        raw(b"\xff\xfe"),
        raw(b"[" * 100_000),
        raw(b"[" * 900 + b"]" * 900 + b"}"),
        raw(b'{"t":[' * 5000 + b"]}" * 5000),
        raw(b"9" * 10_000),
        raw(b"null", b"x"),
        raw(b"{}"),
        raw(b'{"d":[],"t":[]}'),
        raw(b'{"y":[]}'),
        raw(b'{"d":3}'),
        raw(b'{"d":[[1]]}'),
        raw(b'{"d":[[[],1]]}'),
        raw(b'{"d":[[true,1]]}'),
        raw(b'{"t":null}'),
        raw(b'{"x":[]}'),
        raw(b'{"x":["Tensor",1]}', b"xxxx"),
        raw(b'{"x":[["int8"],1]}', b"x"),
        raw(b'{"x":["float32",1]}', b"xxx"),
        raw(b'{"x":["float32",1]}', b"xxxxx"),
        raw(b'{"x":["int8",-1]}', b"x"),
        raw(b'{"x":["int8",true]}', b"x"),
        raw(b'{"x":["int8",1.0]}', b"x"),
        raw(b'{"x":["int8",0,99999999999999999999999999]}'),
        raw(b'{"x":["int8",281474976710655,281474976710655,0]}'),
        raw(b'{"x":["int8",281474976710655,281474976710655]}'),
    ],
)
def test_hostile_bytes_raise_value_error(packed: Tensor) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unpack(packed)


@given(st.binary(max_size=60), st.binary(max_size=20))
@settings(deadline=None)
def test_random_bytes_raise_nothing_but_value_error(skeleton: bytes, more: bytes) -> None:
    for packed in (raw(skeleton, more), raw(skeleton, more)[8:]):
        try:
            unpack(packed)
        except ValueError:
            continue


@given(st.recursive(SCALARS, lambda inside: st.lists(inside) | st.dictionaries(st.sampled_from("dtx"), inside)))
@settings(deadline=None)
def test_any_json_raises_nothing_but_value_error(skeleton: Any) -> None:
    try:
        unpack(raw(json.dumps(skeleton).encode(), b"1234"))
    except ValueError:
        return


@given(VALUES, st.data())
@settings(deadline=None)
def test_torn_and_flipped_bytes_raise_nothing_but_value_error(value: Any, data: st.DataObject) -> None:
    packed = pack(value)
    with pytest.raises(ValueError, match=r"\w"):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    try:
        unpack(packed)
    except ValueError:
        return


def test_a_boolean_of_hostile_bytes_is_true_or_false() -> None:
    assert unpack(raw(b'{"x":["bool",3]}', b"\x00\x01\xff")).view(torch.uint8).tolist() == [0, 1, 1]


# --- hashes -----------------------------------------------------------------------------------------------------


def test_bytes_that_differ_in_a_bit_or_in_length_have_other_digests() -> None:
    packed = torch.arange(300_001, dtype=torch.int32).to(torch.uint8)
    others = [packed.clone() for _ in range(4)]
    for other, at in zip(others, (0, 65536 * 4 + 1, 262_143, 300_000), strict=True):
        other[at] ^= 1
    longer = torch.cat([packed, torch.zeros(1, dtype=torch.uint8)])
    found = [digest_of(each) for each in (packed, packed[:-1], longer, *others)]
    assert len(set(found)) == 7
    assert all(0 <= number < 2**63 for number in found)
    assert digest_of(packed.clone()) == found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_equal_replicas_have_one_digest_and_a_flipped_bit_another(dtype: torch.dtype) -> None:
    model = nn.Linear(301, 333, dtype=dtype)
    replica = copy.deepcopy(model)
    first = digest([model])
    assert first == digest([replica])
    assert 0 <= first < 2**24
    memory = replica.weight.data.reshape(-1).view(torch.uint8)
    for at in range(0, len(memory), len(memory) // 97):
        for bit in (1, 128):
            memory[at] ^= bit
            assert digest([replica]) != first, (at, bit)
            memory[at] ^= bit
    assert digest([replica]) == first


def test_a_digest_sees_buffers_order_and_swapped_values() -> None:
    model = net()
    first = digest([model, nn.Linear(2, 2)])
    model[1].running_mean[3] = 1e-30
    assert digest([model]) != digest([net()])
    weight = nn.Linear(4, 100, bias=False)
    before = digest([weight])
    with torch.no_grad():
        weight.weight.copy_(weight.weight.flip(0))
    assert digest([weight]) != before
    assert digest([model, weight]) != digest([weight, model])
    assert digest([nn.Linear(2, 2), model]) != first


def test_many_small_layers_are_seen_one_by_one() -> None:
    layers = nn.Sequential(*[nn.Linear(9, 9) for _ in range(50)], nn.Linear(200, 200))
    first = digest([layers])
    for parameter in layers.parameters():
        memory = parameter.data.reshape(-1).view(torch.uint8)
        memory[-1] ^= 128
        assert digest([layers]) != first
        memory[-1] ^= 128
    assert digest([layers]) == first


def test_memory_order_doesnt_change_the_digest() -> None:
    model = nn.Conv2d(3, 4, 3)
    first = digest([model])
    assert digest([model.to(memory_format=torch.channels_last)]) == first


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lay", [lambda t: t[::2], lambda t: t[:1].expand(9), lambda t: t.reshape(3, 6).T])
def test_a_buffer_that_isnt_plain_in_memory_has_the_digest_of_its_copy(
    lay: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    odd, plain = nn.Module(), nn.Module()
    buffer = lay(torch.arange(18).to(dtype))
    odd.register_buffer("buffer", buffer)
    plain.register_buffer("buffer", buffer.clone(memory_format=torch.contiguous_format))
    assert digest([odd]) == digest([plain])


def test_few_models_share_a_digest() -> None:
    """4000 of 2**24: half a pair is expected."""
    model = nn.Linear(3, 1)
    found = set()
    for seed in range(4000):
        with torch.no_grad():
            model.bias.fill_(seed)
        found.add(digest([model]))
    assert len(found) >= 3994


def test_a_million_parameters_are_hashed_in_two_milliseconds() -> None:
    model = nn.Linear(1000, 1000)
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        digest([model])
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.002


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
@settings(deadline=None)
def test_mixed_is_the_ledgers_mix(rows: list[int]) -> None:
    assert mixed(torch.tensor(rows, dtype=torch.int64)) == sum(map(ledger.mix, rows)) % 2**64


def test_pieces_of_an_epoch_add_up_to_the_whole() -> None:
    rows = torch.randperm(1000)
    assert sum(mixed(piece) for piece in rows.split([700, 200, 100, 0])) % 2**64 == ledger.whole(1000)


@pytest.mark.parametrize(
    ("key", "group", "expected"),
    [
        ("exp_avg", {}, "meta"),
        ("step", {}, "cpu"),
        ("step", {"fused": None, "capturable": False}, "cpu"),
        ("step", {"fused": True}, "meta"),
        ("step", {"capturable": True}, "meta"),
    ],
)
def test_state_that_comes_from_another_rank_goes_where_its_parameter_is(key: str, group: Any, expected: str) -> None:
    assert _home(key, torch.empty(1, device="meta"), group).type == expected


def test_a_scalar_of_the_state_is_put_on_the_device_it_belongs_to() -> None:
    place: dict[Any, Any] = {}
    _put(place, "step", torch.tensor(3.0), torch.empty(2, device="meta"), torch.device("meta"))
    assert place["step"].device.type == "meta"
    _put(place, "other", torch.tensor(3.0), torch.empty(2), torch.device("cpu"))
    assert place["other"] == 3
