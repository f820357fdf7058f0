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

from daisychain.facts import ENDED, NodeStep, Phase, RunSpec, RunState

RECENT = 20
"""Steps that a shown mean is taken over. Not a median: under a CPU quota most short steps run at full speed, then one
stalls for all of them."""
HISTORY = 200
LOG_LINES = 200
WARMUP_STEPS = 2
"""Steps left out of the throughput: caches are cold and shares still those of the reference model."""


class Tracker:
    """Progress of one run; `report` takes what ranks say, `state` is what people see."""

    def __init__(self, *, run: str, name: str, folder: str, spec: RunSpec, now_s: float) -> None:
        self._run, self._name, self._folder, self._spec = run, name, folder, spec
        self._started_s = now_s
        self._names: tuple[str, ...] = ()
        self._phase: Phase = "preparing"
        self._detail = ""
        self._pending: dict[int, dict[int, Mapping[str, Any]]] = {}
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
        self._ended_s: float | None = None
        self._warned = False
        self.scores: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        return self._phase in ENDED

    @property
    def phase(self) -> Phase:
        return self._phase

    def seat(self, names: Sequence[str]) -> None:
        """The node names in rank order."""
        self._names = tuple(names)

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

    def report(self, rank: int, report: Mapping[str, Any], now_s: float) -> dict[str, Any] | None:
        """Take one report of a rank; the metrics line of a step once all its ranks have reported it, else None."""
        match report.get("kind"):
            case "step":
                step = int(report["step"])
                ranks = self._pending.setdefault(step, {})
                ranks[rank] = report
                if len(ranks) == len(self._names):
                    return self._complete(step, self._pending.pop(step), now_s)
            case "plan" if rank == 0:
                numbers = {name: int(report[name]) for name in ("steps", "epochs", "batch") if report.get(name)}
                self._plan = {**numbers, "shares": [int(share) for share in report.get("shares") or ()]}
                if self._phase != "running":
                    self.enter("running")
            case "shares":
                if rank == 0:
                    self.note(str(report.get("reason") or report.get("shares")), now_s)
            case "scores":
                self.scores = dict(report["scores"])
            case "note":
                self.note(f"{self._names[rank]}: {report.get('text', '')}", now_s)
        return None

    def _complete(self, step: int, ranks: Mapping[int, Mapping[str, Any]], now_s: float) -> dict[str, Any]:
        sync = min(float(r["exposed_ms"]) for r in ranks.values())
        nodes = {
            self._names[rank]: NodeStep(
                node=self._names[rank],
                share=int(r["share"]),
                compute_ms=round(float(r["compute_ms"]), 3),
                sync_ms=round(sync, 3),
                wait_ms=round(float(r["exposed_ms"]) - sync, 3),
            )
            for rank, r in sorted(ranks.items())
        }
        batch = sum(part.share for part in nodes.values())
        loss = _mean_loss(ranks.values())
        if loss is not None and not math.isfinite(loss):
            self._diverged(step, now_s)
            loss = None
        step_ms = max(float(r["step_ms"]) for r in ranks.values())
        self._step, self._epoch, self._batch = step, int(ranks[min(ranks)].get("epoch", 0)) + 1, batch
        self._recent.append((step_ms, nodes, float(batch)))
        self._count(step, batch, now_s)
        for part in nodes.values():
            if part.share and part.compute_ms:
                speeds = self._speeds.setdefault(part.node, deque(maxlen=500))
                speeds.append((part.share, part.compute_ms))
        if loss is not None:
            self._losses.add(step, loss)
        self._step_times.add(step, step_ms)
        return {
            "v": 1,
            "step": step,
            "epoch": self._epoch,
            "time": round(now_s - self._started_s, 4),
            "loss": loss,
            "batch": batch,
            "step_ms": round(step_ms, 3),
            "nodes": {
                name: {"share": p.share, "compute_ms": p.compute_ms, "sync_ms": p.sync_ms, "wait_ms": p.wait_ms}
                for name, p in nodes.items()
            },
        }

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
        """Samples per second of each node's own computing, over its newest steps."""
        return {
            name: sum(share for share, _ in steps) / sum(ms for _, ms in steps) * 1000
            for name, steps in self._speeds.items()
        }

    @property
    def speedup(self) -> float | None:
        """The chain's throughput over the fastest node's own, both from this run."""
        speeds, together = self.node_speeds, self.samples_per_second
        return together / max(speeds.values()) if speeds and together else None

    def state(self, now_s: float) -> RunState:
        """Everything a screen or a script may want to know now."""
        step_ms = mean(ms for ms, _, _ in self._recent) if self._recent else None
        steps = self._plan.get("steps")
        eta = (steps - self._step) * step_ms / 1000 if steps and step_ms and not self.ended else None
        rate = self.samples_per_second
        if not self.ended and step_ms:
            rate = mean(batch for _, _, batch in self._recent) / step_ms * 1000
        return RunState(
            id=self._run,
            name=self._name,
            phase=self._phase,
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
            detail=self._detail,
            error=self._outcome.get("error", ""),
            log_path=self._outcome.get("log_path", ""),
            exit=self._outcome.get("exit"),
            speedup_vs_fastest_node=self.speedup,
            scores=self.scores,
        )

    def _node_means(self) -> tuple[NodeStep, ...]:
        if not self._recent:
            shares = self._plan.get("shares") or [0] * len(self._names)
            return tuple(NodeStep(node=name, share=int(n)) for name, n in zip(self._names, shares, strict=False))
        newest = self._recent[-1][1]
        full = max(batch for _, _, batch in self._recent)
        whole = [nodes for _, nodes, batch in self._recent if batch == full]

        def middle(name: str, field: str) -> float | None:
            values = [value for nodes in whole if (value := getattr(nodes[name], field)) is not None]
            return mean(values) if values else None

        return tuple(
            NodeStep(
                node=name,
                share=whole[-1][name].share,
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
