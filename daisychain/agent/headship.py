"""What an agent does as a head: its door for strangers, its workers' connections, its run."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from daisychain.agent import preflight
from daisychain.agent.chain import HEARTBEAT_S, LOST_AFTER_S, Chain, advice
from daisychain.agent.conductor import Conductor
from daisychain.agent.doctor import examine
from daisychain.agent.door import Door
from daisychain.agent.launch import check_spec, judge_script
from daisychain.agent.seats import Side
from daisychain.discovery.mdns import Mdns
from daisychain.discovery.roster import clean_name
from daisychain.errors import DaisyError, LinkError, NoNodeError, PreflightError, TrustError, UsageError
from daisychain.facts import Node, RunSpec, RunState, Verdict
from daisychain.link.messages import (
    PROTOCOL,
    AnyMessage,
    EndRun,
    Examine,
    Examined,
    FetchBlob,
    File,
    Heartbeat,
    Hello,
    HelloBack,
    Invitation,
    MakeInvite,
    Measure,
    Message,
    NodeNews,
    RankReport,
    ShipProgress,
)
from daisychain.link.session import Session
from daisychain.plan.checks import judge_chaining
from daisychain.run.folder import read_spec
from daisychain.trust.known import KnownNodes

if TYPE_CHECKING:
    from daisychain.agent.service import Agent

log = logging.getLogger(__name__)
ANNOUNCE_AFTER_S = 0.7
"""A machine that starts in order to join shouldn't show up as a head for a moment."""


