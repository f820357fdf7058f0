"""All ranks' parameters, averaged: what a round of local steps ends with.

With d_r what a round changed on rank r, and n_r of the round's N samples its own, all ranks sum

    d = n_1 / N * d_1 + n_2 / N * d_2 + ...

A short round ends at start + d. A longer one takes an outer Nesterov step with -d for a gradient, as torch.optim.SGD
does: v = MOMENTUM * v + d, and start + RATE * (d + MOMENTUM * v)  (Douillard et al., "DiLoCo", 2023).
"""

from typing import Any

import torch
from torch import Tensor

from daisychain.train.exchange import Exchange
from daisychain.train.state import Training

RATE = 0.7
MOMENTUM = 0.9
WIRE = torch.bfloat16
"""What is exchanged is a small part of a parameter, so that its rounding is small against the parameter's own."""


class Average:
    """Averages parameters and floating-point buffers of all models; other buffers count alike on every rank."""

    def __init__(self, training: Training, wire: torch.dtype = WIRE) -> None:
        self._training, self._wire = training, wire
        self.momentum: list[Tensor] = []
        """v of every parameter, in order; empty: zero."""

    def moved(self, start: dict[str, Any]) -> list[float]:
        """1 for each tensor that the round has changed on this rank, else 0. start: Training.capture of its begin."""
        return [float(not torch.equal(own, old)) for own, old, _ in self._tensors(start)]

    @torch.no_grad()
    def take(
        self, start: dict[str, Any], moved: list[float], *, weight: float, outer: bool, exchange: Exchange
    ) -> None:
        """Be where all ranks' rounds lead to on average; as before, when the exchange breaks.

        moved: summed over all ranks. weight: n_r / N. outer: with the outer step.
        """
        chosen = [
            (index, *tensors)
            for index, (tensors, ranks) in enumerate(zip(self._tensors(start), moved, strict=True))
            if ranks
        ]
        flat = torch.zeros(sum(own.numel() for _, own, _, _ in chosen), dtype=self._wire)
        views = torch.split(flat, [own.numel() for _, own, _, _ in chosen])
        if weight:
            for view, (_, own, old, _) in zip(views, chosen, strict=True):
                view.copy_((own - old).mul_(weight).flatten())
        exchange.finish(exchange.start(flat))
        if exchange.broken:
            return
        for view, (index, own, old, is_parameter) in zip(views, chosen, strict=True):
            delta = view.view(own.shape).to(own)
            own.copy_(old + (self._outer(index, delta, start) if outer and is_parameter else delta))

    def _outer(self, index: int, delta: Tensor, start: dict[str, Any]) -> Tensor:
        if not self.momentum:
            self.momentum = [torch.zeros_like(own) for own, _, _ in self._tensors(start)]
        # another rank's, or a checkpoint's, comes on the CPU
        v = self.momentum[index] = self.momentum[index].to(delta.device).mul_(MOMENTUM).add_(delta)
        return delta.add(v, alpha=MOMENTUM).mul_(RATE)

    def _tensors(self, start: dict[str, Any]) -> list[tuple[Tensor, Tensor, bool]]:
        """Every floating-point tensor, as it was at the start, and whether it is a parameter; each once."""
        found: dict[int, tuple[Tensor, Tensor, bool]] = {}
        for model, old in zip(self._training.models, start["models"], strict=True):
            for what, tensors in (("parameters", model.named_parameters()), ("buffers", model.named_buffers())):
                for name, tensor in tensors:
                    if tensor.is_floating_point() or tensor.is_complex():
                        own, before = (_real(t.detach()) for t in (tensor, old[what][name]))
                        found.setdefault(id(tensor), (own, before, what == "parameters"))
        return list(found.values())


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
