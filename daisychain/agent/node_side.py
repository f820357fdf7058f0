"""This node's side of runs, the same for a head's own part and for a worker's: prepare, start, end."""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from daisychain.agent import inspection, modules, relays
from daisychain.agent.ranks import NodeRun
from daisychain.agent.reach import Ear, send_flow, try_path
from daisychain.config import Paths, Settings
from daisychain.errors import DaisyError
from daisychain.facts import Node, RunSpec, RunState
from daisychain.link.messages import (
    DOCTOR,
    AnyMessage,
    Done,
    EndRun,
    File,
    FindModules,
    FindRelays,
    FlowSent,
    Inspect,
    Listen,
    Listening,
    Message,
    OrderRank,
    PathsTried,
    PrepareRun,
    SendFlow,
    StartRank,
    TryPaths,
)
from daisychain.machine import awake
from daisychain.run.lifecycle import Tracker

log = logging.getLogger(__name__)
OUTPUT_PIECE_BYTES = 512 * 1024
GONE_HEAD_S = 4.0
"""How long a rank waits for a head whose agent has ended; it may have been started again."""
SILENT_HEAD_S = 120.0
"""How long for one that can't be reached: cables are put back, lids are opened."""
SAVING_S = 4.0
"""How long a rank gets to write its checkpoint once there is no head to wait for."""


class Head(Protocol):
    """Whoever conducts the run: the conductor in this very process, or the head over the link."""

    async def fetch(self, run: str, file: File, offset: int, sink: Callable[[bytes], None]) -> None: ...
    async def report(self, run: str, seat: int, report: dict[str, Any]) -> None: ...
    async def shipped(self, run: str, have: int, total: int) -> None: ...
    def sources(self) -> Mapping[str, Path] | None:
        """Files that lie on this machine already, by hash; None when they must be fetched."""


