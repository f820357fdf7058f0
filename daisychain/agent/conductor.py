"""A head's part of a run: prepare, ship, start, follow, end, report. The decisions are in run/ and plan/."""

import asyncio
import base64
import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import msgspec

from daisychain.agent import bundles
from daisychain.agent.launch import Cargo, folder_name, pack_job, pack_script, run_name
from daisychain.agent.preflight import judge_paths
from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError, DataError, LinkError, PreflightError, UsageError
from daisychain.facts import Node, RunSpec, RunState
from daisychain.link.messages import (
    AnyMessage,
    EndRun,
    FetchBlob,
    File,
    Listen,
    Message,
    Peer,
    Prepared,
    PrepareRun,
    StartRank,
    TryPaths,
)
from daisychain.link.session import CHUNK_BYTES, Session
from daisychain.run.failure import Failure, cause, from_exit, from_report
from daisychain.run.folder import OWN_FILES, RunFolder
from daisychain.run.lifecycle import Tracker

log = logging.getLogger(__name__)

MEASURING_PATIENCE_S = 45.0
GRACE_S = 1.5
"""How long to wait for a better explanation once a rank failed of something that sounds like a consequence."""
SHIP_TIMEOUT_S = 3600.0
END_TIMEOUT_S = 10.0
PATHS_TIMEOUT_S = 20.0


class Seat(Protocol):
    """One node's side of the run: the head's own, or a worker's over the link."""

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage: ...


