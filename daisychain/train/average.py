"""All ranks' parameters, averaged: what a round of local steps ends with, on its way while the next ones are done.

With x what all ranks began a round with, d_r what the round changed on rank r, and n_r of its N samples that rank's
own, all ranks sum

    d = n_1 / N * d_1 + n_2 / N * d_2 + ...

and take an outer Nesterov step with -d for a gradient, as torch.optim.SGD does: v = momentum * v + d, and
x + rate * (d + momentum * v)  (Douillard et al., "DiLoCo", 2023; rate and momentum from plan/sync.py). What a rank has
changed since the sum was begun is kept: the difference between where all are now and what the rank had then is added to
what it has now  (Shen et al., "Faster Distributed Deep Net Training: Computation and Communication Decoupled Stochastic
Gradient Descent", 2019).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from daisychain.plan.sync import Outer
from daisychain.train.exchange import Exchange, Work
from daisychain.train.state import Training

WIRE = torch.bfloat16
"""What is exchanged is a small part of a parameter, so that its rounding is small against the parameter's own."""


class Slot(NamedTuple):
    """A floating-point tensor of a model."""

    own: Tensor
    then: Tensor
    """The same in a captured state."""
    is_parameter: bool
    trains: bool


class Sum(NamedTuple):
    """An average on its way."""

    start: dict[str, Any]
    """What all ranks began the round with (Training.capture)."""
    chosen: list[int]
    ends: list[Tensor]
    """What this rank had as the sum began, of each that was chosen."""
    flat: Tensor
    work: Work


class Average:
    """Averages parameters and floating-point buffers of all models; other buffers count alike on every rank."""

    def __init__(self, training: Training, wire: torch.dtype = WIRE) -> None:
        self._training, self._wire = training, wire
        self.momentum: list[Tensor] = []
        """v of every parameter, in order; empty: zero."""

    def moved(self, start: dict[str, Any]) -> list[float]:
        """1 for each tensor that this rank has changed since, else 0. start: Training.capture of the round's begin."""
        return [float(not torch.equal(slot.own, slot.then)) for slot in self._slots(start)]

    @torch.no_grad()
    def begin(self, start: dict[str, Any], moved: Sequence[float], *, weight: float, exchange: Exchange) -> Sum:
        """Begin to sum what the round has changed: of what trains, of buffers, and of what moved in an earlier round.

        moved: of that round, over all ranks; empty: everything is summed. weight: n_r / N.
        """
        slots = self._slots(start)
        chosen = [
            index
            for index, slot in enumerate(slots)
            if not moved or moved[index] or slot.trains or not slot.is_parameter
        ]
        ends = [slots[index].own.clone() for index in chosen]
        flat = torch.zeros(sum(end.numel() for end in ends), dtype=self._wire)
        if weight:
            for view, index, end in zip(self._views(flat, ends), chosen, ends, strict=True):
                view.copy_((end - slots[index].then).mul_(weight).flatten())
        return Sum(start, chosen, ends, flat, exchange.start(flat))

    @torch.no_grad()
    def end(self, sum: Sum, *, outer: Outer, exchange: Exchange, later: dict[str, Any] | None = None) -> None:
        """Wait for a sum, and be where all ranks' rounds lead to together; as before, when the exchange breaks.

        later: what this rank had when the next round began, which becomes what all had.
        """
        exchange.finish(sum.work)
        if exchange.broken:
            return
        slots = self._slots(sum.start)
        nexts = self._slots(later) if later is not None else []
        for view, index, end in zip(self._views(sum.flat, sum.ends), sum.chosen, sum.ends, strict=True):
            own, then, is_parameter, _ = slots[index]
            delta = view.view(own.shape).to(own)
            average = then + (self._stepped(index, delta, len(slots), outer) if is_parameter else delta)
            # what hasn't moved since becomes the average to the bit, on every rank; what is no number never moves
            still = (own == end) | end.isnan()
            own.copy_(torch.where(still, average, own + (average - end)))
            if nexts:
                nexts[index].then.copy_(average)

    @staticmethod
    def _views(flat: Tensor, like: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.split(flat, [tensor.numel() for tensor in like])

    def _stepped(self, index: int, delta: Tensor, count: int, outer: Outer) -> Tensor:
        if not outer.momentum:
            return outer.rate * delta
        if not self.momentum:
            self.momentum = [torch.zeros(()) for _ in range(count)]
        # another rank's, or a checkpoint's, comes on the CPU
        v = self.momentum[index] = self.momentum[index].to(delta.device).mul(outer.momentum).add(delta)
        return delta.add(v, alpha=outer.momentum).mul_(outer.rate)

    def _slots(self, captured: dict[str, Any]) -> list[Slot]:
        """Every floating-point tensor, each once."""
        found: dict[int, Slot] = {}
        for model, then in zip(self._training.models, captured["models"], strict=True):
            for what, tensors in (("parameters", model.named_parameters()), ("buffers", model.named_buffers())):
                for name, tensor in tensors:
                    if tensor.is_floating_point() or tensor.is_complex():
                        own, before = (_real(t.detach()) for t in (tensor, then[what][name]))
                        found.setdefault(id(tensor), Slot(own, before, what == "parameters", tensor.requires_grad))
        return list(found.values())


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
