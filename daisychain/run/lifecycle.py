"""A run's progress from what its ranks report: no clock, no file, no socket; time is an argument.

Where a step's time goes, from two durations that every rank measures by itself (no clocks compared): `compute_ms`,
and `exposed_ms` from its own gradients being ready to the exchange being over. The rank that is ready last waits for
nobody, so the smallest exposed time is the exchange itself (sync), and what a rank spends beyond it is waiting.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from daisychain.facts import ENDED, Foretold, NodeStep, Phase, RunSpec, RunState
from daisychain.run.contribution import Part, advice, contributions

RECENT = 20
"""Steps that a shown mean is taken over. Not a median: under a CPU quota most short steps run at full speed, then one
stalls for all of them."""
HISTORY = 200
LOG_LINES = 200
WARMUP_STEPS = 2
"""Steps left out of the throughput: caches are cold and shares still those of the reference model."""

ADVISE_AT = 60
"""Steps after which the shares have settled, and it is said once if a node slows the run down."""

ALL_LENT = "every node is used by its owner; the run goes on once one is given back"


class Tracker:
    """Progress of one run; `report` takes what ranks say, `state` is what people see."""

    def __init__(self, *, run: str, name: str, folder: str, spec: RunSpec, now_s: float) -> None:
        self._run, self._name, self._folder, self._spec = run, name, folder, spec
        self._started_s = now_s
        self._names: tuple[str, ...] = ()
        self._node_of: dict[str, str] = {}
        """The node of each seat, both by name."""
        self._phase: Phase = "preparing"
        self._detail = ""
        self._members: dict[int, tuple[int, ...]] = {}
        """Seats of each generation, in rank order."""
        self._pending: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = {}
        """Reports of a step by (generation, step), by seat."""
        self._recent: deque[tuple[float, Mapping[str, NodeStep], float]] = deque(maxlen=RECENT)
        self._losses = Thinned(HISTORY)
        self._step_times = Thinned(HISTORY)
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._plan: Mapping[str, Any] = {}
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._samples = 0
        self._warm_samples = 0
        self._step = 0
        self._epoch = 0
        self._batch: int | None = None
        self._speeds: dict[str, deque[tuple[int, float]]] = {}
        self._outcome: dict[str, Any] = {}
        self.samples, self.drop_last = 0, False
        """Of a whole pass, and whether a ragged last batch is left out; 0: not known yet."""
        self._ended_s: float | None = None
        self._paused_s: float | None = None
        """Since when it is paused."""
        self._lent: set[str] = set()
        self._warned = self._advised = False
        self.foretold: Foretold | None = None
        self.left_out: tuple[str, ...] = ()
        """Nodes without which the run was forecast to be faster."""
        self.scores: dict[str, Any] = {}
        self.ledger = ""
        """What the ledger proves, or what is wrong with it."""

    @property
    def ended(self) -> bool:
        return self._phase in ENDED

    @property
    def step(self) -> int:
        """Steps applied."""
        return self._step

    @property
    def batch(self) -> int:
        """The global batch; 0: not known yet."""
        return int(self._plan.get("batch", 0))

    @property
    def step_ms(self) -> float | None:
        """Of the newest steps, a mean; None before the first."""
        return mean(ms for ms, _, _ in self._recent) if self._recent else None

    @property
    def steps(self) -> int | None:
        """Of the whole run; None: unknown."""
        return self._plan.get("steps")

    @property
    def phase(self) -> Phase:
        return self._phase

    def seat(self, names: Sequence[str], nodes: Sequence[str] = ()) -> None:
        """The names by seat; the newest generation takes all of them until `form` says otherwise.

        nodes: the node of each seat; without it every seat is a node.
        """
        self._names = tuple(names)
        self._node_of = dict(zip(names, nodes or names, strict=True))

    def form(self, generation: int, seats: Sequence[int], completed: int) -> list[dict[str, Any]]:
        """A generation begins after `completed` steps; the metrics lines of steps whose last reports got lost.

        With other steps completed than were seen, the run goes on from a checkpoint, or from the state of a rank that
        was away while the others had gone back to one.
        """
        self._members[generation] = tuple(seats)
        lines = []
        for key in sorted(self._pending, key=lambda key: key[1]):
            ranks = self._pending.pop(key)
            if self._step < key[1] <= completed:
                lines.append(self._complete(key, ranks, self._last[0] if self._last else self._started_s))
        self._step = completed
        return lines

    def enter(self, phase: Phase, detail: str = "") -> None:
        self._phase, self._detail = phase, detail

    def tell(self, detail: str) -> None:
        self._detail = detail

    def note(self, text: str, now_s: float) -> None:
        """A line for the log that people see."""
        minutes, seconds = divmod(int(now_s - self._started_s), 60)
        self._log.append(f"{minutes:02}:{seconds:02} {text}")

    def end(self, phase: Phase, exit_code: int, now_s: float, error: str = "", log_path: str = "") -> None:
        self._phase, self._detail, self._ended_s = phase, "", now_s
        self._outcome = {"exit": exit_code, "error": error, "log_path": log_path}

    @property
    def paused(self) -> bool:
        return self._paused_s is not None

    def pause(self, paused: bool, now_s: float) -> None:
        """It is paused, or goes on; the time between counts in no rate."""
        if paused:
            self._paused_s = now_s if self._paused_s is None else self._paused_s
            return
        if self._paused_s is not None and self._first is not None:
            # a step that was under way when it was paused may have ended it later
            self._first = (self._first[0] + now_s - max(self._paused_s, self._first[0]), self._first[1])
        self._paused_s = None

    def lend(self, name: str, lent: bool) -> None:
        """A node's owner uses it, or has given it back."""
        self._lent = self._lent | {name} if lent else self._lent - {name}

    def report(self, seat: int, report: Mapping[str, Any], now_s: float) -> dict[str, Any] | None:
        """Take one report of a rank; the metrics line of a step once all its ranks have reported it, else None."""
        speaks = seat == self._newest_members[0]
        match report.get("kind"):
            case "step":
                return self._take_step(seat, report, now_s)
            case "plan" if speaks:
                self.samples, self.drop_last = int(report.get("samples", 0)), bool(report.get("drop_last"))
                numbers = {name: int(report[name]) for name in ("steps", "epochs", "batch") if report.get(name)}
                self._plan = {**numbers, "shares": [int(share) for share in report.get("shares") or ()]}
                if self._phase != "running":
                    self.enter("running")
            case "shares":
                if speaks:
                    self.note(str(report.get("reason") or report.get("shares")), now_s)
            case "scores":
                self.scores = dict(report["scores"])
            case "note":
                self.note(f"{self._names[seat]}: {report.get('text', '')}", now_s)
        return None

    @property
    def _newest_members(self) -> tuple[int, ...]:
        return self._members[max(self._members)] if self._members else tuple(range(len(self._names)))

    def _take_step(self, seat: int, report: Mapping[str, Any], now_s: float) -> dict[str, Any] | None:
        key = int(report.get("generation", 0)), int(report["step"])
        if key[1] <= self._step:
            return None  # it is in the books already, without this late report
        ranks = self._pending.setdefault(key, {})
        ranks[seat] = report
        if len(ranks) < len(self._members.get(key[0], self._newest_members)):
            return None
        return self._complete(key, self._pending.pop(key), now_s)

    def _complete(self, key: tuple[int, int], ranks: Mapping[int, Mapping[str, Any]], now_s: float) -> dict[str, Any]:
        """A step's line; times of a rank that was lost before it reported are unknown."""
        generation, step = key
        # ranks' reports come in batches, whose times are exact but don't come in order
        now_s = max(now_s, self._last[0]) if self._last else now_s
        sync = min(float(r["exposed_ms"]) for r in ranks.values())
        first = ranks[min(ranks)]
        nodes = {}
        for seat, share in zip(self._members.get(generation, self._newest_members), first["shares"], strict=False):
            r = ranks.get(seat)
            nodes[self._names[seat]] = NodeStep(
                node=self._names[seat],
                share=int(share),
                compute_ms=None if r is None else round(float(r["compute_ms"]), 3),
                sync_ms=round(sync, 3),
                wait_ms=None if r is None else round(float(r["exposed_ms"]) - sync, 3),
            )
        batch = sum(part.share for part in nodes.values())
        loss = _mean_loss(ranks.values())
        if loss is not None and not math.isfinite(loss):
            self._diverged(step, now_s)
            loss = None
        step_ms = max(float(r["step_ms"]) for r in ranks.values())
        self._step, self._epoch, self._batch = step, int(first.get("epoch", 0)) + 1, batch
        self._recent.append((step_ms, nodes, float(batch)))
        self._count(step, batch, now_s)
        for part in nodes.values():
            if part.share and part.compute_ms:
                speeds = self._speeds.setdefault(part.node, deque(maxlen=500))
                speeds.append((part.share, part.compute_ms))
        if loss is not None:
            self._losses.add(step, loss)
        self._step_times.add(step, step_ms)
        self._advise(step, now_s)
        return {
            "v": 1,
            "step": step,
            "generation": generation,
            "epoch": self._epoch,
            "time": round(now_s - self._started_s, 4),
            "loss": loss,
            "batch": batch,
            "step_ms": round(step_ms, 3),
            "order": {
                "epoch": self._epoch - 1,
                **{name: int(first.get(name, 0)) for name in ("index", "first", "digest")},
            },
            "nodes": {
                name: {"share": p.share, "compute_ms": p.compute_ms, "sync_ms": p.sync_ms, "wait_ms": p.wait_ms}
                for name, p in nodes.items()
            },
        }

    def _advise(self, step: int, now_s: float) -> None:
        if step >= ADVISE_AT and not self._advised:
            self._advised = True
            if said := advice(self.added):
                self.note(said, now_s)

    def _diverged(self, step: int, now_s: float) -> None:
        """JSON has no word for such a loss; the log has, once."""
        if not self._warned:
            self._warned = True
            self.note(f"the loss is not a finite number since step {step}: training has diverged", now_s)

    def _count(self, step: int, batch: int, now_s: float) -> None:
        self._samples += batch
        if self._first is None and step >= WARMUP_STEPS:
            self._first, self._warm_samples = (now_s, step), self._samples
        self._last = (now_s, step)

    @property
    def samples_per_second(self) -> float | None:
        """Samples over seconds between the end of the warm-up and the newest step; None before two such steps."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return (self._samples - self._warm_samples) / (self._last[0] - self._first[0])

    @property
    def node_speeds(self) -> dict[str, float]:
        """Samples per second of each seat's own computing, over its newest steps."""
        return {
            name: sum(share for share, _ in steps) / sum(ms for _, ms in steps) * 1000
            for name, steps in self._speeds.items()
        }

    @property
    def speedup(self) -> float | None:
        """The chain's throughput over the fastest node's alone, both from this run.

        Alone is what the fastest node took for a whole batch before the first step, where that was measured; else its
        own computing speed at its share.
        """
        nodes: dict[str, float] = {}
        for name, speed in self.node_speeds.items():
            node = self._node_of.get(name, name)
            nodes[node] = nodes.get(node, 0.0) + speed
        together = self.samples_per_second
        alone = self.foretold.alone_samples_per_second if self.foretold is not None else None
        alone = alone or max(nodes.values(), default=None)
        return together / alone if alone and together else None

    @property
    def added(self) -> dict[str, float]:
        """By how much each node makes the run faster, from its newest steps: 0.09 is 9 % (contribution.py)."""
        ranks: dict[str, list[Part]] = {}
        means = [part for part in self._node_means() if part.compute_ms]
        for part in means:
            parts = ranks.setdefault(self._node_of.get(part.node, part.node), [])
            parts.append(Part(part.share, (part.compute_ms or 0.0) / 1000))
        nodes = {}
        for name, parts in ranks.items():
            speed, samples = sum(p.samples / p.compute_s for p in parts), sum(p.samples for p in parts)
            nodes[name] = Part(samples, samples / speed if speed else 0.0)
        sync_s = mean(part.sync_ms or 0.0 for part in means) / 1000 if means else 0.0
        return contributions(nodes, sync_s)

    def state(self, now_s: float) -> RunState:
        """Everything a screen or a script may want to know now."""
        step_ms = self.step_ms
        steps = self.steps
        stands = self.paused or self._all_lent
        eta = (steps - self._step) * step_ms / 1000 if steps and step_ms and not self.ended and not stands else None
        rate = self.samples_per_second
        if not self.ended and step_ms:
            rate = 0.0 if stands else mean(batch for _, _, batch in self._recent) / step_ms * 1000
        return RunState(
            id=self._run,
            name=self._name,
            phase=self._phase,
            paused=self.paused and not self.ended,
            foretold=self.foretold,
            left_out=self.left_out,
            lent=() if self.ended else tuple(sorted(self._lent)),
            folder=self._folder,
            spec=self._spec,
            step=self._step,
            steps=steps,
            epoch=self._epoch,
            epochs=self._plan.get("epochs"),
            batch=self._batch if self._batch is not None else self._plan.get("batch"),
            elapsed_s=(self._ended_s if self._ended_s is not None else now_s) - self._started_s,
            eta_s=eta,
            samples_per_second=rate,
            step_ms=step_ms,
            loss=self._losses.points[-1][1] if self._losses.points else None,
            loss_history=tuple(self._losses.points),
            step_ms_history=tuple(self._step_times.points),
            nodes=self._node_means(),
            log=tuple(self._log),
            detail=ALL_LENT if self._all_lent and not self.ended else self._detail,
            error=self._outcome.get("error", ""),
            log_path=self._outcome.get("log_path", ""),
            exit=self._outcome.get("exit"),
            speedup_vs_fastest_node=self.speedup,
            scores=self.scores,
            ledger=self.ledger,
        )

    @property
    def _all_lent(self) -> bool:
        """Whether there is nobody to do a step, since every node is used by its owner."""
        return bool(self._names) and self._lent >= set(self._names)

    def _node_means(self) -> tuple[NodeStep, ...]:
        if not self._recent:
            shares = self._plan.get("shares") or [0] * len(self._names)
            return tuple(NodeStep(node=name, share=int(n)) for name, n in zip(self._names, shares, strict=False))
        newest = self._recent[-1][1]
        full = max(batch for _, _, batch in self._recent)
        whole = [nodes for _, nodes, batch in self._recent if batch == full]

        def middle(name: str, field: str) -> float | None:
            parts = [nodes[name] for nodes in whole if name in nodes]
            values = [value for part in parts if (value := getattr(part, field)) is not None]
            return mean(values) if values else None

        return tuple(
            NodeStep(
                node=name,
                share=newest[name].share if name not in whole[-1] else whole[-1][name].share,
                compute_ms=middle(name, "compute_ms"),
                sync_ms=middle(name, "sync_ms"),
                wait_ms=middle(name, "wait_ms"),
            )
            for name in newest
        )


def _mean_loss(reports: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean over the global batch, from every rank's mean over its share; None when no rank logged one."""
    parts = [(float(r["loss"]), int(r["share"])) for r in reports if r.get("loss") is not None and r["share"]]
    weight = sum(share for _, share in parts)
    return sum(loss * share for loss, share in parts) / weight if weight else None


class Thinned:
    """A bounded history: when full, every other point goes, and from then on every other is kept."""

    def __init__(self, limit: int) -> None:
        self.points: list[tuple[int, float]] = []
        self._limit = limit
        self._every = 1
        self._seen = 0

    def add(self, step: int, value: float) -> None:
        if self._seen % self._every == 0:
            self.points.append((step, value))
            if len(self.points) > self._limit:
                self.points = self.points[::2]
                self._every *= 2
        self._seen += 1
