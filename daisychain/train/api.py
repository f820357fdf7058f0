"""The training API: what a script sees. Alone it does next to nothing; in a chain the same script trains on all nodes.

    chain = daisychain.init()
    model, optimizer, loader = chain.prepare(model, optimizer, loader)
    for epoch in chain.epochs(10):
        for x, y in loader:
            ...
            chain.log(loss=loss)

Whatever the shares, the updates are those of one machine with the same seed and global batch, as long as the loss is a
mean over the batch's samples and the model treats samples one by one (batch normalisation doesn't).
"""

import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from daisychain.errors import ScriptError, UsageError
from daisychain.plan.shares import Cost, cut, equal, solve
from daisychain.train import cores, group, reports, sync
from daisychain.train.balance import Balancer, Schedule
from daisychain.train.batches import SharedLoader
from daisychain.train.meter import Meter
from daisychain.train.steps import Steps, Uncounted
from daisychain.train.task import Orders, Task, current

_chain: "Chain | None" = None


def init() -> "Chain":
    """This process's place in the chain; the same object at every call.

    Seeds torch (and random, numpy) with the run's seed, so that every rank builds the same model; sets the number of
    threads; and in a chain forms the process group, waiting for the other ranks.
    Raises ConfigError for a wrong DAISYCHAIN_* variable, RuntimeError when the group doesn't come about.
    """
    global _chain
    if _chain is None:
        _chain = Chain(current(), Orders.tell)
    return _chain