class Headship:
    def __init__(self, agent: "Agent", known: KnownNodes) -> None:
        self._agent, self._known = agent, known
        self._chain = Chain()
        self._sessions: dict[str, Session] = {}
        self._run: Conductor | None = None
        self._driving: asyncio.Task[None] | None = None
        self._mdns: Mdns | None = None
        self._discovery: Verdict | None = None
        self._door = Door(agent, known)

    # --- what others ask of it --------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
        return bool(self._sessions or self._door.open or self.active_run)

    @property
    def active_run(self) -> bool:
        return self._run is not None and self._run.active

    def nodes(self) -> tuple[Node, ...]:
        shares = self._run.shares if self._run is not None and self._run.active else {}
        own = self._agent.own
        return tuple(_in_run(node, shares) for node in self._chain.nodes(own))

    def snapshot(self, own: Node) -> dict[str, Any]:
        nodes, requests = self.nodes(), self._door.requests()
        return {
            "nodes": nodes,
            "requests": requests,
            "discovery": self._discovery,
            "run": self._run.state() if self._run is not None else None,
            "advice": advice(nodes, len(requests)),
        }

    async def announce_soon(self) -> None:
        await asyncio.sleep(ANNOUNCE_AFTER_S)
        own = self._agent.own
        if self._agent.membership.active or not self._agent.settings.mdns or own.address.startswith("127."):
            return
        mdns = self._mdns = Mdns()
        verdict = await mdns.start(own.address)
        if verdict.level == "ok" and self._mdns is mdns:
            verdict = await mdns.announce(own.id, own.name, own.address, own.port)
        if self._mdns is not mdns:
            # withdrawn in the meantime
            await mdns.close()
            return
        self._discovery = verdict
        self._agent.changed()

    async def withdraw(self) -> None:
        """No longer a head that others may find."""
        if self._mdns is not None:
            await self._mdns.close()
            self._mdns = None
        for session in list(self._sessions.values()):
            await session.close("this machine became a worker")

    def invite(self, message: MakeInvite) -> Invitation:
        """Raises PreflightError where this system can be in no chain."""
        if verdicts := judge_chaining(self._agent.own):
            raise PreflightError(verdicts)
        return self._door.invite(message)

    async def accept(self, worker: str) -> None:
        await self._door.accept(worker)

    async def decline(self, worker: str) -> None:
        await self._door.decline(worker)

    async def forget(self, node: str) -> None:
        """Raises NoNodeError when no node has that name or id."""
        shown = {member.node.name: node_id for node_id, member in self._chain.members.items()}
        node_id = self._known.forget(shown.get(node, node))
        if not node_id:
            raise NoNodeError(f"no node is called {node!r}", "See: daisychain nodes")
        self._door.revoke(node_id)
        session = self._sessions.pop(node_id, None)
        if session is not None:
            await session.close("forgotten by the head")
        self._chain = self._chain.forgotten(node_id)
        self._agent.changed()

    # --- runs -------------------------------------------------------------------------------------------

    async def launch(self, spec: RunSpec) -> Conductor:
        """Check and start. Raises UsageError, ScriptError, NoNodeError or PreflightError; then nothing was started."""
        if self.active_run:
            raise UsageError("a run is going on already", "Wait for it, or end it with: daisychain stop")
        own = self._agent.own
        if spec.resume:
            old = read_spec(self._agent.paths.runs, spec.resume)
            spec = msgspec.structs.replace(old, nodes=spec.nodes, resume=spec.resume)
        await asyncio.to_thread(check_spec, spec, own.name)
        chosen = preflight.pick(self.nodes(), spec.nodes)
        verdicts = (*preflight.check(chosen), *await asyncio.to_thread(judge_script, spec))
        if any(v.level == "refuse" for v in verdicts):
            raise PreflightError(verdicts)
        self._run = Conductor(
            head=own.name,
            spec=spec,
            paths=self._agent.paths,
            settings=self._agent.settings,
            clock=self._agent.clock,
            changed=self._agent.changed,
            warnings=verdicts,
        )
        self._driving = asyncio.create_task(self._run.drive(lambda: self._sides(chosen)))
        return self._run

    async def examine(self, message: Examine) -> Examined:
        """Check this machine, and every node of its chain that is there."""
        own, head = self._agent.own, self._agent.membership.head
        worker = self._agent.membership.active
        nodes = [own] if worker else list(self.nodes())
        there = [node for node in nodes if node.state != "lost"]
        host, port = (head.address, head.port) if worker and head and not message.host else (message.host, message.port)
        parts = [(own, OwnSide(self._agent)), *self._sides([node for node in there if node.id != own.id])]
        lost = [node for node in nodes if node.state == "lost"]
        found = await examine(parts, lost, (host, port) if host else None)
        discovery = self._agent.membership.discovery if worker else self._discovery
        if discovery is None:
            return found
        verdicts = (*found.verdicts, msgspec.structs.replace(discovery, node=own.name))
        return msgspec.structs.replace(found, verdicts=verdicts)

    async def measure(self, node: str) -> None:
        """Let a worker measure its speed again. Raises NoNodeError when it isn't there, and what the worker refuses."""
        found = next((n for n in self.nodes() if node in (n.name, n.id) and n.id in self._sessions), None)
        if found is None:
            raise NoNodeError(f"no node that is there is called {node!r}", "See: daisychain nodes")
        await self._sessions[found.id].ask(Measure(), 10.0)

    def _sides(self, chosen: Sequence[Node]) -> list[tuple[Node, Side]]:
        now = {node.id: node for node in self.nodes()}
        sides: list[tuple[Node, Side]] = []
        for node in chosen:
            current = now.get(node.id, node)
            if current.state == "lost":
                raise LinkError(f"{node.name} can't be reached any more", "Launch again without it, or start it there")
            own = node.id == self._agent.identity.id
            sides.append((current, OwnSide(self._agent) if own else WorkerSide(self._sessions[node.id])))
        return sides

    def run_state(self, run: str) -> RunState:
        if self._run is None or self._run.id != run:
            raise UsageError(f"this agent has no run {run}", "See the folders of: daisychain paths")
        return self._run.state()

    def stop_run(self) -> None:
        if self._run is None or not self._run.active:
            raise UsageError("no run is going on")
        self._run.stop()

    def pause_run(self, paused: bool) -> None:
        """Raises UsageError when no run is going on."""
        if self._run is None or not self._run.active:
            raise UsageError("no run is going on")
        self._run.pause(paused)

    def lend(self, node: Node) -> None:
        """A node's record, this one's own too: whether its owner uses it now."""
        if self._run is not None and self._run.active:
            self._run.lend(node)

    @property
    def conductor(self) -> Conductor | None:
        return self._run

    # --- connections ------------------------------------------------------------------------------------

    async def from_stranger(self, session: Session, message: AnyMessage, number: int) -> AnyMessage | None:
        if self._agent.membership.active:
            raise TrustError(f"{self._agent.own.name} is a worker itself and takes no others", "Join its head instead")
        return await self._door.take(session, message)

    def has_knocked(self, session: Session) -> bool:
        """Whether a stranger has begun to join."""
        return self._door.knows(session)

    async def from_worker(self, session: Session, message: AnyMessage, number: int) -> AnyMessage | None:
        node_id = session.peer.id
        if not self._known.is_known(node_id):
            log.warning("refused %s: not known (any more)", session.address)
            raise TrustError(f"{self._agent.own.name} doesn't know this node (any more)", "Join again with a new token")
        now = self._agent.clock()
        self._chain = self._chain.heard(node_id, now)
        match message:
            case Hello():
                return await self._hello(session, node_id, message)
            case Heartbeat():
                return None
            case NodeNews():
                self._keep(node_id, message.node)
                member = self._chain.members.get(node_id)
                if member is not None and self._run is not None and self._run.active:
                    self._run.news(member.node, WorkerSide(session))
            case FetchBlob() if self._run is not None:
                await self._run.serve_blob(session, number, message)
            case ShipProgress() if self._run is not None and self._run.id == message.run:
                member = self._chain.members.get(node_id)
                if member is not None:
                    self._run.shipped(member.node.name, message.have_bytes, message.total_bytes)
            case RankReport() if self._run is not None and self._run.id == message.run:
                if self._run.node_of(message.seat) == node_id:
                    await self._run.report(message.seat, message.report)
            case _:
                log.warning("%s sent %s out of turn", session.address, type(message).__name__)
        return None

    async def _hello(self, session: Session, node_id: str, message: Hello) -> HelloBack:
        if message.protocol != PROTOCOL:
            raise DaisyError(
                f"{self._agent.own.name} speaks protocol {PROTOCOL} and {message.node.name} {message.protocol}",
                "Install the same daisychain on both",
            )
        old = self._sessions.get(node_id)
        self._sessions[node_id] = session
        if old is not None and old is not session:
            await old.close("replaced by a newer connection")
        self._keep(node_id, message.node)
        self._agent.spawn(self._beat(session))
        self._agent.spawn(self._back_in_run(session, node_id, message.run, message.seats))
        log.info("%s is here (%s)", message.node.name, session.address)
        return HelloBack(node=self._agent.own)

    async def _back_in_run(self, session: Session, node_id: str, waits_in: str, seats: tuple[int, ...]) -> None:
        """A node that is here (again) takes part in the run that goes on; what it has of another one is ended."""
        run, member = self._run, self._chain.members.get(node_id)
        goes_on = run is not None and run.active
        if waits_in and not (goes_on and run is not None and run.id == waits_in):
            with contextlib.suppress(DaisyError):
                await session.ask(EndRun(run=waits_in, reason="that run is over"), 10.0)
        if goes_on and run is not None and member is not None:
            run.back(member.node, WorkerSide(session), alive=seats if waits_in == run.id else ())

    def _keep(self, node_id: str, node: Node) -> None:
        """Take a worker's record; who it is comes from TLS, its name is made unique, and its role is ours to say."""
        taken = {n.name for n in self._chain.nodes(self._agent.own) if n.id != node_id}
        plain = name = clean_name(node.name)
        for number in range(2, 100):
            if name not in taken:
                break
            name = f"{plain}-{number}"
        # whether it is running is for the head to say: it knows the run
        state = "ready" if node.state == "running" else node.state
        node = msgspec.structs.replace(node, id=node_id, name=name, role="worker", state=state)
        self._chain = self._chain.arrived(node, self._agent.clock())
        self.lend(node)
        self._agent.changed()

    async def _beat(self, session: Session) -> None:
        while not session.closed.is_set():
            with contextlib.suppress(LinkError):
                await session.notify(Heartbeat())
            await asyncio.sleep(HEARTBEAT_S)

    def tick(self, now_s: float) -> None:
        """Find who has gone silent."""
        for node_id in self._chain.silent(now_s):
            self._lose(node_id, f"not heard of for {LOST_AFTER_S:.0f} s")
        self._door.tick(now_s)

    async def ended(self, session: Session) -> None:
        """A connection is over."""
        self._door.left(session)
        for node_id, known in list(self._sessions.items()):
            if known is session:
                self._lose(node_id, "its connection ended")

    def _lose(self, node_id: str, why: str) -> None:
        session = self._sessions.pop(node_id, None)
        member = self._chain.members.get(node_id)
        self._chain = self._chain.gone(node_id, self._agent.clock(), why)
        if member is not None:
            log.info("%s is lost: %s", member.node.name, why)
            if self._run is not None:
                self._run.lost(member.node, why)
        if session is not None:
            self._agent.spawn(session.close(why))
        self._agent.changed()

    async def close(self) -> None:
        if self._run is not None and self._run.active:
            self._run.stop()
        if self._driving is not None:
            await asyncio.wait({self._driving}, timeout=5)
        if self._mdns is not None:
            await self._mdns.close()
        for session in list(self._sessions.values()):
            await session.close("the head's agent ends")


