"""What goes in place of torch's random functions: replacement(draws, func, args, kwargs) does what func does.

A function that is given a generator of the script's own is left alone.
"""

from collections.abc import Callable
from functools import cache
from math import inf
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from daisychain.train.draws import Draws, Fill

Replacement = Callable[[Draws, Any, Any, Any], Any]


@cache
def replacements() -> dict[Any, Replacement]:
    """By function, as torch.overrides gives it to a mode."""
    found: dict[Any, Replacement] = {
        F.scaled_dot_product_attention: _attention,
        torch.normal: _normal,
        torch.randint: _randint,
        torch.randint_like: _randint,
        torch.bernoulli: _bernoulli,
        Tensor.bernoulli: _bernoulli,
        Tensor.bernoulli_: _bernoulli_in_place,
    }
    for whole_maps, alpha, name in (
        (False, False, "dropout"),
        (True, False, "feature_dropout"),
        (False, True, "alpha_dropout"),
        (True, True, "feature_alpha_dropout"),
    ):
        replacement = _dropout(whole_maps=whole_maps, alpha=alpha)
        names = ("dropout1d", "dropout2d", "dropout3d") if name == "feature_dropout" else (name,)
        found |= dict.fromkeys((getattr(F, each) for each in names), replacement)
        found |= dict.fromkeys((getattr(torch, name), getattr(torch, f"{name}_")), replacement)
    for name in ("uniform_", "normal_", "exponential_", "random_", "log_normal_", "cauchy_", "geometric_"):
        found[getattr(Tensor, name)] = _in_place
    for like, fill in (("rand", "uniform_"), ("randn", "normal_")):
        found[getattr(torch, like)] = _creation(torch.empty, fill)
        found[getattr(torch, f"{like}_like")] = _creation(torch.empty_like, fill)
    for name in ("multi_head_attention_forward", "gumbel_softmax", *_POOLS):
        found[getattr(F, name)] = _composite
    found |= dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent)
    for function in (torch.randperm, torch.multinomial, Tensor.multinomial, torch.poisson, torch.binomial):
        found[function] = _leave
    found |= dict.fromkeys((F.rrelu, torch.rrelu, torch.rrelu_), _rrelu)
    return found


_POOLS = ("fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices")


