"""What the two ways of joining have in common: a step of a handshake, its outcomes, nonces.

The machines (TokenDoor, TokenKnock, PairingHead, PairingWorker) know no socket and no clock: a message in, messages
out. Whatever comes in, they answer and never raise.
"""

import hashlib
import secrets

import msgspec

from daisychain.errors import TrustError
from daisychain.link.messages import PROTOCOL, AnyMessage, Refused, Welcome
from daisychain.trust.identity import Identity, check_self_signed, fingerprint, id_of

NAME_BYTES = 63


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """On the head: this worker is in; the Welcome in the same step tells it."""

    id: str
    name: str


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """On the worker: the head let this node in; these are the arguments of Identity.keep_membership, in its order."""

    head_id: str
    head_name: str
    head_certificate: str
    signed: str


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """On either side: it is over without a new member."""

    reason: str
    remedy: str = ""

    def error(self) -> TrustError:
        return TrustError(self.reason, self.remedy)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next: send these messages in order; with an `end`, the handshake is over."""

    send: tuple[AnyMessage, ...] = ()
    end: Admitted | Joined | Denied | None = None


def fresh_nonce() -> str:
    """32 random bytes in hex, for one handshake."""
    return secrets.token_hex(32)


def digest(label: str, *fields: str) -> bytes:
    """SHA-256 of a label and fields, each preceded by its length so that no two lists look the same."""
    return hashlib.sha256(packed(label, *fields)).digest()


def packed(label: str, *fields: str) -> bytes:
    encoded = [text.encode() for text in (label, *fields)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def deny(reason: str, remedy: str = "") -> Step:
    """The end of a handshake: the peer is told why."""
    return Step(send=(Refused(reason=reason, remedy=remedy, exit=5),), end=Denied(reason=reason, remedy=remedy))


def denied_by_peer(refused: Refused) -> Step:
    """The peer ended it; its words are shown, so they are cut to what a line holds."""
    return Step(end=Denied(reason=_shown(refused.reason) or "the other side refused", remedy=_shown(refused.remedy)))


def out_of_turn(message: AnyMessage, expected: str) -> Step:
    """The end of a handshake whose peer sent something else than it had to."""
    return deny(
        f"got {type(message).__name__} where {expected} was due",
        "Install the same version of daisychain on both machines",
    )


def worker_in_hello(certificate: str, protocol: int, head: Identity) -> str:
    """The id of a worker that says hello. Raises TrustError when it can't be let in whatever follows."""
    if protocol != PROTOCOL:
        raise TrustError(
            f"the worker speaks version {protocol} of the protocol, this head version {PROTOCOL}",
            "Install the same version of daisychain on both machines",
        )
    worker = fingerprint(check_self_signed(certificate))
    if worker == head.id:
        raise TrustError("this is the same node: a machine can't join itself", "Give the address of another machine")
    return worker


def joined_by(welcome: Welcome, identity: Identity, head_certificate: str) -> Step:
    """The end of a worker's handshake: whether what the head signed is what it should be."""
    try:
        identity.check_signed(head_certificate, welcome.certificate)
        head = id_of(head_certificate)
    except TrustError as error:
        return deny(error.what, error.remedy)
    name = shown_name(welcome.head, head)
    return Step(end=Joined(head_id=head, head_name=name, head_certificate=head_certificate, signed=welcome.certificate))


def shown_name(name: str, node_id: str) -> str:
    """The name a stranger gave itself, when a screen can show it as it is; otherwise the start of its id.

    A node cleans its own name before it sends it, so only a hostile or foreign one loses it here.
    """
    return name.strip() if is_plain(name) and name.strip() else f"node {node_id[:8]}"


def is_plain(text: str, limit: int = NAME_BYTES) -> bool:
    """No control characters, no markup, at most `limit` bytes."""
    return text.isprintable() and not set(text) & set("[]\\") and len(text.encode()) <= limit


def _shown(text: str) -> str:
    return "".join(c for c in text[:300] if c.isprintable() and c not in "[]\\")
