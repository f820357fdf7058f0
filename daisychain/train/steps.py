"""One rank's way through a run, step by step: where it is, what its current piece weighs, and what is told of it.

A step is complete once the sums of its gradients have arrived; then the script's own optimizer applies them. A step
during which a rank is lost is dropped: the optimizer's step does nothing, what the forward pass changed is put back,
and the loader gives the same global batch again once the chain has formed anew.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from daisychain.errors import LinkError, ScriptError
from daisychain.plan.shares import Cost, cut, equal, fitting, solve
from daisychain.train import checkpoint, knobs, reports
from daisychain.train.balance import COLD_STEPS, Balancer, Schedule, first_costs, outlasts_trial, typical
from daisychain.train.batches import Piece
from daisychain.train.crew import FRESH, Crew, Standing
from daisychain.train.exchange import Exchange
from daisychain.train.meter import Meter, Times
from daisychain.train.micro import Parts
from daisychain.train.randomness import begin_attempt
from daisychain.train.reducer import fingerprint
from daisychain.train.state import Training, digest
from daisychain.train.undo import Before, gradients, put_gradients

LEDGER_LINES = 100
"""Of the last steps, kept in checkpoints: more than what can be on the way to a head when that is lost."""
PRECISE = 10_000
"""Numbers below this stay exact when float32 sums them over the ranks."""
HASH_EVERY = 50
"""Steps between two comparisons of all replicas' parameters."""
RECENT = 20
"""Steps from which a rank's own speed is taken when a new generation needs first shares."""


