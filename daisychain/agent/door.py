"""A head's door: strangers with a token, strangers that pair.

The rules are trust's; here are the connections and the log.
"""

import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from daisychain.errors import LinkError, NoNodeError, TrustError
from daisychain.facts import JoinRequest
from daisychain.link.messages import AnyMessage, Invitation, MakeInvite, PairHello, Refused, TokenHello
from daisychain.link.session import Session
from daisychain.trust.handshake import Admitted, Denied, Step, fresh_nonce
from daisychain.trust.invites import ENTROPY_BYTES, InviteBook, TokenDoor
from daisychain.trust.known import KnownNodes, KnownWorker
from daisychain.trust.pairing import HandshakeLimit, PairingHead

if TYPE_CHECKING:
    from daisychain.agent.service import Agent

log = logging.getLogger(__name__)
STRANGER_LIMIT_S = 1800.0


class Door:
    def __init__(self, agent: "Agent", known: KnownNodes) -> None:
        self._agent, self._known = agent, known
        self._book = InviteBook(agent.identity.id)
        self._limit = HandshakeLimit()
        self._machines: dict[Session, TokenDoor | PairingHead] = {}
        self._since: dict[Session, float] = {}
        self._invited_until = 0.0

    @property
    def open(self) -> bool:
        """Whether somebody may still come in: a token is out, or a worker waits."""
        return bool(self._machines) or self._agent.clock() < self._invited_until

    def invite(self, message: MakeInvite) -> Invitation:
        now, own = self._agent.clock(), self._agent.own
        token = self._book.create(now, message.uses, message.minutes, secrets.token_bytes(ENTROPY_BYTES))
        self._invited_until = max(self._invited_until, now + message.minutes * 60)
        return Invitation(
            token=token.text, address=f"{own.address}:{own.port}", uses=message.uses, minutes=message.minutes
        )

    def requests(self) -> tuple[JoinRequest, ...]:
        """The workers that wait, in the order they came."""
        shown = (
            machine.request(session.address)
            for session, machine in self._machines.items()
            if isinstance(machine, PairingHead)
        )
        return tuple(request for request in shown if request is not None)

    async def take(self, session: Session, message: AnyMessage) -> AnyMessage | None:
        """A stranger's message."""
        machine = self._machines.get(session)
        if machine is None:
            machine = self._open_for(session, message)
            if machine is None:
                await session.close("not a way in")
                return None
            self._machines[session], self._since[session] = machine, self._agent.clock()
        if isinstance(machine, TokenDoor):
            await self._perform(session, machine.receive(message, self._agent.clock()))
        else:
            await self._perform(session, machine.receive(message))
        self._agent.changed()
        return None

    def _open_for(self, session: Session, message: AnyMessage) -> TokenDoor | PairingHead | None:
        """The state machine for a stranger's first words; None (and a log line) when there is no way in by them."""
        identity, name = self._agent.identity, self._agent.own.name
        if isinstance(message, TokenHello):
            return TokenDoor(identity, name, self._book, fresh_nonce())
        why = f"{type(message).__name__} is for nodes that joined"
        if isinstance(message, PairHello):
            why = self._limit.refusal(session.address, self._agent.clock()) or ""
            if not why:
                return PairingHead(identity, name, fresh_nonce())
        log.warning("refused a stranger at %s: %s", session.address, why)
        self._agent.spawn(_say_no(session, Refused(reason=why, remedy="Join first: daisychain join", exit=5)))
        return None

    def knows(self, session: Session) -> bool:
        """Whether this stranger has begun to join."""
        return session in self._machines

    async def accept(self, worker: str) -> None:
        """`a`: this machine's user says the digits are the same. Raises NoNodeError when nobody waits by that id."""
        session, machine = self._waiting(worker)
        await self._perform(session, machine.accept())

    async def decline(self, worker: str) -> None:
        session, machine = self._waiting(worker)
        await self._perform(session, machine.decline())

    def _waiting(self, worker: str) -> tuple[Session, PairingHead]:
        for session, machine in self._machines.items():
            if isinstance(machine, PairingHead) and machine.worker_id == worker and machine.digits:
                return session, machine
        raise NoNodeError("that machine doesn't wait any more", "It shows up again when it still wants to join")

    async def _perform(self, session: Session, step: Step) -> None:
        match step.end:
            case Admitted(id=worker, name=name):
                try:
                    self._known.add(KnownWorker(id=worker, name=name))
                except TrustError as error:
                    log.error("can't remember %s: %s", name, error)
                    step = Step(send=(Refused(reason=error.what, remedy=error.remedy, exit=5),), end=step.end)
                else:
                    log.info("let in %s (%s, %s)", name, worker[:12], session.address)
            case Denied(reason=reason):
                log.warning("refused %s: %s", session.address, reason)
            case _:
                pass
        with contextlib.suppress(LinkError):
            for message in step.send:
                await session.notify(message)
        if step.end is not None:
            self.left(session)
            self._agent.spawn(session.close())

    def revoke(self, worker: str) -> None:
        """A forgotten worker can't come back with the token it used."""
        self._book.revoke(worker)

    def left(self, session: Session) -> None:
        """A stranger's connection ended."""
        self._since.pop(session, None)
        if self._machines.pop(session, None) is not None:
            self._agent.changed()

    def tick(self, now_s: float) -> None:
        for session, since in list(self._since.items()):
            if now_s - since > STRANGER_LIMIT_S:
                self._agent.spawn(session.close("waited too long"))
                self.left(session)


async def _say_no(session: Session, refused: Refused) -> None:
    with contextlib.suppress(LinkError):
        await session.notify(refused)
    await session.close()
