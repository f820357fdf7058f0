"""The training API: what a script sees. Alone it does next to nothing; in a chain the same script trains on all nodes.

    chain = daisychain.init()
    model, optimizer, loader = chain.prepare(model, optimizer, loader)
    for epoch in chain.epochs(10):
        for x, y in loader:
            ...
            chain.log(loss=loss)

Whatever the shares, and through lost and returning nodes, the updates are those of one machine with the same seed and
global batch, as long as the loss is a mean over the batch's samples (or `count` says of what else).
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial, wraps
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from daisychain.errors import ScriptError, UsageError
from daisychain.plan.sync import parse
from daisychain.train import batchnorm, checkpoint, cores, randomness, reports
from daisychain.train.batches import Piece, SharedLoader
from daisychain.train.crew import Crew
from daisychain.train.exchange import Exchange
from daisychain.train.local import LocalSteps
from daisychain.train.meter import Charge, Meter, waited_s
from daisychain.train.micro import parts_of
from daisychain.train.orders import Orders
from daisychain.train.reducer import Reducer
from daisychain.train.state import Training
from daisychain.train.steps import Steps
from daisychain.train.task import Task, from_environment
from daisychain.train.trial import Bench
from daisychain.train.uncounted import Uncounted

GO_TIMEOUT_S = 15.0
"""How long a rank waits for what the head makes of its trial; then the run goes on without."""


class Process:
    """What this process was started with, and its chain once the script asked for it. One per process."""

    task: Task | None = None
    orders = Orders()
    tell: reports.Tell = staticmethod(reports.silent)
    chain: "Chain | None" = None


def adopt(task: Task, orders: Orders, tell: reports.Tell) -> None:
    """Make this the task of the process; before the script's first `daisychain.init()`."""
    Process.task, Process.orders, Process.tell = task, orders, staticmethod(tell)


def init() -> "Chain":
    """This process's place in the chain; the same object at every call.

    Seeds torch (and random, numpy) with the run's seed, so that every rank builds the same model, and sets the
    number of threads. The ranks come together later, when the loop begins: what a script does before that is its own.
    Raises ConfigError for a wrong DAISYCHAIN_* variable.
    """
    if Process.chain is None:
        Process.chain = Chain(Process.task or from_environment(), Process.orders, Process.tell)
    return Process.chain