def _in_run(node: Node, shares: Mapping[str, int]) -> Node:
    """A node with its share of the run that goes on, if it takes part in one."""
    if node.state == "lost":
        return node
    state = "running" if node.id in shares and node.state == "ready" else node.state
    return msgspec.structs.replace(node, share=shares.get(node.id), state=state)


class WorkerSide:
    """A worker's side of a run, over its link."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        return await self._session.ask(message, timeout_s)


class OwnSide:
    """The head's own side of a run: the same calls, no network."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        timeout = 10.0 if isinstance(message, EndRun) else timeout_s
        try:
            return await asyncio.wait_for(self._agent.node_side.handle(message, self), timeout)
        except asyncio.TimeoutError:
            raise LinkError(f"this machine's own agent did not answer within {timeout:.0f} s") from None

    async def fetch(self, run: str, file: File, offset: int, sink: Callable[[bytes], None]) -> None:
        raise DaisyError(f"{file.path} is not on this machine any more")

    async def report(self, run: str, seat: int, report: dict[str, Any]) -> None:
        conductor = self._agent.headship.conductor
        if conductor is not None and conductor.id == run:
            await conductor.report(seat, report)

    async def shipped(self, run: str, have: int, total: int) -> None:
        pass

    def sources(self) -> Mapping[str, Path]:
        conductor = self._agent.headship.conductor
        return conductor.local_sources if conductor is not None else {}