def _leave(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    own = kwargs.get("generator") is not None
    return func(*args, **kwargs) if own else draws.leave_to_torch(func, args, kwargs)


def _rrelu(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    training = kwargs.get("training", args[3] if len(args) > 3 else False)
    return draws.leave_to_torch(func, args, kwargs) if training else func(*args, **kwargs)


def _recurrent(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    """Positions of the arguments depend on whether sequences are packed, but the only float is dropout, then train."""
    dropout = next((at for at, value in enumerate(args) if isinstance(value, float)), None)
    random = dropout is not None and args[dropout] > 0 and args[dropout + 1]
    return draws.leave_to_torch(func, args, kwargs) if random else func(*args, **kwargs)


def _composite(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    """A function of torch's written in Python: what it calls is replaced, not itself."""
    with draws.again:
        return _inside(func)(*args, **kwargs)


@cache
def _inside(func: FunctionType) -> Callable[..., Any]:
    """The function without its first lines, which would hand it to the mode once more."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**func.__globals__, **dict.fromkeys(names, lambda *_: False)}
    copy = FunctionType(func.__code__, known, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


# dropout


def _uniform(values: Tensor, generator: torch.Generator) -> Any:
    return values.uniform_(generator=generator)


def _mask(draws: Draws, kind: str, like: Tensor, shape: Any, keep: float) -> Tensor:
    """1 with probability `keep`, else 0; float32 or wider."""
    dtype = torch.promote_types(like.dtype, torch.float32) if like.is_floating_point() else torch.float32
    values = draws.draw(kind, like, shape, torch.float32, _uniform)
    return values.lt_(keep).to(device=like.device, dtype=dtype)


def _dropout(*, whole_maps: bool, alpha: bool) -> Replacement:
    """whole_maps: all of a channel or nothing of it. alpha: for SELU (Klambauer et al. 2017)."""

    def replace(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
        values, p, training, in_place = _dropout_arguments(func, *args, **kwargs)
        if not training or not 0 < p <= 1 or not values.numel():
            return func(*args, **kwargs)
        shape = (*values.shape[:2], *[1] * (values.dim() - 2)) if whole_maps else values.shape
        mask = _mask(draws, func.__name__, values, shape, 1 - p)
        if not alpha:
            scale = mask.mul_(1 / (1 - p) if p < 1 else 0.0).to(values.dtype)
            return values.mul_(scale) if in_place else values * scale
        scale, shift = (each.to(values.dtype) for each in _alpha(p, mask))
        return values.mul_(scale).add_(shift) if in_place else values * scale + shift

    return replace


def _dropout_arguments(
    func: Any, input: Tensor, p: float = 0.5, training: bool | None = None, inplace: bool = False, **more: Any
) -> tuple[Tensor, float, bool, bool]:
    """Of torch.nn.functional's and torch's own functions; those of alpha dropout don't train unless told."""
    if training is None:
        training = more.get("train", "alpha" not in func.__name__)
    return input, p, training, inplace or func.__name__.endswith("_")


def _alpha(p: float, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and shift that keep mean and variance of SELU's outputs; dropped values become its lower limit."""
    lowest = -1.7580993408473766
    scale = ((1 - p) * (1 + p * lowest**2)) ** -0.5 if p < 1 else 0.0
    return mask * scale, (1 - mask - p) * (scale * lowest)


def _attention(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    return _attend(draws, func, *args, **kwargs)


def _attend(
    draws: Draws,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query key / sqrt(E)) value, as torch documents it, the weights dropped by position."""
    if dropout_p <= 0:
        more = {"enable_gqa": True} if enable_gqa else {}
        attended: Tensor = func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        return attended
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    nothing = (scores == -inf).all(-1, keepdim=True)
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    mask = _mask(draws, func.__name__, weights, weights.shape, 1 - dropout_p)
    dropped: Tensor = weights * mask.mul_(1 / (1 - dropout_p) if dropout_p < 1 else 0.0).to(weights.dtype) @ value
    return dropped


# other noise


def _in_place(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    values, name = args[0], func.__name__
    more = {key: value for key, value in kwargs.items() if key != "generator"}

    def fill(rows: Tensor, generator: torch.Generator) -> None:
        getattr(rows, name)(*args[1:], generator=generator, **more)

    return values.copy_(draws.draw(name, values, values.shape, values.dtype, fill))


def _creation(make: Callable[..., Tensor], fill: str) -> Replacement:
    def replace(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("generator") is not None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        values = make(*args, **{key: value for key, value in kwargs.items() if key not in ("generator", "out")})
        like = args[0] if args and isinstance(args[0], Tensor) else values
        return _put(draws, func, values, like, lambda rows, generator: getattr(rows, fill)(generator=generator))

    return replace


def _put(draws: Draws, func: Any, values: Tensor, like: Tensor, fill: Fill) -> Tensor:
    with torch.no_grad():
        return values.copy_(draws.draw(func.__name__, like, values.shape, values.dtype, fill))


def _randint(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    """(high, size), (low, high, size), (input, high) or (input, low, high)."""
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        return func(*args, **kwargs)
    more, rest = dict(kwargs), list(args)
    if func is torch.randint_like:
        like = more.pop("input") if "input" in more else rest.pop(0)
    else:
        like = more.pop("size") if "size" in more else rest.pop()
    high = more.pop("high") if "high" in more else rest.pop()
    low = more.pop("low", rest[0] if rest else 0)
    more = {key: value for key, value in more.items() if key not in ("generator", "out")}
    if isinstance(like, Tensor):
        values = torch.empty_like(like, **more)
    else:
        values = torch.empty(like, **{"dtype": torch.int64, **more})
    return _put(draws, func, values, values, lambda rows, generator: rows.random_(low, high, generator=generator))


def _bernoulli(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        return func(*args, **kwargs)
    values = kwargs.get("input", args[0] if args else None)
    p = kwargs.get("p", args[1] if len(args) > 1 else None)
    return _decide(draws, func, values, values.detach() if p is None else p)


def _bernoulli_in_place(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    return args[0].copy_(_decide(draws, func, args[0], kwargs.get("p", args[1] if len(args) > 1 else 0.5)))


def _decide(draws: Draws, func: Any, like: Tensor, p: "Tensor | float") -> Tensor:
    values = draws.draw(func.__name__, like, like.shape, torch.float32, _uniform).to(like.device)
    return (values < p).to(like.dtype)


def _normal(draws: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        return func(*args, **kwargs)
    return _around(
        draws, func, *args, **{key: value for key, value in kwargs.items() if key not in ("generator", "out")}
    )


def _around(
    draws: Draws, func: Any, mean: "Tensor | float" = 0.0, std: "Tensor | float" = 1.0, size: Any = None, **more: Any
) -> Tensor:
    """mean + std * noise, without a gradient, as torch.normal."""
    with torch.no_grad():
        base = torch.empty(size, **more) if size is not None else mean + std * torch.zeros(())
        noise = _put(
            draws, func, torch.empty_like(base), base, lambda rows, generator: rows.normal_(generator=generator)
        )
        return mean + std * noise
