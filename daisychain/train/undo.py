"""Dropping a step: what it has changed so far is put back as it was before."""

from typing import Any

import torch
from torch import Tensor

from daisychain.train.state import Training


class Before:
    """A step's beginning.

    A script that calls its optimizer's step once a batch has changed only what a forward pass changes: buffers and the
    random state. One that steps twice a batch (two networks), or every few batches (gradients add up meanwhile), has
    changed parameters or needs gradients from before, so everything is kept.
    """

    def __init__(self, training: Training, *, whole: bool) -> None:
        self._training = training
        self._buffers = [buffer for model in training.models for buffer in model.buffers()]
        self._copies = [buffer.clone() for buffer in self._buffers]
        self._random = torch.get_rng_state()
        self._all: dict[str, Any] | None = training.capture() if whole else None
        self._gradients = gradients(training) if whole else []

    def put_back(self) -> None:
        """Undo the step. Parameters and buffers keep their identity."""
        if self._all is not None:
            self._training.restore(self._all)
            put_gradients(self._training, self._gradients)
        with torch.no_grad():
            for buffer, copy in zip(self._buffers, self._copies, strict=True):
                buffer.copy_(copy)
        torch.set_rng_state(self._random)


def gradients(training: Training) -> list[Tensor | None]:
    """Copies of all parameters' gradients; None where there is none."""
    return [None if p.grad is None else p.grad.clone() for model in training.models for p in model.parameters()]


def put_gradients(training: Training, found: list[Tensor | None]) -> None:
    """Give them back; nothing happens for an empty list."""
    parameters = [parameter for model in training.models for parameter in model.parameters()]
    for parameter, gradient in zip(parameters, found, strict=False):
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