class NodeSide:
    """At most one run at a time."""

    def __init__(
        self, paths: Paths, settings: Settings, own: Callable[[], Node], threads: int, changed: Callable[[], None]
    ) -> None:
        self._paths, self._settings, self._own, self._changed = paths, settings, own, changed
        self.threads = threads
        """CPU threads of its ranks together; the measured best once it is known."""
        self._current: NodeRun | None = None
        self._ear = Ear("")
        self._tracker: Tracker | None = None
        self._head: Head | None = None
        self._waiting_for_head: asyncio.Task[None] | None = None
        self._awake = awake.Awake(awake.tool())
        self._shares: dict[int, int] = {}
        """By seat."""

    @property
    def share(self) -> int | None:
        """Samples of each global batch that this node's ranks take together; None outside a run."""
        return sum(self._shares.values()) if self._shares else None

    @property
    def busy(self) -> bool:
        return self._current is not None

    @property
    def waiting_run(self) -> str:
        """The run whose ranks live here, for a head that comes back; empty: none."""
        return self._current.run if self._current is not None and self._current.alive else ""

    @property
    def waiting_seats(self) -> tuple[int, ...]:
        """The seats of those ranks."""
        return self._current.alive if self._current is not None else ()

    def state(self) -> RunState | None:
        """The current or last run, as far as this node alone sees it."""
        if self._tracker is None:
            return None
        state, own = self._tracker.state(asyncio.get_running_loop().time()), self._own()
        lent = (own.name,) if own.lent and self.busy else ()
        return msgspec.structs.replace(state, lent=lent)

    async def handle(self, message: Message, head: Head) -> AnyMessage:
        """An order about a run. Raises DaisyError with what is wrong on this node."""
        match message:
            case PrepareRun():
                return await self._prepare(message, head)
            case Listen():
                return await self._listen(message)
            case TryPaths():
                return await _try_paths(message)
            case SendFlow(run=run, peer=peer):
                flow = await send_flow(peer.address, peer.port, run)
                return FlowSent(bytes_per_s=flow.bytes_per_s, latency_s=flow.latency_s)
            case FindRelays():
                return await relays.find(message)
            case FindModules():
                return await asyncio.to_thread(modules.find, message)
            case Inspect():
                return await asyncio.to_thread(inspection.inspect, self._paths)
            case StartRank():
                return await self._start(message, head)
            case OrderRank():
                await self._this(message.run).order(message.seat, message.order)
                return Done()
            case EndRun():
                await self.end(message.run)
                return Done()
            case _:
                raise DaisyError(f"{type(message).__name__} is not an order to a node")

    async def _prepare(self, message: PrepareRun, head: Head) -> AnyMessage:
        if self._current is not None:
            raise DaisyError(f"this node is in run {self._current.run} already", "Stop that run first")
        if not message.run or "/" in message.run or message.run.startswith("."):
            raise DaisyError(f"{message.run!r} is no run's name")
        run = NodeRun(self._paths, message.run, {})
        self._current = run
        now = asyncio.get_running_loop().time()
        self._tracker = Tracker(run=message.run, name=message.run, folder="", spec=RunSpec(job="script"), now_s=now)
        self._tracker.seat([self._own().name])
        self._tracker.enter("shipping")

        async def fetch(file: File, offset: int, sink: Callable[[bytes], None]) -> None:
            await head.fetch(message.run, file, offset, sink)

        async def shipped(have: int, total: int) -> None:
            await head.shipped(message.run, have, total)

        sources = head.sources()
        return await run.prepare(message, dict(sources or {}), fetch if sources is None else None, shipped)

    def _this(self, run: str) -> NodeRun:
        if self._current is None or self._current.run != run:
            raise DaisyError(f"run {run} was not prepared on this node")
        return self._current

    async def _listen(self, message: Listen) -> Listening:
        """Be reachable for the run's other nodes, for a short while."""
        if not message.run.startswith(DOCTOR):
            self._this(message.run)
        elif self._current is not None:
            raise DaisyError(f"this node is in run {self._current.run}", "Try again when that run is over")
        self._ear.close()
        self._ear = Ear(message.run)
        address = self._own().address
        try:
            return Listening(port=await self._ear.open(address))
        except OSError as error:
            raise DaisyError(f"can't listen on {address}: {error.strerror or error}", "Check its network") from error

    async def _start(self, message: StartRank, head: Head) -> AnyMessage:
        run = self._this(message.run)
        self._head = head
        await asyncio.to_thread(self._awake.hold)

        async def report(seat: int, report: dict[str, Any]) -> None:
            if report.get("kind") == "done":
                await self._send_output(run, seat)
            self._follow(seat, report)
            await self._tell_head(run.run, seat, report)

        own = self._own()
        return await run.start(
            message, address=own.address, folder=self._paths.runs / message.run, threads=self.threads,
            slowdown=self._settings.slowdown, nic=own.nic, report=report,
        )  # fmt: skip

    async def note(self, text: str) -> None:
        """One line about this node for the log of the run that goes on here; without a rank there is none."""
        if self._current is not None and self._current.alive:
            if self._tracker is not None:
                self._tracker.note(text, asyncio.get_running_loop().time())
            await self._tell_head(self._current.run, self._current.alive[0], {"kind": "note", "text": text})

    async def _tell_head(self, run: str, seat: int, report: dict[str, Any]) -> None:
        if self._head is not None:
            await self._head.report(run, seat, report)

    def _follow(self, seat: int, report: Mapping[str, Any]) -> None:
        """Keep this node's own view of the run, for its screen: its first rank's steps, all its ranks' shares."""
        for one in report["steps"] if report.get("kind") == "steps" else (report,):
            self._follow_one(seat, one)
        self._changed()

    def _follow_one(self, seat: int, report: Mapping[str, Any]) -> None:
        if report.get("kind") == "step":
            self._shares[seat] = int(report["share"])
        if report.get("kind") == "exit":
            self._shares.pop(seat, None)
        first = seat == min(self._shares or (seat,))
        if self._tracker is not None and first and report.get("kind") in ("plan", "step"):
            own = {**report, "shares": [self.share] if "share" in report else []}
            self._tracker.report(0, own, asyncio.get_running_loop().time() - report.get("ago_ms", 0.0) / 1000)

    async def _send_output(self, run: NodeRun, seat: int) -> None:
        """What the script left in its output folder goes to the head's run folder."""
        output = run.rank(seat).output
        for path in sorted(p for p in output.rglob("*") if p.is_file()):
            name = path.relative_to(output).as_posix()
            with path.open("rb") as stream:
                while piece := stream.read(OUTPUT_PIECE_BYTES):
                    data = base64.b64encode(piece).decode()
                    place = {"path": name, "offset": stream.tell() - len(piece)}
                    await self._tell_head(run.run, seat, {"kind": "output", "data": data, **place})

    # --- without a head -------------------------------------------------------------------------------

    def head_is_gone(self, silent: bool) -> None:
        """The head can't be reached. Its ranks let go of the others and wait for it; in the end they save and end."""
        if self._current is not None and self._waiting_for_head is None:
            patience_s = SILENT_HEAD_S if silent else GONE_HEAD_S
            self._waiting_for_head = asyncio.create_task(self._outwait(self._current, patience_s))

    async def _outwait(self, run: NodeRun, patience_s: float) -> None:
        if run.alive:
            for seat in run.alive:
                await run.order(seat, {"kind": "break", "generation": run.rank(seat).generation})
            await asyncio.sleep(patience_s)
            for seat in run.alive:
                await run.order(seat, {"kind": "save"})
            for _ in range(round(SAVING_S / 0.1)):
                if run.alive:
                    await asyncio.sleep(0.1)
        self._waiting_for_head = None
        await self.end(run.run)

    async def head_is_back(self, head: Head) -> None:
        """The head is reachable again, and goes on with this run; what it missed is said again."""
        if self._waiting_for_head is not None:
            self._waiting_for_head.cancel()
            self._waiting_for_head = None
        if self._current is not None and self._head is not None:
            self._head = head
            for seat in self._current.alive:
                said = self._current.rank(seat).waits
                if said is not None:
                    await head.report(self._current.run, seat, said)

    # --- the end --------------------------------------------------------------------------------------

    async def end(self, run: str = "") -> None:
        """End the named run here, or whichever there is."""
        current = self._current
        if current is None or (run and current.run != run):
            return
        if self._waiting_for_head is not None:
            self._waiting_for_head.cancel()
            self._waiting_for_head = None
        self._ear.close()
        await current.end()
        await asyncio.to_thread(self._awake.release)
        self._current = self._head = None
        self._shares.clear()
        if self._tracker is not None:
            self._tracker.end("finished", 0, asyncio.get_running_loop().time())
        self._changed()


async def _try_paths(message: TryPaths) -> PathsTried:
    tries = (try_path(peer.address, peer.port, message.run) for peer in message.peers)
    return PathsTried(reasons=tuple(await asyncio.gather(*tries)))


def with_share(node: Node, share: int | None) -> Node:
    """The node's record with its current share."""
    return node if node.share == share else msgspec.structs.replace(node, share=share)
