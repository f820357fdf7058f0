"""Exact gradients over unequal shares: DistributedDataParallel with one comm hook, and the checks before it.

With the loss a mean over its samples, the gradient of a whole batch of B is the sum over ranks of n_r / B times the
rank's own gradient. The hook weights each bucket by n_r / B and sums; plain DDP, which averages, would be wrong.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from daisychain.errors import ScriptError


class Steps(Protocol):
    """What the hook asks and tells (steps.Steps)."""

    @property
    def weight(self) -> float:
        """n_r / B of the current batch."""

    def ready(self) -> None:
        """The last gradients are computed."""

    def reduced(self) -> None:
        """A bucket's exchange is over."""


class ChainedModel(DistributedDataParallel):
    """DDP that otherwise looks like the model inside: its attributes, its methods, its state_dict keys."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)


def chain(model: nn.Module, steps: Steps) -> nn.Module:
    """The model, its gradients summed by weight over all ranks; every rank starts from rank 0's parameters."""
    # Buffers aren't broadcast at every forward: that would be one more exchange a step, paid for running statistics.
    chained = ChainedModel(model, broadcast_buffers=False)
    chained.register_comm_hook(None, weighted_sum(steps))
    return chained


def weighted_sum(steps: Steps) -> Callable[[object, GradBucket], torch.futures.Future[Tensor]]:
    """A DDP comm hook: weight the bucket, then sum over ranks."""

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        gradients, weight = bucket.buffer(), steps.weight
        if weight:
            gradients.mul_(weight)
        else:  # a sample that doesn't count may have a gradient of NaN, and 0 * NaN is NaN
            gradients.zero_()
        if bucket.is_last():
            steps.ready()
        work = cast(dist.Work, dist.all_reduce(gradients, op=dist.ReduceOp.SUM, async_op=True))

        def over(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            summed = future.value()[0]
            steps.reduced()
            return summed

        return cast("torch.futures.Future[Tensor]", work.get_future().then(over))

    return hook


def fingerprint(model: nn.Module) -> tuple[int, int, int, int]:
    """Names, shapes and dtypes of all parameters, hashed; values don't matter, rank 0's are sent to all."""
    text = "\n".join(f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in model.named_parameters())
    digest = hashlib.sha256(text.encode()).digest()
    words = [int.from_bytes(digest[at : at + 8], "little", signed=True) for at in range(0, 32, 8)]
    return words[0], words[1], words[2], words[3]


def gather(values: Sequence[int] | Sequence[float], kind: torch.dtype) -> list[list[Any]]:
    """Every rank's values, in rank order; all ranks must call this with equally many."""
    mine = torch.tensor(values, dtype=kind)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [theirs.tolist() for theirs in everyone]


def check_same(what: str, mine: Sequence[int], names: Sequence[str], remedy: str) -> None:
    """Raises ScriptError naming the first rank whose numbers differ from rank 0's; the same error on every rank."""
    everyone = gather(mine, torch.int64)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            detail = f" ({theirs[0]} and {everyone[0][0]})" if len(theirs) == 1 else ""
            raise ScriptError(f"{what} on {names[rank]} differs from {names[0]}'s{detail}", remedy)
