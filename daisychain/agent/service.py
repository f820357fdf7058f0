"""The agent: one background process on every node. It ties this machine, its peers and its runs together.

What is decided where: who is alive in chain.py, whether a run may start in preflight.py, how it ends in run/. Here
is only the wiring: connections, timers, children.
"""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from websockets.asyncio.server import Server, ServerConnection

from daisychain import __version__
from daisychain.agent import gpus
from daisychain.agent.headship import Headship
from daisychain.agent.heat import Heat
from daisychain.agent.membership import Membership
from daisychain.agent.node_side import NodeSide, with_share
from daisychain.config import Paths, Settings, write_atomically
from daisychain.discovery.roster import clean_name
from daisychain.errors import DaisyError, PreflightError, UsageError
from daisychain.facts import Node, Snapshot, Verdict
from daisychain.link.client import Lock
from daisychain.link.messages import (
    AcceptWorker,
    AnyMessage,
    BeWorker,
    ConfirmHead,
    DeclineWorker,
    Done,
    Examine,
    FollowRun,
    Forget,
    Launch,
    Launched,
    Lend,
    ListNics,
    Look,
    MakeInvite,
    Measure,
    Nics,
    PauseRun,
    Ping,
    Pong,
    QuitAgent,
    RunNews,
    StopRun,
    Watch,
    World,
)
from daisychain.link.server import listen
from daisychain.link.session import Session
from daisychain.machine import capacity, idle, nics, probe
from daisychain.machine.condition import read_heat
from daisychain.trust.identity import Identity
from daisychain.trust.known import KnownNodes
from daisychain.trust.tls import peer_id, server_context

log = logging.getLogger(__name__)

IDLE_LIMIT_S = 600.0
TICK_S = 1.0
LOOK_FOR_OWNER_S = 5.0
LOOK_FOR_HEAT_S = 5.0
LOOPBACK = "127.0.0.1"
MAX_STRANGERS = 32
STRANGER_FRAME_BYTES = 16 * 1024
KNOCK_WITHIN_S = 10.0