class Chain:
    """One rank's view of the chain. Made by `init`."""

    def __init__(self, task: Task, tell: reports.Tell) -> None:
        self._task, self._tell = task, tell
        self.rank: int = task.rank
        self.world_size: int = task.world_size
        self.device = torch.device("cpu")
        self.folder: Path = task.folder
        """Where results go: the run's folder in a chain, else the working directory."""
        self.seed = int(self.option("seed", 0))
        self._epochs: int | None = None
        self._loader: SharedLoader[Any] | None = None
        self._steps: Steps | None = None
        self._group: group.Group | None = None
        _set_threads(task)
        _seed(self.seed)
        self._join()

    def _join(self) -> None:
        if self.world_size > 1:
            if self._task.launcher == "agent":
                self._group = group.join(self._task)
            else:
                group.join_by_environment()
            self._tell(reports.joined())

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and scores."""
        return self.rank == 0

    def option(self, name: str, default: Any = None) -> Any:
        """A setting of the run (seed, batch, epochs ...), or the default when it isn't set."""
        value = self._task.settings.get(name)
        return default if value is None else value

    # --- before the loop ---------------------------------------------------------------------------

    def prepare(self, *things: Any) -> Any:
        """Model, optimizer, loader, in any order, given back in that order; a single one is given back alone.

        Models: gradients are summed over the chain (alone: unchanged). DataLoaders: give this rank's piece of each
        global batch; the first one's steps are measured and reported. Optimizers and schedulers: unchanged.
        All ranks must call it alike. Raises ScriptError for what can't be chained, and when ranks differ.
        """
        prepared = [self._share(thing) if isinstance(thing, DataLoader) else thing for thing in things]
        for thing in prepared:
            if not isinstance(thing, nn.Module | Optimizer | LRScheduler | SharedLoader):
                raise ScriptError(
                    f"chain.prepare can't do anything with a {type(thing).__name__}",
                    "Give it the model, the optimizer and the DataLoader",
                )
        prepared = [self._chained(thing) if isinstance(thing, nn.Module) else thing for thing in prepared]
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _chained(self, model: nn.Module) -> nn.Module:
        if any(isinstance(part, _BatchNorm) for part in model.modules()) and self.world_size > 1:
            self._tell(
                reports.note("batch normalisation uses each node's own part of a batch: not exactly as on one machine")
            )
        if self.world_size == 1:
            return model
        remedy = "Build the same model on every node: nothing in it may depend on the rank, the machine or its files"
        sync.check_same("the model", sync.fingerprint(model), self._names, remedy)
        return sync.chain(model, self)

    def _share(self, loader: "DataLoader[Any]") -> "SharedLoader[Any]":
        batch = self._batch_option() if self._steps is None else None
        shared: SharedLoader[Any] = SharedLoader(loader, batch=batch, seed=self.seed, rank=self.rank)
        lookahead = self._agree(shared)
        if self._steps is None:
            self._loader, self._steps = shared, self._new_steps(shared.batch_size, lookahead)
            shared.follow(self._steps)
        else:
            shared.follow(Uncounted(self._steps))
        return shared

    def _batch_option(self) -> int | None:
        batch = self.option("batch")
        if batch is not None and int(batch) < 1:
            raise UsageError(f"the batch is {batch}", "Give a number of 1 or more")
        return None if batch is None else int(batch)

    def _agree(self, shared: "SharedLoader[Any]") -> int:
        """Check that all ranks have the same data and batch; the largest number of steps that any cuts in advance."""
        if self.world_size == 1:
            return shared.lookahead
        names = self._names
        remedy = "Give every node the same files, and make the script use them in the same way everywhere"
        sync.check_same("the number of samples", [len(shared.dataset)], names, remedy)
        sync.check_same("the batch size", [shared.batch_size], names, "Don't let it depend on the machine")
        return max(int(theirs[0]) for theirs in sync.gather([shared.lookahead], torch.int64))

    def _new_steps(self, batch: int, lookahead: int) -> Steps:
        costs = [Cost(fixed_s, per_sample_s) for fixed_s, per_sample_s in self._task.speeds]
        measured = len(costs) == self.world_size and all(cost.per_sample_s > 0 for cost in costs)
        unequal = measured and self.world_size > 1 and not self.option("equal", False)
        # The reference model's fixed cost, a large part of its own short step, says nothing about a heavier model's.
        speeds = [Cost(0.0, cost.per_sample_s) for cost in costs]
        shares = solve(batch, speeds) if unequal else equal(batch, self.world_size)
        follows = unequal and self.option("rebalance", True)

        def opening() -> reports.Report:
            assert self._loader is not None
            steps = None if self._epochs is None else self._epochs * len(self._loader)
            first = shares if len(self._loader.dataset) >= batch else cut(len(self._loader.dataset), shares)
            return reports.plan(self._epochs, steps, batch, first)

        return Steps(
            schedule=Schedule(shares),
            meter=Meter(self._task.slowdown),
            balancer=Balancer(shares, costs, self._names, _gather_one) if follows else None,
            lookahead=lookahead,
            tell=self._tell,
            opening=opening,
        )

    @property
    def _names(self) -> list[str]:
        return [self._task.name_of(rank) for rank in range(self.world_size)]

    # --- the loop ----------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """0 to count - 1; the run's own number of epochs (`--epochs`) goes before `count`."""
        self._epochs = int(self.option("epochs", count))
        yield from range(self._epochs)

    def log(self, loss: "Tensor | float | None" = None, **more: "Tensor | float") -> None:
        """Report values of the current step: the mean loss over this rank's piece, and any others by name."""
        if self._steps is not None:
            value = None if loss is None else _number(loss)
            self._steps.log(value, {name: _number(other) for name, other in more.items()})

    # --- results -----------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The script's own model inside what `prepare` gave back."""
        return model.module if isinstance(model, sync.ChainedModel) else model

    def save(self, model: nn.Module, path: "str | Path" = "model.pt") -> None:
        """Write the model's state_dict, on rank 0 only: whole or not at all. A relative path is below `folder`.

        Read it back with torch.load(path, weights_only=True), on any machine, with or without DaisyChain.
        """
        if not self.is_main:
            return
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as stream:
                torch.save(self.unwrap(model).state_dict(), stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def report_scores(self, scores: Mapping[str, Any]) -> None:
        """The run's result, for its report; rank 0's counts."""
        if self.is_main:
            self._tell(reports.scores(scores))

    # --- for DaisyChain itself: the comm hook's view, and the end -------------------------------------

    @property
    def weight(self) -> float:
        """This rank's part of the current batch."""
        return self._steps.weight if self._steps is not None else 1 / self.world_size

    def ready(self) -> None:
        """The last gradients of a backward are computed."""
        if self._steps is not None:
            self._steps.ready()

    def reduced(self) -> None:
        """The exchange of some gradients is over."""
        if self._steps is not None:
            self._steps.reduced()

    def leave(self) -> None:
        """Part from the other ranks once all have finished. Raises DistError when one of them hasn't and won't."""
        if self._group is not None:
            self._group.leave()
            self._group = None


def leave() -> None:
    """End this process's part in the chain, if it has one."""
    if _chain is not None:
        _chain.leave()


def _gather_one(value: float) -> list[float]:
    return [float(theirs[0]) for theirs in sync.gather([value], torch.float64)]


def _number(value: "Tensor | float") -> float:
    return float(value.detach().item() if isinstance(value, Tensor) else value)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def _set_threads(task: Task) -> None:
    """All the cores that this process may use, and no more: a thread too many stalls all the others.

    A user's own OMP_NUM_THREADS counts when the script runs alone; torchrun's 1 doesn't.
    """
    if task.launcher == "alone" and "OMP_NUM_THREADS" in os.environ:
        return
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if task.launcher == "torchrun" else 1
    torch.set_num_threads(task.threads or max(1, cores.usable() // ranks_here))
