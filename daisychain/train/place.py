"""Where a rank stands in the current global batch; what layers that look at a whole batch ask for."""

from typing import Protocol

from torch import Tensor


class Place(Protocol):
    """The current piece of this rank, valid from the moment the loader gives it until the step's end."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def step(self) -> int:
        """The global step, counted from 0; the same on all ranks, and again the same when a step is redone."""

    @property
    def first(self) -> int:
        """Position of this rank's first sample in the global batch."""

    @property
    def share(self) -> int:
        """Samples of the global batch that count here. With 0 the script still gets one sample, of weight 0."""

    @property
    def batch(self) -> int:
        """Samples of the whole global batch."""

    @property
    def weight(self) -> float:
        """The factor that this rank's gradients are multiplied with before they are summed over all ranks."""

    @property
    def world_size(self) -> int:
        """Ranks of the moment; 1: `total` gives back what it gets."""

    def total(self, values: Tensor) -> Tensor:
        """Elementwise sum over all ranks; a collective, so all must call it alike. Never raises.

        Once a rank is lost it gives back the local values, and the step in flight is dropped and done again.
        """
