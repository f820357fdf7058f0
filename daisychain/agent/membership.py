"""What an agent does as a worker: look for heads, pair with them, stay with the one it joined."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from daisychain.agent.chain import HEARTBEAT_S, LOST_AFTER_S
from daisychain.agent.knock import Knock, join_by_token
from daisychain.config import DEFAULT_PORT
from daisychain.discovery import tailscale
from daisychain.discovery.mdns import Mdns
from daisychain.discovery.roster import Found, Gone, Roster
from daisychain.errors import DaisyError, LinkError, NoNodeError, PreflightError, TrustError, UsageError
from daisychain.facts import Node, Verdict
from daisychain.link.client import dial
from daisychain.link.messages import (
    AnyMessage,
    BeWorker,
    Done,
    EndRun,
    FetchBlob,
    File,
    FindModules,
    FindRelays,
    Heartbeat,
    Hello,
    HelloBack,
    Inspect,
    Listen,
    Measure,
    NodeNews,
    OrderRank,
    PrepareRun,
    RankReport,
    SendFlow,
    ShipProgress,
    StartRank,
    TryPaths,
)
from daisychain.link.session import Session
from daisychain.plan.checks import judge_chaining
from daisychain.trust.known import KnownHead, KnownNodes
from daisychain.trust.pairing import HandshakeLimit
from daisychain.trust.tls import client_context

if TYPE_CHECKING:
    from daisychain.agent.service import Agent

log = logging.getLogger(__name__)
RETRY_S = (0.5, 1.0, 2.0, 4.0)
ADVICE_AFTER_S = 10.0
MAX_KNOCKS = 8
TAILNET_EVERY_S = 15.0


class Membership:
    def __init__(self, agent: "Agent", known: KnownNodes) -> None:
        self._agent, self._known = agent, known
        self._active = False
        self._staying: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._head: Node | None = None
        self._head_id = ""
        self.head_name = ""
        self._trouble = ""
        self._knocks: dict[str, Knock] = {}
        self._roster = Roster(agent.identity.id)
        self._mdns: Mdns | None = None
        self._tailnet: asyncio.Task[None] | None = None
        self._discovery: Verdict | None = None
        self._limit = HandshakeLimit()
        self._searching_since = 0.0

    @property
    def active(self) -> bool:
        """Whether this machine is a worker, or wants to be one."""
        return self._active

    @property
    def discovery(self) -> Verdict | None:
        """Whether it can look for heads with mDNS; None while unknown."""
        return self._discovery

    @property
    def head(self) -> Node | None:
        """The head's record, once it was connected with."""
        return self._head

    @property
    def remembers_head(self) -> bool:
        return bool(self._known.heads())

    async def rejoin(self) -> None:
        """Stay with the head that was joined last."""
        head = self._known.heads()[-1]
        self._active = True
        self._stay_with(head.id, head.name, head.address, head.port)

    async def become(self, message: BeWorker) -> None:
        """Act on a BeWorker.

        Raises TrustError or LinkError when a token doesn't work, PreflightError where this system can be in no chain or
        has no NIC that leads to another machine; then the role is as before.
        """
        if self._agent.headship.active_run:
            raise UsageError("a run is going on that this machine leads", "Wait for it, or end it: daisychain stop")
        if verdicts := judge_chaining(self._agent.own):
            raise PreflightError(verdicts)
        port = message.port or DEFAULT_PORT
        if message.token:
            try:
                head = await join_by_token(self._agent, message.host, port, message.token)
            except LinkError as error:
                raise _without_nic(self._agent.own) or error from error
            await self._keep(head)
        elif message.host:
            self._active = True
            known = next((h for h in self._known.heads() if message.host in (h.name, h.address)), None)
            if known is not None:
                self._stay_with(known.id, known.name, message.host, port)
            else:
                self._begin_search()
                self._knock_at(f"{message.host}:{port}", message.host, message.host, port)
        elif self.remembers_head:
            if self._staying is None:
                await self.rejoin()
        else:
            self._active = True
            self._begin_search()
        self._agent.changed()

    async def forget(self, name: str) -> bool:
        """Leave a head for good; False when none has that name or id."""
        heads = [h for h in self._known.heads() if name in (h.name, h.id)]
        if not heads:
            return False
        for head in heads:
            self._known.forget(head.id)
            self._agent.identity.drop_membership(head.id)
            if head.id == self._head_id:
                await self._leave()
                self._active = False
        self._agent.changed()
        return True

    async def _keep(self, head: KnownHead) -> None:
        """This head is ours now: remember it and connect."""
        self._known.add(head)
        self._active = True
        await self._end_search()
        self._stay_with(head.id, head.name, head.address, head.port)

    # --- with a head -----------------------------------------------------------------------------------

    def _stay_with(self, head_id: str, name: str, address: str, port: int) -> None:
        if self._staying is not None:
            self._staying.cancel()
        self._head_id, self.head_name = head_id, name
        self._staying = asyncio.create_task(self._stay(head_id, address, port))

    async def _stay(self, head_id: str, address: str, port: int) -> None:
        """Connect, and connect again, for as long as this head is ours."""
        failures = 0
        while True:
            try:
                await self._connected(head_id, address, port)
                failures = 0
            except TrustError as error:
                log.error("%s refused this node: %s", self.head_name, error)
                self._trouble, self._head_id = str(error), ""
                if self._known.is_known(head_id):
                    self._known.forget(head_id)
                self._agent.changed()
                return
            except DaisyError as error:
                if str(error) != self._trouble:
                    log.warning("no connection to %s: %s", self.head_name, error)
                self._trouble = str(error)
            self._agent.changed()
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _connected(self, head_id: str, address: str, port: int) -> None:
        identity = self._agent.identity
        membership = identity.membership(head_id)
        if membership is None:
            raise TrustError(f"the certificate for {self.head_name} is gone", "Join again with a new token")
        context = client_context(identity, membership.head_certificate, membership.signed)
        socket, _, _ = await dial(address, port, context)
        session = Session(socket, head_id, self._from_head)
        reading = asyncio.create_task(session.run())
        try:
            side, said = self._agent.node_side, self._agent.own
            hello = Hello(node=said, run=side.waiting_run, seats=side.waiting_seats)
            back = await session.ask(hello, 10.0)
            if not isinstance(back, HelloBack):
                raise LinkError(f"{address} did not say hello")
            self._session, self._head, self.head_name, self._trouble = session, back.node, back.node.name, ""
            log.info("connected to %s at %s", self.head_name, address)
            self._agent.changed()
            if self._agent.own != said:
                await self.tell_news()
            await self._agent.node_side.head_is_back(HeadLink(session))
            await self._beat(session)
        finally:
            self._session = None
            self._agent.node_side.head_is_gone(silent=not session.closed.is_set())
            await session.close()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            self._agent.changed()
        self._trouble = f"the connection to {self.head_name} was lost"

    async def _beat(self, session: Session) -> None:
        """Heartbeats until the connection ends or nothing has come for three of them."""
        while not session.closed.is_set():
            if self._agent.clock() - session.heard_at > LOST_AFTER_S:
                raise LinkError(f"{self.head_name} was not heard of for {LOST_AFTER_S:.0f} s")
            with contextlib.suppress(LinkError):
                await session.notify(Heartbeat())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(session.closed.wait(), HEARTBEAT_S)

    async def tell_news(self) -> None:
        """This node's record changed."""
        if self._session is not None:
            with contextlib.suppress(LinkError):
                await self._session.notify(NodeNews(node=self._agent.own))

    async def _from_head(self, session: Session, message: AnyMessage, _: int) -> AnyMessage | None:
        match message:
            case (
                PrepareRun()
                | Listen()
                | TryPaths()
                | SendFlow()
                | FindModules()
                | FindRelays()
                | Inspect()
                | StartRank()
                | OrderRank()
                | EndRun()
            ):
                return await self._agent.node_side.handle(message, HeadLink(session))
            case Measure():
                self._agent.measure_again()
                return Done()
            case Heartbeat():
                return None
            case NodeNews():
                self._head = message.node
                return None
            case _:
                raise DaisyError(f"{type(message).__name__} is not an order to a worker")

    async def _leave(self) -> None:
        self._head_id, self.head_name, self._head = "", "", None
        await self._agent.node_side.end()
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.gather(self._staying, return_exceptions=True)
            self._staying = None

    # --- looking for one -------------------------------------------------------------------------------

    def _begin_search(self) -> None:
        if self._tailnet is None:
            self._searching_since = self._agent.clock()
            self._tailnet = asyncio.create_task(self._search_tailnet())
        if self._mdns is None and self._agent.settings.mdns:
            self._mdns = Mdns()
            self._agent.spawn(self._search(self._mdns))

    async def _search_tailnet(self) -> None:
        """Machines of this one's tailnet where something listens on DaisyChain's port are candidates."""
        while command := tailscale.program():
            known = {knock.address for knock in self._knocks.values()}
            peers = [peer for peer in await tailscale.read_peers(command) if peer.address not in known]
            port = self._agent.settings.port
            for peer in await tailscale.listening(peers, port):
                self._knock_at(f"{peer.address}:{port}", peer.name, peer.address, port)
            self._agent.changed()
            await asyncio.sleep(TAILNET_EVERY_S)

    async def _search(self, mdns: Mdns) -> None:
        own = self._agent.own
        verdict = await mdns.start(own.address)
        if verdict.level == "ok":
            verdict = await mdns.browse(self._on_event)
        self._discovery = verdict
        self._agent.changed()

    def _on_event(self, event: Found | Gone) -> None:
        """mDNS told something. Heads that were typed by hand are not of its business."""
        self._roster = self._roster.heard(event)
        listed = {head.id: head for head in self._roster.heads}
        for key, head in listed.items():
            knock = self._knocks.get(key)
            if knock is None or (knock.address, knock.port) != (head.address, head.port):
                self._knock_at(key, head.name, head.address, head.port)
        for key in [k for k in self._knocks if k not in listed and ":" not in k]:
            self._agent.spawn(self._knocks.pop(key).close())
        self._agent.changed()

    def _knock_at(self, key: str, name: str, address: str, port: int) -> None:
        """Pair with a head in the background, so that its digits are there when its line is.

        key: the id that mDNS told, or HOST:PORT for an address typed by hand.
        """
        if len(self._knocks) >= MAX_KNOCKS and key not in self._knocks:
            return
        old = self._knocks.pop(key, None)
        if old is not None:
            self._agent.spawn(old.close())
        knock = Knock(self._agent, self._limit, name, address, port, self._keep)
        self._knocks[key] = knock
        knock.start()

    async def confirm(self, head_id: str) -> None:
        """`j`: yes to the head with this id. Raises NoNodeError when it isn't listed."""
        for knock in self._knocks.values():
            if head_id == knock.shown().id:
                await knock.confirm()
                return
        raise NoNodeError("that head is not there any more", "Wait for it to show up again")

    async def _end_search(self) -> None:
        knocks, self._knocks = self._knocks, {}
        for knock in knocks.values():
            self._agent.spawn(knock.close())
        if self._tailnet is not None:
            self._tailnet.cancel()
            await asyncio.gather(self._tailnet, return_exceptions=True)
            self._tailnet = None
        if self._mdns is not None:
            mdns, self._mdns = self._mdns, None
            self._agent.spawn(mdns.close())

    # --- what is shown ---------------------------------------------------------------------------------

    def snapshot(self, own: Node) -> dict[str, Any]:
        head = (self._head,) if self._head is not None else ()
        return {
            "nodes": (own, *head),
            "heads": tuple(knock.shown() for knock in self._knocks.values()),
            "joined": self.head_name if self._head_id else "",
            "connected": self._session is not None,
            "discovery": self._discovery,
            "run": self._agent.node_side.state(),
            "advice": self._advice(),
        }

    def _advice(self) -> str:
        if self._agent.own.lent:
            return "You use this machine; give it back with p or: daisychain resume"
        if self._session is not None:
            return f"{self.head_name} may run code on this machine; leave it with: daisychain forget {self.head_name}"
        if self._trouble:
            return self._trouble
        if self._knocks:
            return "Compare the six digits with those on the head's screen, then press j here and a there"
        if self._agent.clock() - self._searching_since > ADVICE_AFTER_S:
            return (
                "No head found yet. Is daisychain running there? Guest Wi-Fi, VPNs and VLANs often carry no multicast; "
                "its address works all the same: daisychain join HOST"
            )
        return "Looking for heads on this network"

    async def close(self) -> None:
        await self._end_search()
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.gather(self._staying, return_exceptions=True)


def _without_nic(own: Node) -> PreflightError | None:
    """Why nobody can be reached, where the NIC that was chosen leads to this machine only."""
    if own.interface is None or own.interface.kind != "loopback":
        return None
    return PreflightError([msgspec.structs.replace(own.nic_verdict, level="refuse", node=own.name)])


class HeadLink:
    """The head that conducts a run, over the link."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def fetch(self, run: str, file: File, offset: int, sink: Callable[[bytes], None]) -> None:
        await self._session.fetch(FetchBlob(run=run, sha256=file.sha256, offset=offset), sink)

    async def report(self, run: str, seat: int, report: dict[str, Any]) -> None:
        with contextlib.suppress(LinkError):
            await self._session.notify(RankReport(run=run, seat=seat, report=report))

    async def shipped(self, run: str, have: int, total: int) -> None:
        with contextlib.suppress(LinkError):
            await self._session.notify(ShipProgress(run=run, have_bytes=have, total_bytes=total))

    def sources(self) -> Mapping[str, Path] | None:
        return None