class Chain:
    """One rank's view of the chain. Made by `init`."""

    def __init__(self, task: Task, orders: Orders, tell: reports.Tell) -> None:
        self._task, self._tell = task, tell
        self.device = torch.device(task.device)
        """What this rank computes on: its own GPU, or the CPU."""
        self.folder: Path = task.folder
        """Where results go: the run's folder in a chain, else the working directory."""
        self.seed = int(self.option("seed", 0))
        self._training = Training([], [], [])
        self._crew = Crew(task, orders, tell)
        self._keeper = _keeper(Path(task.checkpoints), self._note) if task.checkpoints else None
        self._sync = parse(str(self.option("sync", "exact")))
        if self._sync.approximate and task.rank == 0:
            self._note(f"--sync {self.option('sync')} is {self._sync.approximate}")
        kind: Callable[..., Steps] = partial(LocalSteps, sync=self._sync) if self._sync.kind == "local" else Steps
        self._steps = kind(
            crew=self._crew,
            training=self._training,
            meter=Meter(task.slowdown, settle=_settle(self.device), charge=Charge(waited_s)),
            tell=tell,
            seed=self.seed,
            unequal=not self.option("equal", False),
            tunes=bool(self.option("tune", True)),
            tries=bool(self.option("trial", False)),
            follows=not self.option("equal", False) and bool(self.option("rebalance", True)),
            keeper=self._keeper,
            resume=self._resume,
        )
        self._orders = orders
        self._reducers: list[Reducer] = []
        self._loader: SharedLoader[Any] | None = None
        _set_threads(task)
        _seed(self.seed)

    @property
    def rank(self) -> int:
        """This process's number among those that train together now; it may change when a node is lost."""
        return self._crew.formation.rank

    @property
    def world_size(self) -> int:
        """How many train together now."""
        return self._crew.formation.world_size

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
        self._check(things)
        for thing in things:
            self._take(thing)
        prepared = [self._share(thing) if isinstance(thing, DataLoader) else thing for thing in things]
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _check(self, things: tuple[Any, ...]) -> None:
        for thing in things:
            if not isinstance(thing, nn.Module | Optimizer | LRScheduler | DataLoader):
                raise ScriptError(
                    f"chain.prepare can't do anything with a {type(thing).__name__}",
                    "Give it the model, the optimizer and the DataLoader",
                )

    def _take(self, thing: Any) -> None:
        """Make a model's gradients, batch statistics and noise the chain's; keep optimizers still in a dropped step."""
        if isinstance(thing, nn.Module) and not any(thing is model for model in self._training.models):
            randomness.attach(thing, self._steps, self._note)
        if self._task.launcher == "alone":
            return
        match thing:
            case nn.Module():
                _refuse_sparse(thing)
                self._training.models.append(thing)
                if self.option("exact_batchnorm", True):
                    batchnorm.convert(thing, self._steps)
                    for name in batchnorm.unsupported(thing):
                        self._note(f"{name} normalises over each node's own samples: results depend on the shares")
                if any(True for _ in thing.parameters()):
                    # local steps exchange no gradients; they still may have to be weighed over micro-batches
                    local = self._sync.kind == "local"
                    wire = torch.bfloat16 if self._sync.kind == "bf16" else None
                    if not local or self.option("micro"):
                        exchange = Exchange() if local else self._crew.exchange
                        self._reducers.append(Reducer(thing, self._steps, exchange, wire=wire))
                    thing.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True)
                    thing.register_state_dict_pre_hook(lambda *_: self._steps.look())  # type: ignore[no-untyped-call]
            case Optimizer():
                self._training.optimizers.append(thing)
                _guard_optimizer(thing, self._steps.acts)
            case LRScheduler():
                self._training.schedulers.append(thing)
                _guard_scheduler(thing, self._steps.schedules)

    def _before_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        if self._loader is None:  # such a script has no other moment to come together
            self._steps.ensure_formed()
        elif self._steps.tries_now and model.training:
            self._steps.tries_now = False
            self._try(model, args, kwargs)

    def _try(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See what the run will be like before its first step, and wait until that is judged."""
        assert self._loader is not None
        local = self._sync.kind == "local"
        buckets = self._reducers[0].groups if self._reducers and not local else [list(model.parameters())]
        bench = Bench(
            self._training,
            self._crew.exchange,
            self._steps,
            settle=_settle(self.device),
            slowdown=self._task.slowdown,
            most=self._most,
        )
        trial = bench.run(model, args, kwargs, self._loader, buckets)
        if trial is not None:
            # of batch normalisation: two in each of its layers, one forward and one backward
            sums = 0 if local else 2 * len(batchnorm.of_the_batch(model))
            if self.is_main:
                self._tell(trial.report(sums))
            elif trial.why:
                self._note(trial.why)
            self._orders.wait_go(self._crew.formation.generation, GO_TIMEOUT_S)
            self._steps.know([rank.cost for rank in trial.ranks] if trial.known else [])

    def _share(self, loader: "DataLoader[Any]") -> "SharedLoader[Any]":
        main = self._loader is None
        if main:
            batch = self._count_option("batch")
            shared: SharedLoader[Any] = SharedLoader(loader, batch=batch, seed=self.seed, parts=self._parts)
        else:
            shared = SharedLoader(loader, batch=None, seed=self.seed)
        if main:
            self._loader = shared
            self._steps.attach(
                samples=len(shared.dataset),
                drop_last=shared.drop_last,
                batch=shared.batch_size,
                length=len(shared),
                lookahead=shared.lookahead,
            )
            shared.follow(self._steps)
        else:
            shared.follow(Uncounted(self._steps))
        return shared

    def _parts(self, piece: Piece) -> list[Piece]:
        return parts_of(piece, self._most)

    @cached_property
    def _most(self) -> int | None:
        """The most samples that this rank computes at once; None: no limit."""
        most = self._count_option("micro") if self._task.launcher != "alone" else None
        normed = [name for model in self._training.models for name in batchnorm.of_the_batch(model)]
        if most is not None and normed:
            self._note(f"--micro-batch is not used: {normed[0]} normalises over the whole batch; GroupNorm would not")
            return None
        return most

    def _count_option(self, name: str) -> int | None:
        count = self.option(name)
        if count is not None and int(count) < 1:
            raise UsageError(f"{name} is {count}", "Give a number of 1 or more")
        return None if count is None else int(count)

    def _note(self, text: str) -> None:
        self._tell(reports.note(text))

    # --- the loop ----------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """0 to count - 1; the run's own number of epochs (`--epochs`) goes before `count`.

        A node that comes into a run that goes on, or a resumed run, starts with the epoch that the run is in.
        """
        steps = self._steps
        steps.epochs = int(self.option("epochs", count))
        if self._loader is not None:
            steps.ensure_formed()
            self._loader.passes = steps.turn_pass
        for epoch in range(steps.turn, steps.epochs):
            steps.turn = epoch
            if self._loader is not None:
                steps.turn_pass = self._loader.passes
            yield epoch

    def _resume(self) -> dict[str, Any] | None:
        task = self._task
        return checkpoint.newest(Path(task.checkpoints), self._note) if task.resume and task.checkpoints else None

    def count(self, targets: "Tensor | float") -> None:
        """Say how many targets (tokens, masked elements ...) this piece's loss is a mean over; before its backward.

        Then gradients are weighed by targets instead of samples. All ranks must call it in the same steps.
        """
        self._steps.count(_number(targets))

    def log(self, loss: "Tensor | float | None" = None, **more: "Tensor | float") -> None:
        """Report values of the current step: the mean loss over this rank's piece, and any others by name."""
        value = None if loss is None else _number(loss)
        self._steps.log(value, {name: _number(other) for name, other in more.items()})

    # --- results -----------------------------------------------------------------------------------

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The script's own model; `prepare` gives it back as it is."""
        self._steps.look()
        return model

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
                torch.save(model.state_dict(), stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def report_scores(self, scores: Mapping[str, Any]) -> None:
        """The run's result, for its report; rank 0's counts."""
        if self.is_main:
            self._tell(reports.scores(scores))

    # --- the end, for the process that runs the script ---------------------------------------------------

    def leave(self) -> None:
        """Wait until every rank has finished; until then, help those that are behind."""
        self._tell(reports.done())
        self._crew.linger(self._steps)
        self._crew.close()


def leave() -> None:
    """End this process's part in the chain, if it has one."""
    if Process.chain is not None:
        Process.chain.leave()
    else:
        Process.tell(reports.done())


def _refuse_sparse(model: nn.Module) -> None:
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ScriptError(f"{name or 'the model'} has sparse gradients, which can't be summed", "Use sparse=False")


def _keeper(folder: Path, tell: Callable[[str], None]) -> checkpoint.Keeper:
    return checkpoint.Keeper(folder, time.monotonic, tell=tell)


def _guard_optimizer(optimizer: Optimizer, acts: Callable[..., bool]) -> None:
    """Let its step act only when it may (Steps.acts). The attribute stays a bound method, which schedulers need."""
    step = optimizer.step

    @wraps(getattr(step, "__func__", step))
    def guarded(_: Optimizer, *args: Any, **more: Any) -> Any:
        return step(*args, **more) if acts(closure=bool(args or more)) else None

    optimizer.step = MethodType(guarded, optimizer)  # type: ignore[method-assign]


def _guard_scheduler(scheduler: LRScheduler, live: Callable[[], bool]) -> None:
    """Let its step act only while `live`. Not by an attribute: its state_dict is all of its attributes."""
    kind: Any = type(scheduler)

    def guarded(self: LRScheduler, *args: Any, **more: Any) -> Any:
        return kind.step(self, *args, **more) if live() else None

    scheduler.__class__ = type(kind.__name__, (kind,), {"step": guarded, "__module__": kind.__module__})


def _settle(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done what it was told; a CPU always has."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


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
