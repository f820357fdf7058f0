"""Joining without a token: six digits that are the same on both screens unless somebody sits between them. Pure.

The worker commits to its nonce before it sees the head's, and the head sends its own before the worker's is opened:
nobody can try nonces until the digits fit. Whoever sits between two machines guesses right once in a million
handshakes, and HandshakeLimit allows few of those.
"""

import hmac
from collections import deque

from daisychain.errors import TrustError
from daisychain.facts import JoinRequest
from daisychain.link.messages import AnyMessage, PairConfirm, PairHello, PairNonce, PairReveal, Refused, Welcome
from daisychain.trust.handshake import (
    Admitted,
    Step,
    denied_by_peer,
    deny,
    digest,
    is_plain,
    joined_by,
    out_of_turn,
    shown_name,
    worker_in_hello,
)
from daisychain.trust.identity import Identity, id_of, is_id

DEVICE_BYTES = 120
MAX_HANDSHAKES = 5
WINDOW_S = 600.0
MAX_KEYS = 1024

_OVER = ("this handshake is over", "Connect again")


def commitment(worker_nonce: str, worker_id: str) -> str:
    """What the worker sends first: it binds it to its nonce without telling it."""
    return digest("daisychain pairing commitment", worker_nonce, worker_id).hex()


def digits(head_id: str, worker_id: str, worker_nonce: str, head_nonce: str) -> str:
    """The six digits that both screens show."""
    number = int.from_bytes(digest("daisychain pairing digits", head_id, worker_id, worker_nonce, head_nonce), "big")
    return f"{number % 10**6:06d}"


class PairingWorker:
    """The worker's side of one handshake; `digits` is empty until both nonces are known."""

    def __init__(self, identity: Identity, name: str, head_certificate: str, nonce: str, device: str = "") -> None:
        """head_certificate: PEM that the server showed in TLS. nonce: handshake.fresh_nonce(), never used before."""
        self._identity = identity
        self._name = name
        self._head_certificate = head_certificate
        self._nonce = nonce
        self._device = device
        self._state = "new"
        self.digits = ""
        self.head_name = ""

    def start(self) -> Step:
        """PairHello, with the commitment."""
        if self._state != "new":
            return self._advance(deny(*_OVER))
        self._state = "nonce"
        hello = PairHello(
            name=self._name,
            certificate=self._identity.certificate_pem,
            commitment=commitment(self._nonce, self._identity.id),
            device=self._device,
        )
        return Step(send=(hello,))

    def receive(self, message: AnyMessage) -> Step:
        """The answer to a message of the head: PairNonce -> PairReveal, Welcome -> Joined. Never raises."""
        if self._state in ("new", "over"):
            return self._advance(deny(*_OVER))
        if isinstance(message, Refused):
            return self._advance(denied_by_peer(message))
        if self._state == "nonce":
            return self._advance(self._reveal(message))
        if self._state == "digits":
            # a head that welcomes before this machine's user said yes isn't believed
            return self._advance(out_of_turn(message, "nothing"))
        return self._advance(self._enter(message))

    def confirm(self) -> Step:
        """This machine's user saw the same digits and said yes: PairConfirm."""
        if self._state == "confirmed":
            return Step()
        if self._state != "digits":
            return self._advance(deny(*_OVER))
        self._state = "confirmed"
        return Step(send=(PairConfirm(),))

    def _advance(self, step: Step) -> Step:
        if step.end is not None:
            self._state = "over"
        return step

    def _reveal(self, message: AnyMessage) -> Step:
        if not isinstance(message, PairNonce):
            return out_of_turn(message, "PairNonce")
        if not is_id(message.nonce):
            return deny("the nonce isn't 64 hex digits", "Is the other side daisychain?")
        try:
            head = id_of(self._head_certificate)
        except TrustError as error:
            return deny(error.what, error.remedy)
        self.digits = digits(head, self._identity.id, self._nonce, message.nonce)
        self.head_name = shown_name(message.head, head)
        self._state = "digits"
        return Step(send=(PairReveal(nonce=self._nonce),))

    def _enter(self, message: AnyMessage) -> Step:
        if not isinstance(message, Welcome):
            return out_of_turn(message, "Welcome")
        return joined_by(message, self._identity, self._head_certificate)


