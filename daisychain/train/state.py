"""All that a training is between two steps: copied, put back, packed into bytes, and hashed. No collectives here."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from daisychain.errors import ScriptError

REMEDY = "Build the same models, optimizers and schedulers in the same order on every node and at every start"
KEYS = ("models", "optimizers", "schedulers", "random")
LENGTH_BYTES = 8
DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and "quint" not in str(value) and "qint" not in str(value)
}
"""What can be packed, by name; quantized tensors can't, they are more than their bytes."""
WORD = 2**64
CHUNK = 65536
"""Elements that are hashed at once: few enough to stay in the cache."""


class Training:
    """Models, optimizers and schedulers, each in the order in which they were prepared."""

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]
    ) -> None:
        self.models, self.optimizers, self.schedulers = list(models), list(optimizers), list(schedulers)

    def capture(self) -> dict[str, Any]:
        """Everything that the next step depends on, as nested plain values and cloned tensors that `pack` takes.

        Parameters, buffers, the optimizers' state and hyperparameters, the schedulers' state, torch's CPU generator.
        Not in it: gradients, functions (a LambdaLR's), what a model keeps in other attributes.
        Raises ScriptError naming what is of a kind that can't be carried over.
        """
        return {
            "models": [
                {what: {name: _cloned(t, name) for name, t in tensors.items()} for what, tensors in _tensors(m).items()}
                for m in self.models
            ],
            "optimizers": [_kind(o) | _cloned(o.state_dict(), type(o).__name__) for o in self.optimizers],
            "schedulers": [_kind(s) | {"state": _cloned(s.state_dict(), type(s).__name__)} for s in self.schedulers],
            "random": torch.get_rng_state(),
        }

    def restore(self, captured: dict[str, Any]) -> None:
        """Put everything back in place; parameters, buffers and param_groups stay the same objects.

        `captured` may come from another process, and isn't changed or kept. Raises ScriptError naming what doesn't
        fit, and has changed nothing then.
        """
        try:
            self._check(captured)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ScriptError(f"this isn't the state of a training ({error!r})", REMEDY) from None
        self._restore_schedulers(captured)
        for model, theirs in zip(self.models, captured["models"], strict=True):
            for what, tensors in _tensors(model).items():
                for name, tensor in tensors.items():
                    _copy(tensor, theirs[what][name])
        for optimizer, theirs in zip(self.optimizers, captured["optimizers"], strict=True):
            _restore_groups(optimizer, theirs["param_groups"])
            _restore_state(optimizer, theirs["state"])

    def settings(self) -> dict[str, Any]:
        """What a script may set or step between two passes: optimizers' hyperparameters, and schedulers."""
        return {
            "groups": [_cloned(o.state_dict()["param_groups"], type(o).__name__) for o in self.optimizers],
            "schedulers": [_cloned(s.state_dict(), type(s).__name__) for s in self.schedulers],
        }

    def set(self, settings: dict[str, Any]) -> None:
        """As `settings` has them, from this very process."""
        for scheduler, state in zip(self.schedulers, settings["schedulers"], strict=True):
            _restore_scheduler(scheduler, state)
        for optimizer, groups in zip(self.optimizers, settings["groups"], strict=True):
            _restore_groups(optimizer, groups)

    def _check(self, captured: dict[str, Any]) -> None:
        _same("the state's parts", sorted(captured), sorted(KEYS))
        owned = (("models", self.models), ("optimizers", self.optimizers), ("schedulers", self.schedulers))
        for what, own in owned:
            _same(f"the number of {what}", len(captured[what]), len(own))
        for index, (model, theirs) in enumerate(zip(self.models, captured["models"], strict=True)):
            _check_model(f"model {index} ({type(model).__name__})", model, theirs)
        for index, (optimizer, theirs) in enumerate(zip(self.optimizers, captured["optimizers"], strict=True)):
            _check_optimizer(f"optimizer {index}", optimizer, theirs)
        for index, (scheduler, theirs) in enumerate(zip(self.schedulers, captured["schedulers"], strict=True)):
            _same(f"scheduler {index}", theirs["kind"], type(scheduler).__name__)
            _check_scheduler(f"scheduler {index} ({theirs['kind']})", scheduler.state_dict(), theirs["state"])
        _same("torch's generator", _form(captured["random"]), _form(torch.get_rng_state()))

    def _restore_schedulers(self, captured: dict[str, Any]) -> None:
        """Schedulers and the generator have code of their own that may refuse: put the own ones back if one does."""
        own = [_cloned(s.state_dict(), "") for s in self.schedulers]
        generator = torch.get_rng_state()
        try:
            for scheduler, theirs in zip(self.schedulers, captured["schedulers"], strict=True):
                _restore_scheduler(scheduler, theirs["state"])
            torch.set_rng_state(captured["random"])
        except Exception as error:
            for scheduler, mine in zip(self.schedulers, own, strict=True):
                _restore_scheduler(scheduler, mine)
            torch.set_rng_state(generator)
            raise ScriptError(f"a scheduler doesn't take its state back ({error!r})", REMEDY) from None