class Steps:
    """Follows the main loader's steps; the reducer asks it for the weight of the moment. One a process."""

    lockstep = True
    """Whether ranks wait for each other in each step."""

    def __init__(
        self,
        *,
        crew: Crew,
        training: Training,
        meter: Meter,
        tell: reports.Tell,
        seed: int,
        follows: bool = True,
        unequal: bool = True,
        tunes: bool = True,
        tries: bool = False,
        keeper: checkpoint.Keeper | None = None,
        resume: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        """follows: shares follow the measured speeds. unequal: they come from the nodes' speeds at all.

        tunes: what speed depends on, and nothing else, is chosen by measurement (knobs).
        tries: the model is tried before the first step (trial).
        resume: reads the checkpoint to go on from, if there is one.
        """
        self._crew, self._training, self._meter, self._tell = crew, training, meter, tell
        self.seed, self._follows, self._unequal, self._keeper = seed, follows, unequal, keeper
        self._resume, self._tunes, self._tries = resume, tunes, tries
        self.tries_now = False
        """Whether all ranks try the model in the next forward."""
        self._timing = knobs.Timing()
        self._parts = Parts()
        self._exchange = self._sums = crew.exchange
        self.finished = self._first = 0
        self.epoch = self.index = 0
        """The pass over the data, and the batch in it, that come next."""
        self.turn = self.turn_pass = 0
        """The script's own epoch (chain.epochs), and the pass over the data with which it began."""
        self.epochs: int | None = None
        """The script's number of epochs; None: unknown."""
        self._drop_last = False
        self._length = self._samples = self._lookahead = self._batch = 0
        self._formed, self._fresh = False, True
        self._caps: dict[str, int] = {}
        """By rank name, the most samples that its memory holds, where that is known."""
        self._planned: Schedule | None = None
        self._balancer: Balancer | None = None
        self._piece: Piece | None = None
        self._weighed: Piece | None = None
        self._previous: Piece | None = None
        self._previous_s = self._previous_step_s = 0.0
        self._recent: list[float] = []
        self._lines: deque[tuple[reports.Report, tuple[str, ...]]] = deque(maxlen=LEDGER_LINES)
        """Reports of the last steps, and who took part in each."""
        self.recent: list[reports.Report] = []
        """The ledger's lines of the last steps, as a checkpoint had them."""
        self._counted: float | None = None
        self._board: list[float] = []
        self._boundary = self._dropped = self._complete = self._skipping = False
        self._odd_replica = False
        self._mixed = False
        """Whether CPUs and GPUs train together: they round in other ways, and no two replicas are equal to the bit."""
        self._before: Before | None = None
        self._acts = 1
        """How often optimizers stepped in the last step."""
        self._irregular = False
        self._loss: float | None = None
        self._logged: dict[str, float] = {}
        self._diverged = False

    # --- forming --------------------------------------------------------------------------------------

    def attach(self, *, samples: int, drop_last: bool, batch: int, length: int, lookahead: int) -> None:
        """The main loader: its samples, global batch, steps of a pass, and steps that it prepares ahead."""
        self._drop_last = drop_last
        self._samples, self._batch, self._length, self._lookahead = samples, batch, length, lookahead

    @property
    def has_loader(self) -> bool:
        return self._length > 0

    def ensure_formed(self) -> None:
        """Be in a generation; waits for the other ranks the first time."""
        if not self._formed:
            self._formed = True
            record = self._resume()
            if record is not None:
                self.restore(record)
                self.recent = list(record["ledger"].get("recent", ()))
            elif self._tunes:
                self._timing = knobs.time_step(self._fusible)
            self.muster()

    def muster(self) -> None:
        """Form anew with whoever is there, and take shares for them."""
        everyone = self._crew.muster(self)
        self._mixed = len({standing.gpu for standing in everyone}) > 1
        self._tune(everyone)
        untried = all(standing.untried and standing.completed == FRESH for standing in everyone)
        self.tries_now, self._tries = untried and len(everyone) > 1, False
        self._boundary = self._odd_replica = self._fresh = self._dropped = False
        self.recent = []
        names = self._crew.formation.names
        shares, known = self._first_shares(everyone)
        self._lookahead = max(standing.lookahead for standing in everyone)
        self._planned, self._previous = Schedule(shares), None
        skip = COLD_STEPS if not self.finished else 1
        follows = self._follows and len(names) > 1
        self._balancer = Balancer(shares, known, names, skip=skip, lockstep=self.lockstep) if follows else None
        if self.has_loader:
            self._tell(self._plan(shares))

    @property
    def _fusible(self) -> list[Optimizer]:
        return knobs.fusible(self._training.optimizers, self._training.models)

    def _tune(self, everyone: Sequence[Standing]) -> None:
        """Optimizers are chosen before the first step and then stay; whoever comes later gets them with the state."""
        if not self._tunes:
            return
        timings = [knobs.Timing(standing.plain_ns, standing.fused_ns) for standing in everyone]
        if all(standing.completed == FRESH for standing in everyone) and knobs.fused_is_faster(timings):
            knobs.fuse(self._fusible)
        self._exchange.bucket_bytes = knobs.bucket_bytes(self._time_link())
        fused = any(group.get("fused") for optimizer in self._training.optimizers for group in optimizer.param_groups)
        plain_ms, fused_ms = (ns / 1e6 for ns in self._timing)
        self._tell(reports.knobs(torch.get_num_threads(), fused, plain_ms, fused_ms, self._exchange.bucket_bytes or 0))

    def _time_link(self) -> knobs.Link | None:
        """None, too, for models that are a single bucket anyway."""
        size = max((_trained_bytes(model) for model in self._training.models), default=0)
        return knobs.time_link(self._exchange) if size > knobs.LEAST_BUCKET_BYTES else None

    def _plan(self, shares: tuple[int, ...]) -> reports.Report:
        epochs = self.epochs
        first = shares if self._samples >= self._batch else cut(self._samples, shares)
        steps = None if epochs is None else epochs * self._length
        return reports.plan(epochs, steps, self._batch, first, self._samples, self._drop_last)

    def _first_shares(self, everyone: Sequence[Standing]) -> tuple[tuple[int, ...], list[Cost]]:
        speeds = self._crew.formation.speeds
        names = self._crew.formation.names
        caps = [self._caps.get(name) for name in names] if len(names) == len(speeds) else [None] * len(speeds)
        found = [Cost(fixed_s, per_sample_s, cap) for (fixed_s, per_sample_s), cap in zip(speeds, caps, strict=True)]
        known = fitting(self._batch, found)
        usable = self._unequal and len(known) == len(everyone) and all(cost.per_sample_s > 0 for cost in known)
        if not usable or len(everyone) == 1:
            return equal(self._batch, len(everyone)), known or [Cost(0.0, 1.0) for _ in everyone]
        measured = [standing.per_sample_ns / 1e9 for standing in everyone]
        return solve(self._batch, first_costs(known, measured)), known

    @property
    def piece_now(self) -> Piece | None:
        """What the script has just been given."""
        return self._weighed

    @contextmanager
    def set_aside(self, sums: Exchange | None = None) -> Iterator[None]:
        """Inside, other pieces may be computed; afterwards the step goes on as if it had just begun.

        sums: by which layers that look at the whole batch still do so; None: they look at this rank's.
        """
        kept = self._weighed, self._counted, self._acts
        self._sums = sums or self._exchange
        self._meter.drop()
        try:
            with self._exchange.apart():
                yield
        finally:
            self._sums = self._exchange
            self._weighed, self._counted, self._acts = kept
            self._meter.begin()
            begin_attempt(self)

    def know(self, costs: Sequence[Cost]) -> None:
        """All ranks know what a step of the model costs on each: shares follow, from the next step on.

        costs: in rank order; empty where it is unknown.
        """
        self._meter.begin()
        if self._balancer is None or not costs or not all(cost.per_sample_s > 0 for cost in costs):
            return
        names = self._crew.formation.names
        self._caps = {name: cost.cap for name, cost in zip(names, costs, strict=True) if cost.cap is not None}
        costs = fitting(self._batch, costs)
        before, shares = self._schedule.at(self.finished), solve(self._batch, costs)
        first = self.finished + 1 + self._lookahead
        self._schedule.change(first, shares)
        step_s = max(cost.step_s(share) for cost, share in zip(costs, shares, strict=True) if share)
        eager = outlasts_trial(step_s, lockstep=self.lockstep)
        self._balancer = Balancer(shares, costs, names, eager=eager, lockstep=self.lockstep)
        if shares != before:
            self._tell(reports.shares(first + 1, shares, "the model itself was tried on every node"))

    def standing(self) -> Standing:
        per_sample_s = typical(self._recent) if self._recent else 0.0
        behind = self._fresh or self._odd_replica
        return Standing(
            completed=FRESH if behind else self.finished,
            per_sample_ns=round(per_sample_s * 1e9),
            lookahead=self._lookahead,
            samples=self._samples,
            batch=self._batch,
            model=fingerprint(self._training.models),
            plain_ns=self._timing.plain_ns,
            fused_ns=self._timing.fused_ns,
            untried=int(self._tries),
            gpu=int(any(p.is_cuda for model in self._training.models for p in model.parameters())),
        )

    def capture(self) -> dict[str, Any]:
        place = {name: getattr(self, name) for name in ("finished", "epoch", "index", "turn", "turn_pass")}
        # between two steps only a script that adds gradients up over several batches needs them
        kept = gradients(self._training) if self._irregular else []
        return {**place, "training": self._training.capture(), "gradients": kept}

    def restore(self, captured: dict[str, Any]) -> None:
        self._training.restore(captured["training"])
        put_gradients(self._training, captured["gradients"])
        self._irregular = self._irregular or bool(captured["gradients"])
        for name in ("finished", "epoch", "index", "turn", "turn_pass"):
            setattr(self, name, int(captured[name]))
        self._fresh = False

    def save(self) -> None:
        """Write a checkpoint of the last complete step, and wait until it is on the disk."""
        if self._keeper is not None and not self._fresh:
            self._keeper.write(self._record())
            self._keeper.close(wait_s=60.0)

    def _record(self) -> dict[str, Any]:
        ledger = {"recent": [_ledger_line(report, names) for report, names in self._lines]}
        captured = self.capture()
        return {"v": checkpoint.VERSION, "step": captured["finished"], "ledger": ledger, **captured}

    # --- for the loader ----------------------------------------------------------------------------

    def starts(self, number: int) -> Iterator[tuple[int, int]]:
        """Where to begin pass `number`, and to begin again each time the chain has formed anew.

        A pass that is done already, by those who were here before, has none.
        """
        self.ensure_formed()
        if number > self.epoch:
            self.epoch, self.index = number, 0
        self._skipping = number < self.epoch
        while self.epoch <= number:
            self._first = self.finished
            yield self.epoch, self.index
            if self._called:
                self.muster()

    def shares_at(self, ahead: int) -> tuple[int, ...]:
        return self._schedule.at(self._first + ahead)

    def begin(self) -> None:
        """The next batch is asked for."""
        self._meter.begin()

    def take(self, piece: Piece, parts: Sequence[Piece]) -> None:
        """It is there; its first part comes now."""
        self._piece, self._loss, self._logged = piece, None, {}
        self._dropped = self._complete = False
        begin_attempt(self)
        self._irregular = self._irregular or self._acts != 1
        self._before = self._remembered()
        self._acts = 0
        self._parts.begin(piece, parts, adds_up=self._irregular)
        self.weigh(parts[0])

    def _remembered(self) -> Before | None:
        """What puts the step that begins back, should it be lost."""
        return Before(self._training, whole=self._irregular) if not self._exchange.alone else None

    def next_part(self, part: Piece) -> None:
        """The next part of the piece comes. Noise goes by the sample's position, so it counts forwards anew."""
        self._parts.log(self._loss, self._logged)
        self._loss, self._logged = None, {}
        self._parts.next(part)
        begin_attempt(self)
        self.weigh(part)

    def drop(self) -> None:
        """There was no further batch, or the script left it between two of its parts."""
        self._meter.drop()
        if self._parts.is_open:
            self._parts, self._acts = Parts(), 1

    def end(self) -> bool:
        """The step with it is over. False when the loader must stop: the chain forms anew."""
        piece, self._piece = self._piece, None
        if piece is None:
            return True
        return self._complete_step(piece, self._meter.end()) and not self._called

    def _complete_step(self, piece: Piece, times: Times) -> bool:
        """Count the step; False when it was lost."""
        if self._is_lost:
            if self._before is not None:
                self._before.put_back()
            return False
        self._advance(piece, times)
        if self._tell is not reports.silent:
            self._tell_step(self._step_report(piece, times))
        self._balance(piece, times)
        self._keep()
        return True

    def _keep(self) -> None:
        """Write a checkpoint if it is time."""
        if self._keeper is not None and self._keeper.due(time.monotonic()):
            self._keeper.write(self._record())

    def _advance(self, piece: Piece, times: Times) -> None:
        self.finished += 1
        self.index += 1
        if self.index >= self._length:
            self.epoch, self.index = self.epoch + 1, 0
        if piece.share:
            self._recent = [*self._recent[1 - RECENT :], times.charged_s / piece.share]

    @property
    def _called(self) -> bool:
        return self._boundary or self._odd_replica or self._crew.called

    def _balance(self, piece: Piece, times: Times) -> None:
        """All ranks' times of the step before came along with this one's gradients."""
        previous, self._previous = self._previous, piece
        self._previous_s, self._previous_step_s = times.charged_s, times.step_s
        if previous is not None and self._board:
            self._rebalance(previous, self._times, self._board[3] / self.world_size)

    def _rebalance(self, piece: Piece, compute_s: Sequence[float], step_s: float = 0.0) -> bool:
        """Take all ranks' times of a step, and that of the whole step, 0 where it is unknown; whether shares change."""
        if self._balancer is None:
            return False
        change = self._balancer.observe(piece.shares, piece.batch, compute_s, step_s)
        if change is None:
            return False
        shares, reason = change
        first = self.finished + self._lookahead
        self._schedule.change(first, shares)
        self._tell(reports.shares(first + 1, shares, reason))
        return True

    def _step_report(self, piece: Piece, times: Times) -> reports.Report:
        if self._parts.many:
            self._loss, self._logged = self._parts.logged(self._loss, self._logged)
        return reports.step(
            number=self.finished,
            generation=self._exchange.generation,
            epoch=piece.epoch,
            index=piece.number,
            first=piece.number * self._batch,
            digest=piece.digest,
            batch=piece.batch,
            share=piece.share,
            shares=piece.shares,
            compute_ms=times.compute_s * 1000,
            exposed_ms=times.exposed_s * 1000,
            step_ms=times.step_s * 1000,
            loss=self._loss,
            logged=self._logged,
        )

    def _tell_step(self, report: reports.Report) -> None:
        """A step is applied."""
        self._tell(report)
        self._lines.append((report, self._crew.formation.names))

    @property
    def _schedule(self) -> Schedule:
        if self._planned is None:  # a further loader's pass before the first generation
            return Schedule(equal(self._batch or 1, self._crew.formation.world_size))
        return self._planned

    @property
    def shares_now(self) -> tuple[int, ...]:
        """The shares of the step that comes next, or is being done."""
        return self._schedule.at(self.finished)

    @property
    def rank(self) -> int:
        return self._crew.formation.rank

    # --- where this rank stands (place.Place) ---------------------------------------------------------

    @property
    def step(self) -> int:
        return self.finished

    @property
    def first(self) -> int:
        return self._weighed.first if self._weighed is not None else 0

    @property
    def share(self) -> int:
        return self._weighed.share if self._weighed is not None else 1

    @property
    def batch(self) -> int:
        return self._weighed.batch if self._weighed is not None else self.world_size

    @property
    def weight(self) -> float:
        """This rank's part of the newest batch. Before the first: all ranks alike."""
        if self._counted is not None:
            return self._counted
        return self._parts.weight or self.share / self.batch

    @property
    def world_size(self) -> int:
        # layers that look at the whole batch compute as they do in a step, also while this rank is apart
        return self._crew.formation.world_size if self._exchange.is_apart else self._exchange.world_size

    def total(self, values: Tensor) -> Tensor:
        """Summed over all ranks, which is waiting, not computing."""
        if self._sums.alone:
            return values
        self._meter.ready()
        try:
            return self._sums.total(values)
        finally:
            self._meter.reduced()

    def weigh(self, piece: Piece) -> None:
        """Gradients from now on come from this piece."""
        self._weighed, self._counted = piece, None

    def count(self, targets: float) -> None:
        """Gradients from now on weigh by a number of targets instead of samples."""
        mine = float(targets) if self.share else 0.0
        own = self._parts.count(mine)
        if self._parts.is_open:
            return
        everyone = float(self.total(torch.tensor([own], dtype=torch.float64)))
        whole = self.batch if self._parts.many else mine
        self._counted = whole / everyone if everyone else 0.0

    # --- for the reducer -----------------------------------------------------------------------------

    @property
    def in_parts(self) -> bool:
        """Whether the step has several parts, whose gradients are added up."""
        return self._parts.many and not self._exchange.is_apart

    def add_part(self, parameters: Sequence[nn.Parameter]) -> bool:
        """A part's backward is over; whether it was the last one's, and the parameters have the sums."""
        self._parts.add(parameters)
        return not self._parts.is_open

    def ready(self) -> None:
        self._meter.ready()

    def reduced(self) -> None:
        """The exchange is over, one way or the other."""
        self._meter.reduced()
        if self._exchange.broken:
            self._dropped = True
            if not self.has_loader:
                raise LinkError(
                    f"lost the connection to another node: {self._exchange.broken}",
                    "Give chain.prepare the DataLoader: then the chain goes on without it",
                )

    def bulletin(self) -> list[float]:
        """What every rank must know of all others: share, step, wish for a boundary, times, hashes of parameters."""
        me, size = self.rank, self.world_size
        times, hashes = [0.0] * size, [0.0] * size
        times[me] = self._previous_s
        if self._compares:
            hashes[me] = float(digest(self._training.models))
        share = self._piece.share if self._piece is not None else 0
        wish = float(self._crew.wants_boundary)
        return [float(share), float(self.finished % PRECISE), wish, self._previous_step_s, *times, *hashes]

    @property
    def _compares(self) -> bool:
        return not self._mixed and self.finished % HASH_EVERY == HASH_EVERY - 1

    def posted(self, bulletin: list[float]) -> None:
        """Everybody's bulletins, summed; so this step has everybody's gradients. Raises ScriptError when it can't be.

        The shares must add up to the batch: the proof that each sample is in, once.
        """
        self._complete, self._board = True, bulletin
        share, step, wish = bulletin[:3]
        if self._piece is not None and (share, step) != (self._piece.batch, self.finished % PRECISE * self.world_size):
            raise ScriptError(
                f"the nodes are not at the same step {self.finished + 1}: {share:.0f} of {self._piece.batch} samples",
                "Every batch needs the same number of backward passes on every node",
            )
        self._boundary = self._boundary or wish > 0
        if self._compares:
            self._look_at(bulletin[4 + self.world_size :])

    @property
    def _times(self) -> list[float]:
        return self._board[4 : 4 + self.world_size]

    def _look_at(self, hashes: Sequence[float]) -> None:
        """Replicas that differ from the majority take its state; all form anew at this step's end."""
        right = max(hashes, key=lambda value: (hashes.count(value), -hashes.index(value)))
        odd = [self._crew.formation.names[rank] for rank, value in enumerate(hashes) if value != right]
        if odd and not self._mixed:
            self._odd_replica = hashes[self.rank] != right
            self._boundary = True
            self._tell(reports.note(f"the parameters on {', '.join(odd)} differ from the others' and are replaced"))

    # --- for the optimizer and the script --------------------------------------------------------------

    @property
    def _is_lost(self) -> bool:
        return self._dropped or bool(self._exchange.broken and not self._complete)

    @property
    def live(self) -> bool:
        """Whether optimizers and schedulers may act: not in a dropped step, nor in a pass that is done already."""
        return not (self._skipping or self._is_lost or self._parts.is_open)

    def schedules(self) -> bool:
        """A scheduler is to step; whether it may."""
        return self.live

    def look(self) -> None:
        """The script looks at the models."""

    def acts(self, *, closure: bool = False) -> bool:
        """An optimizer is to step; whether it may. closure: it is to compute its gradients itself."""
        self._parts.act(closure=closure)
        if not self._parts.is_open:
            self._acts += 1
        return self.live

    def log(self, loss: float | None, more: dict[str, float]) -> None:
        """Values of the current step; a loss that isn't a number is reported as unknown, and said once."""
        if loss is not None and not isfinite(loss):
            if not self._diverged:
                self._diverged = True
                self._tell(reports.note(f"the loss is {loss} at step {self.finished + 1}: the training has diverged"))
            loss = None
        self._loss = loss if loss is not None else self._loss
        self._logged |= {name: value for name, value in more.items() if isfinite(value)}


def _trained_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def _ledger_line(report: reports.Report, names: tuple[str, ...]) -> reports.Report:
    """As run/ledger.py wants it; the digest in words, for it may be larger than what others take for a number."""
    kept = {name: report[name] for name in ("step", "epoch", "index", "first", "batch", "generation")}
    shares = dict(zip(names, report["shares"], strict=True))
    return {**kept, "digest": str(report["digest"]), "shares": shares}
