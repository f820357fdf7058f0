"""Batch normalisation over the whole global batch, exact for unequal shares.

Per channel, all ranks sum (count, sum, sum of squares) in float64, each made from the rank's own mean and variance.
With xhat = (x - mean) / std, g the gradient of the whole batch's loss after the layer, and n elements in a channel,

    dx = weight / std * (g - sum(g) / n - xhat * sum(g * xhat) / n)        (Ioffe and Szegedy, 2015, section 3)

where a rank's g is its own gradient times `Place.weight`. The gradients of all ranks are multiplied with that weight
before they are summed, so what a rank passes on is dx divided by it.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from daisychain.train.place import Place


def convert(model: nn.Module, place: Place) -> None:
    """Make every batch normalisation below the model exact, in place; what `unsupported` names stays as it is.

    Parameters, buffers, hooks, state_dict keys and isinstance stay. In training every forward is one `place.total`, and
    every backward one more where the input needs a gradient. In eval mode, and alone, a layer is torch's own.
    A copy of the model asks the same place; a pickled one is torch's own again when it is loaded.
    """
    for module in model.modules():
        if isinstance(module, ExactBatchNorm):
            module.seat = _Seat(place)
        elif isinstance(module, _BatchNorm) and not _own_way(module):
            kind: Any = type(module)
            module.__class__ = _exact(kind)
            setattr(module, "seat", _Seat(place))  # noqa: B010  (its static type is still that of before)


def unsupported(model: nn.Module) -> list[str]:
    """Names with classes, in the model's order, of normalisations that look at a batch and can't be made exact."""
    return [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, _NormBase) and _own_way(module)
    ]


def of_the_batch(model: nn.Module) -> list[str]:
    """Names of all layers that normalise over the batch, and so need all its samples in one forward."""
    return [
        name or "the model"
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) or (isinstance(module, _NormBase) and _own_way(module))
    ]


def _own_way(module: nn.Module) -> bool:
    """Whether it looks at a batch in a way that is not plain batch normalisation."""
    if isinstance(module, _InstanceNorm):
        return module.track_running_stats
    if isinstance(module, ExactBatchNorm):
        return False
    return isinstance(module, LazyModuleMixin) or type(module).forward is not _BatchNorm.forward


class _Seat:
    """Keeps the place out of copies of a model: a copy shares it, a pickled one has none."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place

    def __deepcopy__(self, _: Any) -> "_Seat":
        return self

    def __reduce__(self) -> Any:
        return _Seat, ()


class ExactBatchNorm(_BatchNorm):
    """What converted layers have in common."""

    seat: _Seat

    def forward(self, input: Tensor) -> Tensor:
        place = self.seat.place
        if not self.training or place is None or place.world_size == 1:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        mean, var, count = _statistics(input.detach(), place)
        self._track(mean, var, count)
        normalised: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, var, count, self.eps, place
        )
        return normalised

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: float) -> None:
        if not self.track_running_stats:
            return
        factor = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if factor is None:
                factor = 1.0 / float(self.num_batches_tracked)
        factor = factor or 0.0
        unbiased = var * (count / max(count - 1.0, 1.0))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            if running is not None:
                running.copy_((1 - factor) * running + factor * new)


class ExactBatchNorm1d(ExactBatchNorm, nn.BatchNorm1d):
    pass


class ExactBatchNorm2d(ExactBatchNorm, nn.BatchNorm2d):
    pass


class ExactBatchNorm3d(ExactBatchNorm, nn.BatchNorm3d):
    pass


@cache
def _exact(kind: Any) -> type[ExactBatchNorm]:
    for known in (ExactBatchNorm1d, ExactBatchNorm2d, ExactBatchNorm3d):
        if known.__bases__[1] is kind:
            return known
    return type(f"Exact{kind.__name__}", (ExactBatchNorm, kind), {})


def _statistics(x: Tensor, place: Place) -> tuple[Tensor, Tensor, float]:
    """Mean and biased variance (both of shape (C,), float32 or float64) of the global batch; elements in a channel."""
    channels = x.shape[1]
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
    here = x.numel() // max(channels, 1)
    if place.share and here:  # a sample that doesn't count may be NaN, and 0 * NaN is NaN
        mean, var = _moments(x)
        torch.cat([mean.new_tensor([1.0]), mean, var + mean * mean], out=sums)
        sums *= here
    sums = place.total(sums)
    count = float(sums[0])
    mean, square = (sums[1:] / max(count, 1.0)).chunk(2)
    var = (square - mean * mean).clamp_(min=0.0)
    return mean.to(_wide_type(x)), var.to(_wide_type(x)), count


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel, in float64, by the corrected two-pass algorithm (Chan et al., 1983).

    The second pass also finds the rounding error of the first one's mean. Many times faster than torch.var_mean.
    """
    wide, over = _wide(x), _all_but_channels(x)
    mean = wide.mean(over)
    centred = wide - mean.view(1, -1, *[1] * (x.dim() - 2))
    rest = centred.mean(over).double()
    return mean.double() + rest, centred.square_().mean(over).double() - rest * rest


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, its mean and var being those of the global batch."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: float,
        eps: float,
        place: Place,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(var + eps))
        ctx.count, ctx.place, ctx.counts = max(count, 1.0), place, place.share > 0
        scale, shift = (None if p is None else p.to(mean.dtype) for p in (weight, bias))
        return nn.functional.batch_norm(x, mean, var, scale, shift, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse_std = ctx.saved_tensors
        over, shape = _all_but_channels(x), (1, -1, *[1] * (x.dim() - 2))
        centred, g = _wide(x) - mean.view(shape), _wide(gradient)
        sum_g, sum_gx = g.sum(over), (g * centred).sum(over) * inverse_std
        dx = None
        if ctx.needs_input_grad[0]:
            share = ctx.place.weight if ctx.counts else 0.0
            local = torch.cat([sum_g, sum_gx]).double()
            total = ctx.place.total(local * share if share else torch.zeros_like(local))
            if share:
                offset, slope = (total / (ctx.count * share)).to(g.dtype).chunk(2)
                scale = inverse_std if weight is None else inverse_std * weight.to(g.dtype)
                # scale * (g - offset - slope * xhat), in as few passes over the elements as possible
                dx = centred.mul_(-(slope * inverse_std).view(shape)).add_(g).sub_(offset.view(shape))
                dx = dx.mul_(scale.view(shape)).to(x.dtype)
            else:
                dx = torch.zeros_like(x)
        d_weight = sum_gx.to(weight.dtype) if ctx.needs_input_grad[1] else None
        d_bias = sum_g.to(g.dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return dx, d_weight, d_bias, None, None, None, None, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _wide_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _wide(x: Tensor) -> Tensor:
    """For sums: at least float32."""
    return x.to(_wide_type(x))