class Agent:
    """Everything that one agent process has."""

    def __init__(self, paths: Paths, settings: Settings, tied: bool) -> None:
        self._paths, self._settings, self._tied = paths, settings, tied
        self._quit = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._watchers: dict[Session, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._locals: set[Session] = set()
        self._strangers: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[Server] = []
        self._nics: tuple[Any, ...] = ()
        self._nic_verdicts: tuple[Verdict, ...] = ()
        self._idle_since = self._clock()
        self._owner = idle.Owner()
        self._heat = Heat()

    async def start(self) -> None:
        """Look at this machine, listen, and begin to measure. Raises DaisyError when it can't."""
        device, versions, found, host = await asyncio.gather(
            asyncio.to_thread(probe.read_device),
            asyncio.to_thread(probe.read_versions),
            asyncio.to_thread(probe.read_nics),
            asyncio.to_thread(probe.host_name),
        )
        name = clean_name(self._settings.name or host)
        self.identity = Identity.load_or_create(self._paths.identity, name)
        wanted, source = nics.asked(self._settings.nic, os.environ)
        chosen, verdict = nics.choose(found, wanted, source=source)
        if verdict.level == "refuse" and wanted:
            if wanted not in [nic.name for nic in found]:
                raise UsageError(verdict.reason, verdict.remedy)
            raise PreflightError([msgspec.structs.replace(verdict, node=name)])
        self._nics = found
        self._nic_verdicts = tuple(nics.judge(nic, found) for nic in found)
        self._threads = self._settings.threads or device.cores_logical
        self._own = Node(
            id=self.identity.id,
            name=name,
            role="head",
            state="measuring",
            address=chosen.addresses[0].ip if chosen else LOOPBACK,
            port=self._settings.port,
            nic=chosen.name if chosen else "",
            nic_verdict=verdict,
            interface=chosen,
            device=device,
            versions=versions,
            slowdown=self._settings.slowdown,
            ranks=self._settings.ranks,
            detail="measuring speed",
        )
        known = KnownNodes(self._paths.known_nodes)
        self.node_side = NodeSide(self._paths, self._settings, lambda: self.own, self._threads, self.changed)
        self.headship = Headship(self, known)
        self.membership = Membership(self, known)
        await self._listen()
        self._spawn(self._measure())
        self._spawn(self._tick())
        self._spawn(self._watch_heat())
        if self._settings.lend_when_used:
            self._spawn(self._watch_owner())
        if self.membership.remembers_head:
            await self.membership.rejoin()
        else:
            self._spawn(self.headship.announce_soon())

    async def _listen(self) -> None:
        addresses = list(dict.fromkeys([LOOPBACK, self._own.address]))
        context: ssl.SSLContext = server_context(self.identity)
        self._servers = await listen(addresses, self._settings.port, context, self._accept)
        write_atomically(self._paths.agent_lock, msgspec.json.encode(Lock(os.getpid(), self._settings.port)))
        log.info("listening on %s, port %d, as %s", ", ".join(addresses), self._settings.port, self._own.name)

    # --- what the other parts may use -----------------------------------------------------------------

    @property
    def paths(self) -> Paths:
        return self._paths

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def own(self) -> Node:
        """This node's record as it is now."""
        role = "worker" if self.membership.active else "head"
        state = "running" if self.node_side.busy and self._own.state != "measuring" else self._own.state
        lent, detail = self._owner.has_it, self._heat.detail or self._own.detail
        own = msgspec.structs.replace(self._own, role=role, state=state, lent=lent, hot=self._heat.hot, detail=detail)
        return with_share(own, None if lent else self.node_side.share)

    def clock(self) -> float:
        """Seconds on a monotonic clock."""
        return self._clock()

    def spawn(self, work: Any) -> None:
        """Run a coroutine for as long as the agent lives; its failure is logged."""
        self._spawn(work)

    def changed(self) -> None:
        """Something that a screen shows is different now."""
        for event, _ in self._watchers.values():
            event.set()

    def snapshot(self) -> Snapshot:
        worker = self.membership.active
        own = self.own
        base: dict[str, Any] = self.membership.snapshot(own) if worker else self.headship.snapshot(own)
        return Snapshot(
            self_id=self.identity.id, role=own.role, nics=self._nics, log_path=str(self._paths.agent_log), **base
        )

    # --- connections ----------------------------------------------------------------------------------

    async def _accept(self, socket: ServerConnection, tls: ssl.SSLObject) -> None:
        peer = peer_id(tls, self.identity)
        handlers: dict[str, Callable[[Session, AnyMessage, int], Any]] = {
            "local": self._from_local,
            "worker": self.headship.from_worker,
            "stranger": self.headship.from_stranger,
        }
        session = Session(socket, peer, handlers[peer.kind])
        if peer.kind == "local":
            self._locals.add(session)
        elif peer.kind == "stranger":
            if len(self._strangers) >= MAX_STRANGERS:
                await session.close("too many strangers at the door")
                return
            # what a stranger has to say is short
            socket.protocol.max_message_size = STRANGER_FRAME_BYTES
            self._strangers.add(session)
            self._spawn(self._hurry(session))
        try:
            await session.run()
        finally:
            self._locals.discard(session)
            self._strangers.discard(session)
            self._unwatch(session)
            self._idle_since = self._clock()
            await self.headship.ended(session)

    async def _hurry(self, session: Session) -> None:
        """A stranger that doesn't knock takes somebody else's place."""
        await asyncio.sleep(KNOCK_WITHIN_S)
        if session in self._strangers and not self.headship.has_knocked(session):
            await session.close("nothing was said")

    async def _from_local(self, session: Session, message: AnyMessage, _: int) -> AnyMessage | None:
        head = self.headship
        match message:
            case Ping():
                return Pong(pid=os.getpid(), version=__version__, role=self.own.role)
            case Look():
                return World(snapshot=self.snapshot())
            case Watch():
                self._watch(session, message.interval_s)
            case ListNics():
                return Nics(nics=self._nics, verdicts=self._nic_verdicts, chosen=self._own.nic)
            case Examine():
                return await head.examine(message)
            case Measure():
                await self._measure_node(message.node)
            case BeWorker():
                await self.membership.become(message)
                await head.withdraw()
            case ConfirmHead():
                await self.membership.confirm(message.id)
            case Forget():
                if not await self.membership.forget(message.node):
                    await head.forget(message.node)
                elif not self.membership.active:
                    self._spawn(head.announce_soon())
            case MakeInvite():
                self._only_as_head("invite")
                return head.invite(message)
            case AcceptWorker():
                await head.accept(message.id)
            case DeclineWorker():
                await head.decline(message.id)
            case Launch():
                self._only_as_head("launch a run")
                conductor = await head.launch(message.spec)
                return Launched(run=conductor.id, folder=str(conductor.folder.path))
            case FollowRun():
                return RunNews(state=head.run_state(message.run))
            case StopRun():
                head.stop_run()
            case PauseRun():
                self._only_as_head("pause a run")
                head.pause_run(message.paused)
            case Lend():
                await self._lend(self._owner.says(message.lent))
            case QuitAgent():
                self._quit.set()
            case _:
                raise UsageError(f"{type(message).__name__} is not a request to an agent")
        self.changed()
        return Done()

    def _only_as_head(self, what: str) -> None:
        if self.membership.active:
            head = self.membership.head_name or "another machine"
            raise UsageError(
                f"this machine is a worker of {head} and can't {what}",
                f"Do it on {head}, or leave it first: daisychain forget {head}",
            )

    def _watch(self, session: Session, interval_s: float) -> None:
        self._unwatch(session)
        event = asyncio.Event()
        event.set()
        sending = self._spawn(self._send_snapshots(session, event, max(0.2, interval_s)))
        self._watchers[session] = (event, sending)

    def _unwatch(self, session: Session) -> None:
        watcher = self._watchers.pop(session, None)
        if watcher is not None:
            watcher[1].cancel()

    async def _send_snapshots(self, session: Session, event: asyncio.Event, interval_s: float) -> None:
        last: Snapshot | None = None
        while not session.closed.is_set():
            await event.wait()
            event.clear()
            now = self.snapshot()
            if now != last:
                with contextlib.suppress(DaisyError):
                    await session.notify(World(snapshot=now))
                last = now
            await asyncio.sleep(interval_s)

    # --- the machine's owner --------------------------------------------------------------------------

    async def _lend(self, owner: idle.Owner) -> None:
        """He takes the machine, or gives it back: whoever leads a run that it is in learns it."""
        had_it, self._owner = self._owner.has_it, owner
        if owner.has_it == had_it:
            return
        log.info("this machine is %s", "used by its owner" if owner.has_it else "given back by its owner")
        if self.membership.active:
            await self.membership.tell_news()
        else:
            self.headship.lend(self.own)
        self.changed()

    async def _watch_owner(self) -> None:
        while True:
            await self._lend(self._owner.seen(await asyncio.to_thread(idle.read_idle_s)))
            await asyncio.sleep(LOOK_FOR_OWNER_S)

    async def _watch_heat(self) -> None:
        """Only while a run goes on here, and until it has cooled down after that."""
        while True:
            await asyncio.sleep(LOOK_FOR_HEAT_S)
            if not (self.node_side.busy or self._heat.hot):
                continue
            before, self._heat = self._heat, self._heat.seen(*await asyncio.to_thread(read_heat))
            if self._heat is not before:
                log.info("this machine: %s", self._heat.news)
                await self.node_side.note(self._heat.news)
                await self.membership.tell_news()
                self.changed()

    # --- time -----------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.headship.tick(self._clock())
            if self.node_side.busy or self.headship.active_run:
                self.changed()
            if self._needed():
                self._idle_since = self._clock()
            elif self._clock() - self._idle_since > IDLE_LIMIT_S:
                log.info("nobody needs this agent; ending")
                self._quit.set()

    def _needed(self) -> bool:
        return bool(self._tied or self._locals or self.membership.active or self.node_side.busy or self.headship.needed)

    async def _try_gpus(self) -> None:
        """Whether torch can use a GPU is for a try to say."""
        device = self._own.device
        if device.gpus and self._own.versions.torch is not None:
            device = msgspec.structs.replace(device, gpus=await gpus.tried(device.gpus, self._settings.slowdown))
            self._own = msgspec.structs.replace(self._own, device=device)

    async def _measure_node(self, node: str) -> None:
        if node in ("", self._own.name, self._own.id):
            self.measure_again()
        else:
            self._only_as_head("let another node measure its speed")
            await self.headship.measure(node)

    def measure_again(self) -> None:
        """Measure this machine's speed in the background. Raises UsageError while it takes part in a run."""
        if self.node_side.busy:
            reason = f"{self._own.name} takes part in a run, and measuring its speed would disturb both"
            raise UsageError(reason, "Wait for the run, or end it with: daisychain stop")
        if self._own.state != "measuring":
            self._own = msgspec.structs.replace(self._own, state="measuring", detail="measuring speed")
            self._spawn(self._measure(afresh=True))

    async def _measure(self, afresh: bool = False) -> None:
        """afresh: whatever is remembered of earlier."""
        if afresh:
            await self.membership.tell_news()
        await self._try_gpus()
        torch = self._own.versions.torch
        key = capacity.key(self._own.device, torch or "none", self._threads, self._settings.slowdown)
        known = None if afresh else await asyncio.to_thread(capacity.load, self._paths.capacity, key)
        detail = ""
        if known is None and torch is None:
            detail = "torch is not installed here"
        elif known is None:
            try:
                known = await capacity.measure(self._threads, self._settings.slowdown)
                await asyncio.to_thread(capacity.store, self._paths.capacity, key, known)
            except DaisyError as error:
                log.error("measuring this machine failed: %s", error)
                detail = f"speed unknown: {error.what}"
        self._own = msgspec.structs.replace(self._own, capacity=known, state="ready", detail=detail)
        if known is not None:
            self.node_side.threads = known.threads
        await self.membership.tell_news()
        self.changed()

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a part of the agent failed", exc_info=task.exception())

    # --- the end --------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until somebody or nobody wants it any more."""
        await self._quit.wait()

    def quit(self) -> None:
        self._quit.set()

    async def close(self) -> None:
        """End runs, children, connections; leave nothing."""
        with contextlib.suppress(Exception):
            await self.headship.close()
        with contextlib.suppress(Exception):
            await self.membership.close()
        await self.node_side.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in list(self._locals):
            await session.close("the agent ends")
        for server in self._servers:
            server.close()
        with contextlib.suppress(OSError):
            self._paths.agent_lock.unlink()
