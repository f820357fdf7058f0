"""Real rank processes over gloo on loopback, conducted as a head does it but without agents."""

import contextlib
import json
import os
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daisychain_test_nursery import Nurseries

from daisychain.run.generations import Boundary, Break, Fail, Form, Generations, Leave, Start

NAMES = ("head", "mid", "old", "nuc")
SPEEDS = ((0.0, 1 / 7), (0.0, 1 / 2), (0.0, 1.0), (0.0, 1.0))
"""Give shares 7/2/1 of a batch of 10."""


class Rank:
    """A rank process with its pipes, as the agent starts it. What it says is kept in `reports`."""

    def __init__(
        self, start: Callable[..., Any], folder: Path, seat: int, hear: Callable[..., None], task: dict[str, Any]
    ) -> None:
        self.seat, self.reports, self._hear = seat, [], hear
        self.log = folder / f"rank-{seat}.log"
        afresh = task.pop("afresh", False)
        with self.log.open("ab") as stream:
            self.process = start(seat, folder, stream, afresh)
        self.order(task)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def order(self, order: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            for report in told["steps"] if told["kind"] == "steps" else [told]:
                if report["kind"] != "beat":
                    self.reports.append(report)
                    self._hear(self.seat, report)
        self.process.wait()
        self._hear(self.seat, None)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [report for report in self.reports if report["kind"] == kind]

    def wait_for(self, kind: str, count: int = 1, within_s: float = 60) -> dict[str, Any]:
        """The newest report of this kind, once there are so many."""
        end = time.monotonic() + within_s
        while len(found := self.of_kind(kind)) < count:
            assert time.monotonic() < end, f"no {kind}; {self.reports[-3:]}; log: {self.log.read_text()}"
            time.sleep(0.01)
        return found[-1]

    def finish(self) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and all reports."""
        self._reader.join(90)
        assert not self._reader.is_alive(), f"still running; {self.reports[-3:]}; log: {self.log.read_text()}"
        return self.process.wait(5), self.reports

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.process.wait()
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


class Crew:
    """The ranks of one run. `rank[i]` is the newest process of a seat; `order` of seats in gloo is by seat."""

    def __init__(
        self,
        start: Callable[..., Any],
        folder: Path,
        script: str,
        size: int,
        slowdowns: tuple[float, ...],
        task: dict[str, Any],
    ) -> None:
        self._start, self._folder, self._task, self._slowdowns, self._size = start, folder, task, slowdowns, size
        self._lock = threading.RLock()
        self._speeds = task.pop("speeds", SPEEDS)
        self._script = script
        self.restarts = task.pop("restarts", False)
        self.decisions = Generations(size)
        self.ranks: dict[int, Rank] = {}
        self.actions: list[Any] = []
        self.all: list[Rank] = []
        self._closing = False
        self.act()

    def __getitem__(self, seat: int) -> Rank:
        return self.ranks[seat]

    def __iter__(self) -> Iterator[Rank]:
        return iter([self.ranks[seat] for seat in sorted(self.ranks)])

    def act(self) -> None:
        with self._lock:
            for action in self.decisions.decide(time.monotonic()):
                self.actions.append(action)
                self._perform(action)

    def _perform(self, action: Any) -> None:
        match action:
            case Start(seat) if not self._closing and (self.restarts or seat not in self.ranks):
                task = {
                    "rank": seat, "names": NAMES[: self._size], "script": self._script, "threads": 1,
                    "slowdown": self._slowdowns[seat], "output": str(self._folder / "output"), **self._task,
                }  # fmt: skip
                if folder := self._task.get("checkpoints"):
                    task["checkpoints"] = str(Path(folder) / str(seat))
                self.ranks[seat] = Rank(self._start, self._folder, seat, self._hear, task)
                self.all.append(self.ranks[seat])
            case Break(seats, generation):
                self.order(seats, {"kind": "break", "generation": generation})
            case Boundary(seats, generation):
                self.order(seats, {"kind": "boundary", "generation": generation})
            case Form(seats, generation):
                for rank, seat in enumerate(seats):
                    formation = {
                        "generation": generation, "rank": rank, "names": [NAMES[s] for s in seats],
                        "speeds": [self._speeds[s] for s in seats] if self._speeds else [],
                        "address": "127.0.0.1", "port": self.decisions.seats[seats[0]].port,
                    }  # fmt: skip
                    self.order((seat,), {"kind": "form", "formation": formation})
            case Leave(seats):
                self.order(seats, {"kind": "leave"})
            case Fail():
                self.close()

    def order(self, seats: Any, order: dict[str, Any]) -> None:
        for seat in seats:
            self.ranks[seat].order(order)

    def _hear(self, seat: int, report: dict[str, Any] | None) -> None:
        with self._lock:
            if self._closing:
                return
            match report:
                case None:
                    why = "" if self.restarts else "gone"
                    self.decisions.exited(seat, time.monotonic(), why)
                case {"kind": "waiting"}:
                    facts = {k: report[k] for k in ("port", "generation", "completed", "why")}
                    self.decisions.waiting(seat, **facts)
                case {"kind": "joined"}:
                    self.decisions.joined(seat, report["generation"])
                case {"kind": "trial"}:
                    self.order(self.ranks, {"kind": "go"})
                case {"kind": "done"}:
                    self.decisions.done(seat)
            self.act()

    def finish(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Exit code and reports of every seat's newest rank."""
        return [rank.finish() for rank in self]

    def close(self) -> None:
        self._closing = True
        for rank in self.all:
            rank.kill()

    def clear(self) -> None:
        self.close()
        for rank in self.all:
            rank.close()


@pytest.fixture(scope="session")
def nurseries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nurseries]:
    made = Nurseries(tmp_path_factory.mktemp("nurseries"))
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, nurseries: Nurseries) -> Iterator[Callable[..., Crew]]:
    """Start the ranks of a script: start(text, size, **task). With afresh=True none of them is forked."""
    crews: list[Crew] = []
    (tmp_path / "output").mkdir()

    def begin(
        text: str, size: int = 1, *, name: str = "script.py", slowdowns: Any = (1.0, 1.0, 1.0, 1.0), **task: Any
    ) -> Crew:
        (tmp_path / name).write_text(textwrap.dedent(text))
        crews.append(Crew(nurseries.start, tmp_path, str(task.pop("script", name)), size, slowdowns, task))
        return crews[-1]

    yield begin
    for crew in crews:
        crew.clear()