class Conductor:
    """One run from launch to report. `drive` never raises; what happened is in `state`."""

    def __init__(
        self,
        *,
        head: str,
        spec: RunSpec,
        paths: Paths,
        settings: Settings,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        stamp = datetime.now(tz=timezone.utc).astimezone().strftime("%Y%m%d-%H%M%S")
        self.id = folder_name(spec, stamp)
        for attempt in range(2, 100):
            if not (paths.runs / self.id).exists():
                break
            self.id = f"{folder_name(spec, stamp)}-{attempt}"
        self.spec = spec
        self._head = head
        self._paths, self._settings, self._clock, self._changed = paths, settings, clock, changed
        try:
            self.folder = RunFolder(paths.runs / self.id)
        except OSError as error:
            raise bundles.explain(error, paths.runs) from error
        self.tracker = Tracker(run=self.id, name=run_name(spec), folder=str(self.folder.path), spec=spec, now_s=clock())
        self._started_s = clock()
        self._sources: dict[str, Path] = {}
        self._seats: tuple[tuple[Node, Seat], ...] = ()
        self._failures: list[Failure] = []
        self._exits: dict[int, int] = {}
        self._over = asyncio.Event()
        self._stopped = False
        self._have: dict[str, tuple[int, int]] = {}

    @property
    def active(self) -> bool:
        return not self.tracker.ended

    def state(self) -> RunState:
        return self.tracker.state(self._clock())

    @property
    def local_sources(self) -> Mapping[str, Path]:
        """This run's files on the head, by hash."""
        return self._sources

    @property
    def taking_part(self) -> tuple[Node, ...]:
        return tuple(node for node, _ in self._seats)

    async def drive(self, seats: Callable[[], Sequence[tuple[Node, Seat]]]) -> None:
        """Run it. `seats` gives the nodes as they are now; they are taken once all are measured."""
        try:
            with _named(self._head):
                cargo = await self._pack()
            self._seats = tuple(await self._all_measured(seats))
            self.tracker.seat([node.name for node, _ in self._seats])
            await self._launch(cargo)
            await self._over.wait()
        except _Over:
            pass
        except DaisyError as error:
            self._failures.append(_failure_of(error, self._clock()))
        except Exception as error:
            log.exception("run %s", self.id)
            self._failures.append(Failure(node="", origin="chain", message=f"inside the agent: {error}"))
        finally:
            await self._finish()

    # --- before the first step ---------------------------------------------------------------------

    async def _pack(self) -> Cargo:
        self._tell("collecting files")
        if self.spec.job == "script":
            return await asyncio.to_thread(pack_script, self.spec, self._settings)
        self._tell("reading the data")
        return await pack_job(self.spec, self.folder.path / "data", self._heard_of_preparing)

    def _heard_of_preparing(self, line: dict[str, Any]) -> None:
        match line.get("kind"):
            case "progress":
                self._tell(f"read {line['rows']:,} rows")
            case "columns":
                self._event("columns", columns=line.get("columns"), task=line.get("task"))
                for column in line.get("columns", ()):
                    note = f" ({column['note']})" if column.get("note") else ""
                    self._note(f"column {column['name']}: {column['type']}{note}")
            case _:
                pass

    async def _all_measured(self, seats: Callable[[], Sequence[tuple[Node, Seat]]]) -> Sequence[tuple[Node, Seat]]:
        until = self._clock() + MEASURING_PATIENCE_S
        while True:
            now = seats()
            slow = [node.name for node, _ in now if node.state == "measuring"]
            if not slow or self._clock() > until:
                return now
            self._tell(f"waiting for {', '.join(slow)}: measuring its speed")
            await self._pause(0.3)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not through the run's end."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
            raise _Over

    async def _launch(self, cargo: Cargo) -> None:
        names = tuple(node.name for node, _ in self._seats)
        self._tell("collecting files")
        files = await asyncio.to_thread(bundles.describe, cargo.files)
        self._sources = {file.sha256: cargo.files[file.path] for file in files}
        self.folder.launch(self.spec, {"run": self.id, "chain": list(names), "torch": self._seats[0][0].versions.torch})
        self._event("launched", nodes=list(names), files=len(files), bytes=sum(f.size for f in files))
        if len(names) > 1:
            self._note("gradients travel unencrypted between the nodes: gloo has no encryption")
        self.tracker.enter("shipping", f"{sum(f.size for f in files) / 1e6:.1f} MB to {len(names)} nodes")
        self._changed()
        port = (await self._together([self._prepare(rank, files) for rank in range(len(names))]))[0]
        if len(names) > 1:
            await self._try_paths()
        self.tracker.enter("starting", f"{len(names)} ranks load torch")
        self._changed()
        await self._together([self._start(rank, port, cargo.script) for rank in range(len(names))])

    async def _together(self, parts: Sequence[Any]) -> list[Any]:
        """Await all; the first error ends the others, and so does the run's end (raises _Over)."""
        tasks = [asyncio.ensure_future(part) for part in parts]
        stop = asyncio.ensure_future(self._over.wait())
        try:
            waiting: set[asyncio.Future[Any]] = set(tasks)
            while waiting:
                done, _ = await asyncio.wait({*waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
                for task in done - {stop}:
                    task.result()
                if stop in done:
                    raise _Over
            return [task.result() for task in tasks]
        finally:
            for task in (*tasks, stop):
                task.cancel()
            await asyncio.gather(*tasks, stop, return_exceptions=True)

    async def _prepare(self, rank: int, files: tuple[File, ...]) -> int:
        node, seat = self._seats[rank]
        message = PrepareRun(run=self.id, files=files, serve_store=rank == 0 and len(self._seats) > 1)
        with _named(node.name):
            answer = await seat.ask(message, SHIP_TIMEOUT_S)
        return answer.store_port if isinstance(answer, Prepared) else 0

    async def _try_paths(self) -> None:
        """See that the nodes reach each other. Raises PreflightError naming the pairs that gloo would hang on."""
        nodes = self.taking_part
        self.tracker.enter("starting", "trying the network between the nodes")
        self._changed()
        ports = await self._together([self._ask(rank, Listen(run=self.id)) for rank in range(len(nodes))])
        peers = [Peer(node.name, node.address, answer.port) for node, answer in zip(nodes, ports, strict=True)]
        others = [tuple(peer for at, peer in enumerate(peers) if at != rank) for rank in range(len(nodes))]
        orders = [self._ask(rank, TryPaths(run=self.id, peers=others[rank])) for rank in range(len(nodes))]
        tried = await self._together(orders)
        reasons = {
            (rank, peers.index(peer)): reason
            for rank, answer in enumerate(tried)
            for peer, reason in zip(others[rank], answer.reasons, strict=True)
        }
        verdicts = judge_paths(nodes, reasons)
        if verdicts:
            self._event("refused", verdicts=msgspec.to_builtins(verdicts))
            raise PreflightError(verdicts)

    async def _ask(self, rank: int, message: Message) -> AnyMessage:
        node, seat = self._seats[rank]
        with _named(node.name):
            return await seat.ask(message, PATHS_TIMEOUT_S)

    async def _start(self, rank: int, port: int, script: str) -> None:
        node, seat = self._seats[rank]
        spec = self.spec
        message = StartRank(
            run=self.id,
            generation=1,
            rank=rank,
            world_size=len(self._seats),
            master_address=self._seats[0][0].address,
            master_port=port,
            names=tuple(n.name for n, _ in self._seats),
            speeds=speeds([n for n, _ in self._seats]),
            script=script,
            args=spec.args,
            settings={
                "seed": spec.seed, "batch": spec.batch, "epochs": spec.epochs, "sync": spec.sync, "equal": spec.equal,
            },
        )  # fmt: skip
        with _named(node.name):
            await seat.ask(message, 30.0)

    # --- what comes in while it runs -----------------------------------------------------------------

    def shipped(self, node: str, have: int, total: int) -> None:
        self._have[node] = (have, total)
        if self.tracker.phase == "shipping":
            parts = [f"{n}: {h / 1e6:.0f} of {t / 1e6:.0f} MB" for n, (h, t) in self._have.items() if t]
            self._tell(", ".join(parts) or "nothing to ship")

    async def serve_blob(self, session: Session, number: int, message: FetchBlob) -> None:
        """Send a file of this run from an offset on. Raises DataError for one that isn't of this run."""
        source = self._sources.get(message.sha256)
        if source is None or message.run != self.id:
            raise DataError(f"run {message.run} has no file {message.sha256[:12]}", "Launch the run again")
        with source.open("rb") as stream:
            stream.seek(max(0, message.offset))
            while piece := await asyncio.to_thread(stream.read, CHUNK_BYTES):
                await session.send_chunk(number, piece)

    async def report(self, rank: int, report: dict[str, Any]) -> None:
        """One line of a rank, or its exit."""
        if self.tracker.ended or not 0 <= rank < len(self._seats):
            return
        try:
            self._take(rank, report)
        except OSError as error:
            said = bundles.explain(error, self.folder.path)
            self._fail(Failure(node="", origin="chain", message=said.what, remedy=said.remedy, at_s=self._clock()))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("rank %d sent a wrong %r report: %r", rank, report.get("kind"), error)
        self._changed()

    def _take(self, rank: int, report: dict[str, Any]) -> None:
        node = self._seats[rank][0].name
        match report.get("kind"):
            case "exit":
                self._exited(rank, node, int(report["code"]))
            case "error":
                self._fail(from_report(node, report, self._log_path(rank), self._clock()))
            case "output":
                self._keep(str(report["path"]), base64.b64decode(report["data"]))
            case kind:
                line = self.tracker.report(rank, report, self._clock())
                if line is not None:
                    self.folder.metric(line)
                elif kind in ("plan", "scores", "shares") and rank == 0:
                    self._event(str(kind), **{k: v for k, v in report.items() if k != "kind"})

    def _keep(self, name: str, piece: bytes) -> None:
        """A piece of a file that rank 0 left; it can't touch what the run itself writes."""
        folder = self.folder.path.resolve()
        target = (folder / name).resolve()
        if not target.is_relative_to(folder) or target == folder or target.name in OWN_FILES:
            log.warning("rank 0 left %r, which can't be kept", name)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as stream:
            stream.write(piece)

    def _exited(self, rank: int, node: str, code: int) -> None:
        self._exits[rank] = code
        if code != 0 and not any(f.node == node for f in self._failures):
            self._fail(from_exit(node, code, self._log_path(rank), self._clock()))
        elif len(self._exits) == len(self._seats) and not self._failures:
            self._over.set()

    def lost(self, node: Node, why: str) -> None:
        """A node of this run can't be reached any more."""
        if self.active and any(n.id == node.id for n, _ in self._seats):
            remedy = "Check its power, cable and agent, then launch again"
            self._fail(Failure(node=node.name, origin="lost", message=why, remedy=remedy, at_s=self._clock()))

    def stop(self) -> None:
        """End it on every node."""
        self._stopped = True
        self._over.set()

    def _fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        if failure.origin == "script":
            self._over.set()
        elif len(self._failures) == 1:
            asyncio.get_running_loop().call_later(GRACE_S, self._over.set)

    # --- the end -------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        # what ranks die of while they are being ended explains nothing
        failures = tuple(self._failures)
        whole = not failures and not self._stopped
        self.tracker.enter("finishing", "ending the ranks")
        self._changed()
        message = EndRun(run=self.id, reason="finished" if whole else "ended")
        await asyncio.gather(*(seat.ask(message, END_TIMEOUT_S) for _, seat in self._seats), return_exceptions=True)
        now = self._clock()
        if self._stopped:
            self.tracker.end("stopped", 130, now, "stopped by its user")
        elif failures:
            first = cause(failures)
            self.tracker.end("failed", first.exit_code, now, first.text, first.log_path)
        else:
            self.tracker.end("finished", 0, now)
        state = self.state()
        self._note(state.error or f"finished: {state.step} steps")
        try:
            shutil.rmtree(self.folder.path / "data", ignore_errors=True)
            self._event(state.phase, exit=state.exit, error=state.error)
            self.folder.finish(self.state(), self.tracker.node_speeds)
        except OSError as error:
            log.error("can't write the report of %s: %s", self.id, error)
        self._changed()

    def _log_path(self, rank: int) -> str:
        here = f"rank-{rank}.log"
        return str(self.folder.path / here) if rank == 0 else f"{self._seats[rank][0].name}: runs/{self.id}/{here}"

    def _tell(self, detail: str) -> None:
        self.tracker.tell(detail)
        self._changed()

    def _note(self, text: str) -> None:
        self.tracker.note(text, self._clock())

    def _event(self, name: str, **facts: Any) -> None:
        self.folder.event(self._clock() - self._started_s, name, **facts)


class _Over(Exception):
    """The run is over before it began: it was stopped, or what failed is in its failures already."""


class _named:
    """Errors inside say which node they are about."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PreflightError):
            return
        if isinstance(error, DaisyError) and not error.what.startswith(f"{self._node}:"):
            raise type(error)(f"{self._node}: {error.what}", error.remedy) from error


def speeds(nodes: Sequence[Node]) -> tuple[tuple[float, float], ...]:
    """(fixed_s, per_sample_s) of every node, its slowdown included; where unmeasured, the mean of the others."""
    known = [n.capacity for n in nodes if n.capacity is not None]
    if not known:
        return tuple((0.0, 0.001) for _ in nodes)
    fixed = sum(c.fixed_s for c in known) / len(known)
    each = sum(c.per_sample_s for c in known) / len(known)
    return tuple((n.capacity.fixed_s, n.capacity.per_sample_s) if n.capacity else (fixed, each) for n in nodes)


def _failure_of(error: DaisyError, now_s: float) -> Failure:
    origin = "lost" if isinstance(error, LinkError) else "script" if isinstance(error, UsageError) else "chain"
    return Failure(
        node="", origin=origin, message=error.what, remedy=error.remedy, exit_code=error.exit_code, at_s=now_s
    )
