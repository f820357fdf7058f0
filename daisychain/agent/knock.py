"""A worker at a head's door: by token, or in the background with digits. The rules are trust's."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from daisychain.errors import DaisyError, LinkError
from daisychain.facts import FoundHead
from daisychain.link.client import dial
from daisychain.link.messages import AnyMessage
from daisychain.link.session import Session
from daisychain.trust.handshake import Denied, Joined, Step, fresh_nonce
from daisychain.trust.invites import Token, TokenKnock
from daisychain.trust.known import KnownHead
from daisychain.trust.pairing import HandshakeLimit, PairingWorker
from daisychain.trust.tls import client_context

if TYPE_CHECKING:
    from daisychain.agent.service import Agent

TOKEN_PATIENCE_S = 20.0
AGAIN_S = 5.0


async def join_by_token(agent: "Agent", host: str, port: int, text: str) -> KnownHead:
    """Join the head at host:port and keep what it signed.

    Raises TrustError when it refuses, LinkError when it is away.
    """
    token = Token.parse(text)
    socket, _, certificate = await dial(host, port, client_context(agent.identity))
    machine = TokenKnock(agent.identity, agent.own.name, token, certificate, fresh_nonce())
    end: asyncio.Future[Joined | Denied] = asyncio.get_running_loop().create_future()

    async def take(session: Session, message: AnyMessage, _: int) -> None:
        await perform(session, machine.receive(message))

    async def perform(session: Session, step: Step) -> None:
        for message in step.send:
            await session.notify(message)
        if isinstance(step.end, Joined | Denied) and not end.done():
            end.set_result(step.end)

    session = Session(socket, "head", take)
    reading = asyncio.create_task(session.run())
    closed = asyncio.create_task(session.closed.wait())
    try:
        await perform(session, machine.start())
        waiting: set[asyncio.Future[Any]] = {end, closed}
        await asyncio.wait(waiting, timeout=TOKEN_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            raise LinkError(f"{host}:{port} broke off while joining", "Try again; the head's log may say why")
    finally:
        await session.close()
        for task in (reading, closed):
            task.cancel()
        await asyncio.gather(reading, closed, return_exceptions=True)
    return _keep(agent, end.result(), host, port)


def _keep(agent: "Agent", end: Joined | Denied, address: str, port: int) -> KnownHead:
    if isinstance(end, Denied):
        raise end.error()
    agent.identity.keep_membership(end.head_id, end.head_name, end.head_certificate, end.signed)
    return KnownHead(id=end.head_id, name=end.head_name, address=address, port=port)


class Knock:
    """One head that was found, or typed: the handshake with it, and its line on the join screen."""

    def __init__(
        self,
        agent: "Agent",
        limit: HandshakeLimit,
        name: str,
        address: str,
        port: int,
        welcomed: Callable[[KnownHead], Awaitable[None]],
    ) -> None:
        self._agent, self._limit, self._welcomed = agent, limit, welcomed
        self.name, self.address, self.port = name, address, port
        self.id = ""
        self._machine: PairingWorker | None = None
        self._session: Session | None = None
        self._state = "contacting"
        self._reason = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Handshake, wait for both users, and again when the connection breaks, as far as the limit allows."""
        while self._state not in ("joined", "refused"):
            try:
                await self._once()
            except DaisyError as error:
                self._reason = str(error)
                if self._state != "refused":
                    self._state = "contacting"
            self._agent.changed()
            await asyncio.sleep(AGAIN_S)

    async def _once(self) -> None:
        identity = self._agent.identity
        socket, self.id, certificate = await dial(self.address, self.port, client_context(identity))
        why = self._limit.refusal(f"{self.address}", self._agent.clock())
        if why is not None:
            await socket.close()
            self._state = "refused"
            raise LinkError(why, "Somebody may be guessing; or join with a token")
        own = self._agent.own
        device = f"{own.device.cpu}, {own.device.cores_logical} cores"
        self._machine = PairingWorker(identity, own.name, certificate, fresh_nonce(), device)
        session = Session(socket, "head", self._take)
        self._session = session
        reading = asyncio.create_task(session.run())
        try:
            await self._perform(session, self._machine.start())
            await session.closed.wait()
        finally:
            self._session = None
            await session.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if self._state in ("ready", "confirmed"):
            self._state = "contacting"

    async def _take(self, session: Session, message: AnyMessage, _: int) -> None:
        if self._machine is not None:
            await self._perform(session, self._machine.receive(message))

    async def _perform(self, session: Session, step: Step) -> None:
        assert self._machine is not None
        for message in step.send:
            await session.notify(message)
        if self._machine.digits and self._state == "contacting":
            self._state, self._reason = "ready", ""
            self.name = self._machine.head_name or self.name
        match step.end:
            case Joined():
                self._state = "joined"
                head = _keep(self._agent, step.end, self.address, self.port)
                self._agent.spawn(self._welcomed(head))
            case Denied(reason=reason, remedy=remedy):
                self._state, self._reason = "refused", f"{reason}. {remedy}" if remedy else reason
                self._agent.spawn(session.close())
            case _:
                pass
        self._agent.changed()

    async def confirm(self) -> None:
        """`j`: this machine's user says yes. Raises LinkError when the head is not there (yet)."""
        if self._machine is None or self._session is None or not self._machine.digits:
            raise LinkError(f"{self.name} has not shown its digits yet", "Wait for them")
        self._state = "confirmed"
        await self._perform(self._session, self._machine.confirm())

    def shown(self) -> FoundHead:
        digits = self._machine.digits if self._machine is not None and self._session is not None else ""
        state = "contacting" if self._state == "ready" and not digits else self._state
        return FoundHead(
            id=self.id or f"{self.address}:{self.port}",
            name=self.name,
            address=self.address,
            port=self.port,
            digits=digits,
            state=state,  # type: ignore[arg-type]
            reason=self._reason,
        )

    async def close(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
