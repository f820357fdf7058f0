"""A run before its first rank starts: its files are collected, its nodes looked at, the files laid out, paths tried."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daisychain.agent import bundles, inspection, modules, outlook, relays
from daisychain.agent.chronicle import Chronicle
from daisychain.agent.launch import Cargo, pack_job, pack_script
from daisychain.agent.preflight import judge_paths
from daisychain.agent.seats import Seat, Together, listen, named, try_paths
from daisychain.config import Settings
from daisychain.errors import DataError, about
from daisychain.facts import RunSpec, Verdict
from daisychain.link.messages import FetchBlob, File, PrepareRun
from daisychain.link.session import CHUNK_BYTES, Session
from daisychain.plan.checks import Needs
from daisychain.plan.forecast import Network
from daisychain.plan.networks import judge_networks
from daisychain.run.folder import RunFolder

SHIP_TIMEOUT_S = 3600.0


class Preparation:
    """One run's."""

    def __init__(
        self, run: str, spec: RunSpec, settings: Settings, folder: RunFolder, told: Chronicle, together: Together
    ) -> None:
        """together: awaits all, or raises what ends the run."""
        self._run, self._spec, self._settings, self._folder = run, spec, settings, folder
        self._told, self._together = told, together
        self._cargo = Cargo(files={}, script="")
        self.sources: Mapping[str, Path] = {}
        """The run's files on the head, by hash."""
        self._files: tuple[File, ...] = ()
        self._laid_out: set[str] = set()
        """Ids of nodes that have the run's files."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._have: dict[str, tuple[int, int]] = {}
        self.network: Network | None = None
        """What was measured between the nodes; None: unknown."""

    @property
    def script(self) -> str:
        """What the ranks run, below the files."""
        return self._cargo.script

    async def collect(self) -> None:
        """Gather the files that the nodes need. Raises DaisyError where the spec names something that isn't there."""
        self._told.tell("collecting files")
        if self._spec.job == "script":
            self._cargo = await asyncio.to_thread(pack_script, self._spec, self._settings)
        else:
            self._told.tell("reading the data")
            self._cargo = await pack_job(self._spec, self._folder.path / "data", self._heard_of_data)

    def _heard_of_data(self, line: dict[str, Any]) -> None:
        match line.get("kind"):
            case "progress":
                self._told.tell(f"read {line['rows']:,} rows")
            case "columns":
                self._told.event("columns", columns=line.get("columns"), task=line.get("task"))
                for column in line.get("columns", ()):
                    note = f" ({column['note']})" if column.get("note") else ""
                    self._told.note(f"column {column['name']}: {column['type']}{note}")
            case _:
                pass

    async def prepare(self, seats: Sequence[Seat], warnings: Sequence[Verdict]) -> None:
        """Make these nodes ready for ranks. Raises PreflightError naming what is in the way of that.

        seats: one of each node, rank 0's first. warnings: what was found before the launch, told with the run.
        """
        names = [seat.node.name for seat in seats]
        self._told.tell("collecting files")
        self._files = files = await asyncio.to_thread(bundles.describe, self._cargo.files)
        self.sources = {file.sha256: self._cargo.files[file.path] for file in files}
        size = sum(file.size for file in files)
        self._folder.launch(self._spec, {"run": self._run, "chain": names, "torch": seats[0].node.versions.torch})
        self._told.event("launched", nodes=names, files=len(files), bytes=size)
        for warning in warnings:
            self._told.note(f"{about(warning)}. {warning.remedy}".strip())
        if len(names) > 1:
            self._told.note("gradients travel unencrypted between the nodes: gloo has no encryption")
        wanted = await asyncio.to_thread(modules.read_needed, self._cargo.files, self._cargo.script)
        self._told.refuse_if(await modules.look_for(wanted, list(seats), self._together))
        await self._inspect(seats, Needs(disk_bytes=size, ranks=self._spec.ranks))
        self._told.enter("shipping", f"{size / 1e6:.1f} MB to {len(names)} nodes")
        await self._together([self.lay_out(seat) for seat in seats])
        if len(names) > 1:
            await self._try_paths(seats)

    async def _inspect(self, seats: Sequence[Seat], needs: Needs) -> None:
        """See what the nodes are like now."""
        (verdicts,) = await self._together([inspection.judge([(seat.node, seat.side) for seat in seats], needs)])
        for verdict in verdicts:
            if verdict.level == "warn":
                self._told.note(f"{about(verdict)}. {verdict.remedy}")
        self._told.refuse_if(verdicts)

    async def lay_out(self, seat: Seat) -> None:
        """Give a seat's node the run's files, unless it has them."""
        async with self._locks[seat.node.id]:
            if seat.node.id not in self._laid_out:
                with named(seat.node.name):
                    await seat.side.ask(PrepareRun(run=self._run, files=self._files), SHIP_TIMEOUT_S)
                self._laid_out.add(seat.node.id)

    def forget(self, node: str) -> None:
        """The node with this id may have the files no more."""
        self._laid_out.discard(node)

    async def _try_paths(self, seats: Sequence[Seat]) -> None:
        """See that the nodes reach each other, which pairs gloo would hang on, and what the network carries."""
        nodes = [seat.node for seat in seats]
        self._told.enter("starting", "trying the network between the nodes")
        peers = await listen(seats, self._run, self._together)
        reasons = await try_paths(seats, peers, self._run, self._together)
        working = {pair for pair, reason in reasons.items() if not reason}
        verdicts = (*judge_networks(nodes, working), *judge_paths(nodes, reasons))
        for verdict in verdicts:
            if verdict.level == "warn":
                self._told.note(f"{verdict.reason}. {verdict.remedy}".strip())
        self._told.refuse_if(verdicts)
        self._told.tell("measuring the network between the nodes")
        self.network = await outlook.measure(seats, peers, reasons, self._run, self._together)
        if self.network is not None:
            described = outlook.describe(self.network)
            self._told.event("network", **described.facts)
            self._told.note(described.text)
        rates = self.network.bytes_per_s if self.network is not None else {}
        for verdict in await relays.judge(seats, rates, self._together):
            self._told.note(f"{verdict.reason}. {verdict.remedy}")

    # --- while the files travel --------------------------------------------------------------------

    def shipped(self, node: str, have: int, total: int) -> str:
        """A node has so many bytes of the files; what to tell of all."""
        self._have[node] = (have, total)
        parts = [f"{n}: {h / 1e6:.0f} of {t / 1e6:.0f} MB" for n, (h, t) in self._have.items() if t]
        return ", ".join(parts) or "nothing to ship"

    async def serve_blob(self, session: Session, number: int, message: FetchBlob) -> None:
        """Send a file of this run from an offset on. Raises DataError for one that isn't of this run."""
        source = self.sources.get(message.sha256)
        if source is None or message.run != self._run:
            raise DataError(f"run {message.run} has no file {message.sha256[:12]}", "Launch the run again")
        with source.open("rb") as stream:
            stream.seek(max(0, message.offset))
            while piece := await asyncio.to_thread(stream.read, CHUNK_BYTES):
                await session.send_chunk(number, piece)