def _tensors(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    return {"parameters": dict(model.named_parameters()), "buffers": dict(model.named_buffers())}


def _kind(thing: object) -> dict[str, Any]:
    return {"kind": type(thing).__name__}


def _cloned(value: Any, where: str) -> Any:
    """A deep copy of plain values and tensors. Functions in dictionaries are left out: every process has its own."""
    match value:
        case Tensor():
            if is_lazy(value):
                raise ScriptError(f"{where} has no shape yet", "Run one batch through the model before chain.prepare")
            if value.layout != torch.strided or value.is_quantized:
                raise ScriptError(f"{where} is a sparse or quantized tensor, which can't be carried over")
            return value.detach().clone()
        case dict():
            items = ((key, item) for key, item in value.items() if not callable(item))
            return {_key(key, where): _cloned(item, f"{where}.{key}") for key, item in items}
        case list():
            return [_cloned(item, where) for item in value]
        case tuple():
            return tuple(_cloned(item, where) for item in value)
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():  # numpy's is one, too
            return float(value)
    raise ScriptError(f"{where} is a {type(value).__name__}, which can't be carried over", "Use numbers and tensors")


def _key(key: Any, where: str) -> str | int:
    if isinstance(key, str | int):
        return key
    raise ScriptError(f"{where} has a key of type {type(key).__name__}, which can't be carried over")


# --- what fits ---------------------------------------------------------------------------------------------


def _same(what: str, theirs: object, own: object) -> None:
    if theirs != own:
        raise ScriptError(f"{what} doesn't fit: {theirs} in the state, {own} here", REMEDY)


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _check_model(where: str, model: nn.Module, theirs: dict[str, dict[str, Tensor]]) -> None:
    for what, own in _tensors(model).items():
        missing, unknown = sorted(own.keys() - theirs[what].keys()), sorted(theirs[what].keys() - own.keys())
        if missing or unknown:
            detail = f"{missing[0]} is missing in the state" if missing else f"{unknown[0]} isn't known here"
            raise ScriptError(f"{where}'s {what} don't fit: {detail}", REMEDY)
        for name, tensor in own.items():
            if is_lazy(tensor):
                raise ScriptError(f"{name} has no shape yet", "Run one batch through the model before chain.prepare")
            _same(f"{name} of {where}", _form(theirs[what][name]), _form(tensor))
            if _overlaps(tensor) and not torch.equal(tensor, theirs[what][name].to(tensor.device)):
                raise ScriptError(f"{name} of {where} was made by expand() and can't be changed", "Use clone()")


def _check_optimizer(where: str, optimizer: Optimizer, theirs: dict[str, Any]) -> None:
    _same(where, theirs["kind"], type(optimizer).__name__)
    own = optimizer.state_dict()["param_groups"]
    _same(f"{where}'s number of groups", len(theirs["param_groups"]), len(own))
    for index, (group, mine) in enumerate(zip(theirs["param_groups"], own, strict=True)):
        _same(f"{where}'s parameters in group {index}", list(group["params"]), mine["params"])
    parameters = sum(len(group["params"]) for group in own)
    for key, state in theirs["state"].items():
        if isinstance(key, int) and not (0 <= key < parameters and isinstance(state, dict)):
            raise ScriptError(f"{where}'s state has something for parameter {key}, of {parameters}", REMEDY)


def _check_scheduler(where: str, own: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The same keys, and lists of the same length, also in the schedulers inside."""
    own = {key: value for key, value in own.items() if not callable(value)}
    _same(f"what {where} keeps", sorted(theirs), sorted(own))
    for name in ("base_lrs", "lr_lambdas", "_schedulers"):
        if name in own:
            _same(f"{where}'s number of {name.strip('_')}", len(theirs[name]), len(own[name]))
    for index, (mine, other) in enumerate(zip(own.get("_schedulers", ()), theirs.get("_schedulers", ()), strict=True)):
        _check_scheduler(f"{where}'s scheduler {index}", mine, other)


# --- putting back ------------------------------------------------------------------------------------------


def _overlaps(tensor: Tensor) -> bool:
    """Whether several elements lie at one place (expand), so that it can't be written to."""
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _copy(own: Tensor, theirs: Tensor) -> None:
    if not _overlaps(own):
        with torch.no_grad():
            own.copy_(theirs)


def _put(
    place: dict[Any, Any], key: Any, value: Any, like: Tensor | None = None, device: torch.device | None = None
) -> None:
    """Set an entry: into the tensor that is there where it fits, else as a new one.

    like: the parameter that it belongs to. A new tensor of its shape is laid out in memory as it is: fused optimizers
    go through both in the order of memory. device: where any other new tensor goes; None: where the value is.
    """
    own = place.get(key)
    if isinstance(value, Tensor) and isinstance(own, Tensor) and _form(own) == _form(value):
        _copy(own, value)
    elif isinstance(value, Tensor) and like is not None and value.shape == like.shape:
        place[key] = torch.empty_like(like, dtype=value.dtype, requires_grad=False).copy_(value)
    elif isinstance(value, Tensor) and device is not None:
        place[key] = _cloned(value, str(key)).to(device)
    else:
        place[key] = _cloned(value, str(key))


def _restore_scheduler(scheduler: LRScheduler, state: dict[str, Any]) -> None:
    scheduler.load_state_dict(_like(scheduler.state_dict(), _cloned(state, "")))


def _restore_groups(optimizer: Optimizer, theirs: list[dict[str, Any]]) -> None:
    for own, group in zip(optimizer.param_groups, theirs, strict=True):
        for key, value in group.items():
            if key not in ("params", "param_names"):
                _put(own, key, value)


def _restore_state(optimizer: Optimizer, theirs: dict[Any, Any]) -> None:
    """The captured state of every parameter, and none for those that had none."""
    state = cast("dict[Any, Any]", optimizer.state)
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for index, (parameter, group) in enumerate(parameters):
        captured = theirs.get(index, {})
        own = state[parameter] if index in theirs else state.pop(parameter, {})
        for key in own.keys() - captured.keys():
            del own[key]
        for key, value in captured.items():
            _put(own, key, value, parameter, _home(key, parameter, group))
    for key, value in theirs.items():
        if isinstance(key, str):
            _put(state, key, value)


def _home(key: Any, parameter: Tensor, group: dict[str, Any]) -> torch.device:
    """Where a parameter's state lies, as Optimizer.load_state_dict has it: a plain optimizer's step on the CPU."""
    on_cpu = key == "step" and not (group.get("fused") or group.get("capturable"))
    return torch.device("cpu") if on_cpu else parameter.device


def _like(own: Any, value: Any) -> Any:
    """The value with a Counter wherever the own value is one (MultiStepLR needs more of it than a dict has)."""
    if isinstance(own, Counter):
        return Counter(value)
    if isinstance(own, dict) and isinstance(value, dict):
        return {key: _like(own.get(key), item) for key, item in value.items()}
    if isinstance(own, list) and isinstance(value, list) and len(own) == len(value):
        return [_like(one, item) for one, item in zip(own, value, strict=True)]
    return value


# --- bytes -------------------------------------------------------------------------------------------------


def pack(value: Any) -> Tensor:
    """Nested dicts (keys str or int), lists, tuples, None, bool, int, float, str and tensors as a 1-D uint8 tensor.

    Layout: the skeleton's length (8 bytes, little endian), the skeleton (JSON), every tensor's bytes in order. In the
    skeleton a list is an array, and an object is {"d": [[key, value], ...]}, {"t": [...]} for a tuple, or
    {"x": [dtype, *shape]} for a tensor. Raises TypeError for anything else.
    """
    parts: list[Tensor] = []
    skeleton = json.dumps(_skeleton(value, parts), separators=(",", ":")).encode()
    head = bytearray(len(skeleton).to_bytes(LENGTH_BYTES, "little") + skeleton)
    return torch.cat([torch.frombuffer(head, dtype=torch.uint8), *parts])


def _skeleton(value: Any, parts: list[Tensor]) -> Any:
    match value:
        case Tensor():
            name = str(value.dtype).removeprefix("torch.")
            if DTYPES.get(name) is None or value.layout != torch.strided:
                raise TypeError(f"can't pack a tensor of {value.dtype}, {value.layout}")
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            parts.append(plain.reshape(-1).view(torch.uint8))
            return {"x": [name, *value.shape]}
        case dict():
            if not all(type(key) in (str, int) for key in value):
                raise TypeError("can't pack a dict with keys other than str and int")
            return {"d": [[key, _skeleton(item, parts)] for key, item in value.items()]}
        case list():
            return [_skeleton(item, parts) for item in value]
        case tuple():
            return {"t": [_skeleton(item, parts) for item in value]}
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"can't pack a {type(value).__name__}")


def unpack(packed: Tensor) -> Any:
    """What `pack` was given; its tensors are copies on the CPU. Raises ValueError for anything that isn't that."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or len(packed) < LENGTH_BYTES:
        raise ValueError("not packed bytes")
    packed = packed.cpu()
    end = LENGTH_BYTES + int.from_bytes(bytes(packed[:LENGTH_BYTES].tolist()), "little")
    if end > len(packed):
        raise ValueError("the bytes end too early")
    try:
        skeleton = json.loads(bytes(packed[LENGTH_BYTES:end].tolist()))
        reader = _Reader(packed[end:])
        value = reader.value(skeleton)
    except (KeyError, TypeError, RuntimeError, OverflowError) as error:  # RecursionError is a RuntimeError
        raise ValueError(f"not packed bytes: {error}") from None
    if len(reader.rest):
        raise ValueError("there are more bytes than expected")
    return value


class _Reader:
    """Builds values from a skeleton, taking the tensors' bytes as it goes."""

    def __init__(self, rest: Tensor) -> None:
        self.rest = rest

    def value(self, skeleton: Any) -> Any:
        if isinstance(skeleton, list):
            return [self.value(item) for item in skeleton]
        if not isinstance(skeleton, dict):
            return skeleton
        ((tag, inside),) = skeleton.items()
        build: Callable[[Any], Any] = {"d": self._dict, "t": self._tuple, "x": self._tensor}[tag]
        return build(inside)

    def _dict(self, items: Any) -> dict[str | int, Any]:
        found: dict[str | int, Any] = {}
        for key, item in items:
            if type(key) not in (str, int):
                raise ValueError(f"a {type(key).__name__} is no key")
            found[key] = self.value(item)
        return found

    def _tuple(self, items: Any) -> tuple[Any, ...]:
        return tuple(self.value(item) for item in items)

    def _tensor(self, form: Any) -> Tensor:
        name, *shape = form
        dtype = DTYPES[name]
        if not all(type(size) is int and 0 <= size < 2**48 for size in shape):
            raise ValueError("a shape is wrong")
        count = dtype.itemsize
        for size in shape:
            count *= size
        if count > len(self.rest):
            raise ValueError("the bytes end too early")
        raw, self.rest = self.rest[:count].clone(), self.rest[count:]
        return (raw.ne(0) if dtype == torch.bool else raw.view(dtype)).reshape(shape)


# --- hashes ------------------------------------------------------------------------------------------------


def digest(models: "Iterable[nn.Module | dict[str, dict[str, Tensor]]]") -> int:
    """24 bits (a float32 holds them) that are equal for bitwise equal parameters and float buffers, else hardly ever.

    models: themselves, or as Training.capture has them.

    A chunk's hash is the sum, modulo 2**32, of its 32-bit words times different odd numbers: no single changed bit goes
    unseen there. Chunks are then mixed in order. Not for adversaries.
    """
    hashes: list[int] = []
    small: list[Tensor] = []
    for model in models:
        held = _tensors(model) if isinstance(model, nn.Module) else model
        for tensor in (*held["parameters"].values(), *held["buffers"].values()):
            if tensor.is_floating_point() or tensor.is_complex():
                words = _words(tensor.detach())
                if len(words) < CHUNK // 4:
                    small.append(words)  # joined, so that many layers don't cost a call each
                else:
                    hashes += _hashes(words)
    if small:
        hashes += _hashes(torch.cat(small))
    return _chained(hashes) >> 40


def digest_of(packed: Tensor) -> int:
    """63 bits that are equal for equal bytes, else hardly ever. packed: 1-D uint8."""
    rest = len(packed) % 4
    padded = torch.cat([packed, packed.new_zeros(4 - rest)]) if rest else packed
    return _chained([len(packed), *_hashes(padded.view(torch.int32))]) >> 1


def _chained(hashes: Iterable[int]) -> int:
    """64 bits of these and their order."""
    so_far = 0
    for number in hashes:
        so_far = (so_far ^ number) * 0x9E3779B97F4A7C15 % WORD
        so_far ^= so_far >> 32
    return so_far * 0x9E3779B97F4A7C15 % WORD


def _words(tensor: Tensor) -> Tensor:
    """The bytes as 1-D int32, in logical order; elements of one or two bytes are widened."""
    kind = {1: torch.int8, 2: torch.int16}.get(tensor.element_size(), torch.int32)
    return tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(kind).to(torch.int32)


def _hashes(words: Tensor) -> list[int]:
    return [int(torch.dot(chunk, _odd()[: len(chunk)])) % 2**32 for chunk in torch.split(words, CHUNK)]


@lru_cache(maxsize=1)
def _odd() -> Tensor:
    return torch.arange(1, 2 * CHUNK, 2, dtype=torch.int32)


def mixed(rows: Tensor) -> int:
    """The sum modulo 2**64 of run.ledger's `mix` over dataset row numbers (int64, any shape)."""
    return int(mixes(rows).sum()) % WORD


def mixes(rows: Tensor) -> Tensor:
    """run.ledger's `mix` of each row number, as int64: their sum wraps around.

    Formula: splitmix64's first output for the seed `row` (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014; constants of Vigna's splitmix64.c). int64 arithmetic wraps around as uint64's does.
    """
    z = rows.to(torch.int64) + _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _signed(word: int) -> int:
    return word - WORD if word >= WORD // 2 else word


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Logical shift right: `>>` repeats the sign, so cut off what it brought in."""
    return torch.bitwise_and(values >> bits, 2 ** (64 - bits) - 1)