class PairingHead:
    """The head's side of one handshake. The worker is in once it confirmed and this machine's user accepted."""

    def __init__(self, identity: Identity, name: str, nonce: str) -> None:
        """nonce: handshake.fresh_nonce(), never used before."""
        self._identity = identity
        self._name = name
        self._nonce = nonce
        self._hello: PairHello | None = None
        self._accepted = False
        self._over = False
        self.worker_id = ""
        """As the worker claims it: it only counts once the digits were compared."""
        self.worker_name = ""
        self.device = ""
        self.digits = ""
        self.confirmed = False

    def receive(self, message: AnyMessage) -> Step:
        """The answer to a message of the worker. Never raises.

        PairHello -> PairNonce; PairReveal -> nothing, and `digits` are there; PairConfirm -> nothing, or Welcome when
        this machine's user was faster; anything else -> Refused.
        """
        if self._over:
            return deny(*_OVER)
        if isinstance(message, Refused):
            return self._advance(denied_by_peer(message))
        if self._hello is None:
            return self._advance(self._greet(message))
        if not self.digits:
            return self._advance(self._open(message, self._hello))
        if not isinstance(message, PairConfirm) or self.confirmed:
            return self._advance(out_of_turn(message, "nothing" if self.confirmed else "PairConfirm"))
        self.confirmed = True
        return self._advance(self._welcome(self._hello))

    def accept(self) -> Step:
        """This machine's user saw the same digits and said yes: Welcome, now or once the worker confirms."""
        if self._over or self._hello is None or not self.digits:
            return self._advance(deny(*_OVER))
        self._accepted = True
        return self._advance(self._welcome(self._hello))

    def decline(self) -> Step:
        """This machine's user said no."""
        if self._over:
            return Step()
        return self._advance(deny("the head's user declined", "Ask there, and compare the digits"))

    def request(self, address: str) -> JoinRequest | None:
        """What the cluster screen shows; None before the digits are known and after the end."""
        if self._over or not self.digits:
            return None
        return JoinRequest(
            id=self.worker_id,
            name=self.worker_name,
            address=address,
            digits=self.digits,
            confirmed=self.confirmed,
            device=self.device,
        )

    def _advance(self, step: Step) -> Step:
        self._over = self._over or step.end is not None
        return step

    def _greet(self, message: AnyMessage) -> Step:
        if not isinstance(message, PairHello):
            return out_of_turn(message, "PairHello")
        if not is_id(message.commitment):
            return deny("the commitment isn't 64 hex digits", "Is the other side daisychain?")
        try:
            self.worker_id = worker_in_hello(message.certificate, message.protocol, self._identity)
        except TrustError as error:
            return deny(error.what, error.remedy)
        self.worker_name = shown_name(message.name, self.worker_id)
        self.device = message.device if is_plain(message.device, DEVICE_BYTES) else ""
        self._hello = message
        return Step(send=(PairNonce(nonce=self._nonce, head=self._name),))

    def _open(self, message: AnyMessage, hello: PairHello) -> Step:
        if not isinstance(message, PairReveal):
            return out_of_turn(message, "PairReveal")
        if not is_id(message.nonce) or not hmac.compare_digest(
            commitment(message.nonce, self.worker_id), hello.commitment
        ):
            return deny("the worker's nonce isn't the one it committed to", "Somebody may sit between: try again")
        self.digits = digits(self._identity.id, self.worker_id, message.nonce, self._nonce)
        return Step()

    def _welcome(self, hello: PairHello) -> Step:
        """The end, once both users said yes."""
        if not (self.confirmed and self._accepted):
            return Step()
        try:
            signed = self._identity.sign(hello.certificate)
        except TrustError as error:
            return deny(error.what, error.remedy)
        welcome = Welcome(certificate=signed, head=self._name)
        return Step(send=(welcome,), end=Admitted(id=self.worker_id, name=self.worker_name))


class HandshakeLimit:
    """At most five handshakes for a pair of machines in ten minutes. Times are of one monotonic clock.

    The key is what the other side can't change at will: on the head the worker's address (ids cost nothing), on a
    worker the head's.
    """

    def __init__(self, most: int = MAX_HANDSHAKES, window_s: float = WINDOW_S, keys: int = MAX_KEYS) -> None:
        self._most = most
        self._window_s = window_s
        self._keys = keys
        self._times: dict[str, deque[float]] = {}

    def refusal(self, key: str, now_s: float) -> str | None:
        """Count a handshake that is about to start; or why it must not."""
        times = self._recent(key, now_s)
        if len(times) >= self._most:
            wait = max(1, round(times[0] + self._window_s - now_s))
            minutes = f"{self._window_s / 60:g} minutes"
            return f"{self._most} pairings were tried in {minutes}; the next one is possible in {wait} s"
        if key not in self._times and len(self._times) >= self._keys:
            self._prune(now_s)
            # dropping somebody's count would let it start over, so a newcomer waits instead
            if len(self._times) >= self._keys:
                return "too many machines try to pair at once"
        times.append(now_s)
        self._times[key] = times
        return None

    def _recent(self, key: str, now_s: float) -> deque[float]:
        times = self._times.get(key, deque())
        while times and times[0] <= now_s - self._window_s:
            times.popleft()
        return times

    def _prune(self, now_s: float) -> None:
        self._times = {key: times for key in self._times if (times := self._recent(key, now_s))}
