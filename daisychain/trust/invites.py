"""Joining with a token: invitations, and the two sides of the handshake. Pure; time and randomness are arguments.

The token names the head by its certificate and carries a secret. The worker speaks only to the head whose certificate
it names; each side proves with an HMAC over both ids and both nonces that it knows the secret, which never travels.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from daisychain.errors import TrustError, UsageError
from daisychain.link.messages import AnyMessage, Refused, TokenChallenge, TokenHello, TokenProof, Welcome
from daisychain.trust.handshake import (
    Admitted,
    Step,
    denied_by_peer,
    deny,
    joined_by,
    out_of_turn,
    packed,
    shown_name,
    worker_in_hello,
)
from daisychain.trust.identity import Identity, id_of, is_id

HEAD_BYTES, INVITE_BYTES, SECRET_BYTES, CHECK_BYTES = 16, 6, 16, 2
ENTROPY_BYTES = INVITE_BYTES + SECRET_BYTES
TOKEN_LETTERS = (HEAD_BYTES + INVITE_BYTES + SECRET_BYTES + CHECK_BYTES) * 8 // 5  # 64, without padding
GROUP = 8
MAX_INVITES = 256
MAX_USES = 1000
MAX_MINUTES = 7 * 24 * 60.0
MAX_WRONG_PROOFS = 10

_NEW_TOKEN = "Make a new one on the head: daisychain invite"
_COPY_AGAIN = "Copy it again from the head, whole"
# letters that base32 doesn't have, read as the ones they look like
_LOOKALIKES = str.maketrans({"0": "O", "1": "I", "8": "B", "-": None})


@dataclass(frozen=True)
class Token:
    """An invitation as a person passes it on."""

    head: bytes
    """The first 16 bytes of the head's id."""
    invite: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def parse(text: str) -> "Token":
        """The token in `text`, whatever its case, dashes and blanks. Raises TrustError when it was mistyped."""
        letters = "".join(text.split()).upper().translate(_LOOKALIKES)
        if len(letters) != TOKEN_LETTERS:
            raise TrustError(f"the token has {len(letters)} letters, not {TOKEN_LETTERS}", _COPY_AGAIN)
        try:
            data = base64.b32decode(letters)
        except (binascii.Error, ValueError) as error:
            raise TrustError("the token has a character that no token has", _COPY_AGAIN) from error
        body, check = data[:-CHECK_BYTES], data[-CHECK_BYTES:]
        if _checksum(body) != check:
            raise TrustError("the token has a typo", _COPY_AGAIN)
        secret_at = HEAD_BYTES + INVITE_BYTES
        return Token(body[:HEAD_BYTES], body[HEAD_BYTES:secret_at], body[secret_at:])

    @property
    def text(self) -> str:
        """One word, safe in a shell and in a URL: letters and digits 2 to 7 in groups of eight."""
        body = self.head + self.invite + self.secret
        letters = base64.b32encode(body + _checksum(body)).decode()
        return "-".join(letters[i : i + GROUP] for i in range(0, len(letters), GROUP))

    def is_for(self, head_id: str) -> bool:
        """Whether the head with this id made the token."""
        return head_id[: 2 * HEAD_BYTES] == self.head.hex()


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"daisychain token" + body).digest()[:CHECK_BYTES]


@dataclass
class _Invite:
    secret: bytes
    ends_s: float
    uses_left: int
    wrong: int = 0
    workers: set[str] = field(default_factory=set)


class InviteBook:
    """A head's invitations, in memory only: they end with its agent. Times are of one monotonic clock."""

    def __init__(self, head_id: str) -> None:
        self._head = bytes.fromhex(head_id)[:HEAD_BYTES]
        self._invites: dict[str, _Invite] = {}

    def create(self, now_s: float, uses: int, minutes: float, entropy: bytes) -> Token:
        """A new invitation. `entropy`: ENTROPY_BYTES fresh random bytes.

        Raises UsageError for a number out of range or when too many invitations are open.
        """
        if not 1 <= uses <= MAX_USES:
            raise UsageError(f"a token for {uses} uses isn't possible", f"Give 1 to {MAX_USES} uses")
        if not 0 < minutes <= MAX_MINUTES:
            raise UsageError(f"a token for {minutes:g} minutes isn't possible", f"Give up to {MAX_MINUTES:.0f} minutes")
        if len(entropy) != ENTROPY_BYTES:
            raise ValueError(f"entropy must have {ENTROPY_BYTES} bytes")
        self._make_room(now_s)
        token = Token(self._head, entropy[:INVITE_BYTES], entropy[INVITE_BYTES:])
        self._invites[token.invite.hex()] = _Invite(token.secret, now_s + minutes * 60, uses)
        return token

    def judge(self, invite_id: str, now_s: float) -> str | None:
        """Why this invitation lets nobody in (any more); None when it does."""
        invite = self._invites.get(invite_id)
        if invite is None:
            return "this head doesn't know the token: its agent was restarted since, or the token is of another head"
        if now_s >= invite.ends_s:
            return "the token has expired"
        if invite.wrong >= MAX_WRONG_PROOFS:
            return f"the token was closed after {MAX_WRONG_PROOFS} wrong proofs"
        if invite.uses_left <= 0:
            return "the token is used up"
        return None

    def secret(self, invite_id: str) -> bytes:
        """The secret of an invitation that `judge` passed."""
        return self._invites[invite_id].secret

    def spend(self, invite_id: str, worker_id: str) -> None:
        """One use, by this worker, of an invitation that `judge` passed."""
        invite = self._invites[invite_id]
        invite.uses_left -= 1
        invite.workers.add(worker_id)

    def count_wrong(self, invite_id: str) -> None:
        """One wrong proof. It takes no use, but too many of them close the invitation."""
        self._invites[invite_id].wrong += 1

    def revoke(self, worker_id: str) -> None:
        """Close every invitation that this worker used: who is forgotten must not come back with the old token."""
        for invite in self._invites.values():
            if worker_id in invite.workers:
                invite.uses_left = 0

    def _make_room(self, now_s: float) -> None:
        """Keep ended invitations, for a precise refusal, only as long as there is room."""
        if len(self._invites) < MAX_INVITES:
            return
        ended = next((key for key in self._invites if self.judge(key, now_s)), None)
        if ended is None:
            raise UsageError(f"{MAX_INVITES} tokens are open already", "Use one of them, or wait until one expires")
        del self._invites[ended]


def worker_proof(secret: bytes, head_id: str, worker_id: str, worker_nonce: str, head_nonce: str) -> str:
    """The worker's proof that it knows the secret, hex."""
    return _proof(secret, "daisychain token worker", head_id, worker_id, worker_nonce, head_nonce)


def head_proof(secret: bytes, head_id: str, worker_id: str, worker_nonce: str, head_nonce: str) -> str:
    """The head's proof that it knows the secret, hex; never equal to the worker's."""
    return _proof(secret, "daisychain token head", head_id, worker_id, worker_nonce, head_nonce)


def _proof(secret: bytes, label: str, *fields: str) -> str:
    return hmac.new(secret, packed(label, *fields), hashlib.sha256).hexdigest()


def _same(proof: str, expected: str) -> bool:
    return is_id(proof) and hmac.compare_digest(proof, expected)


class TokenDoor:
    """The head's side, one per connection.

    TokenHello -> TokenChallenge; TokenProof -> Welcome; anything else -> Refused.
    """

    def __init__(self, identity: Identity, name: str, book: InviteBook, nonce: str) -> None:
        """nonce: handshake.fresh_nonce(), never used before."""
        self._identity = identity
        self._name = name
        self._book = book
        self._nonce = nonce
        self._hello: TokenHello | None = None
        self._worker = ""
        self._over = False

    def receive(self, message: AnyMessage, now_s: float) -> Step:
        """The answer to a message of the worker: always exactly one message to send. Never raises."""
        if self._over:
            return deny("this handshake is over", "Connect again")
        step = self._greet(message, now_s) if self._hello is None else self._check(message, self._hello, now_s)
        self._over = step.end is not None
        return step

    def _greet(self, message: AnyMessage, now_s: float) -> Step:
        if not isinstance(message, TokenHello):
            return out_of_turn(message, "TokenHello")
        if not is_id(message.nonce):
            return deny("the nonce isn't 64 hex digits", "Is the other side daisychain?")
        if (reason := self._book.judge(message.invite, now_s)) is not None:
            return deny(reason, _NEW_TOKEN)
        try:
            self._worker = worker_in_hello(message.certificate, message.protocol, self._identity)
        except TrustError as error:
            return deny(error.what, error.remedy)
        self._hello = message
        return Step(send=(TokenChallenge(nonce=self._nonce),))

    def _check(self, message: AnyMessage, hello: TokenHello, now_s: float) -> Step:
        if not isinstance(message, TokenProof):
            return out_of_turn(message, "TokenProof")
        # again: another worker may have used it up since the hello
        if (reason := self._book.judge(hello.invite, now_s)) is not None:
            return deny(reason, _NEW_TOKEN)
        secret = self._book.secret(hello.invite)
        shared = (self._identity.id, self._worker, hello.nonce, self._nonce)
        if not _same(message.mac, worker_proof(secret, *shared)):
            self._book.count_wrong(hello.invite)
            return deny("the token is wrong", _COPY_AGAIN)
        try:
            signed = self._identity.sign(hello.certificate)
        except TrustError as error:
            return deny(error.what, error.remedy)
        self._book.spend(hello.invite, self._worker)
        welcome = Welcome(certificate=signed, head=self._name, mac=head_proof(secret, *shared))
        return Step(send=(welcome,), end=Admitted(id=self._worker, name=shown_name(hello.name, self._worker)))


class TokenKnock:
    """The worker's side: start() -> TokenHello, TokenChallenge -> TokenProof, Welcome -> Joined. One per connection."""

    def __init__(self, identity: Identity, name: str, token: Token, head_certificate: str, nonce: str) -> None:
        """head_certificate: PEM that the server showed in TLS. nonce: handshake.fresh_nonce(), never used before."""
        self._identity = identity
        self._name = name
        self._token = token
        self._head_certificate = head_certificate
        self._nonce = nonce
        self._shared: tuple[str, str, str, str] | None = None
        self._state = "new"

    def start(self) -> Step:
        """The hello; nothing is sent to a head that the token doesn't name."""
        return self._advance("challenge", self._hello())

    def receive(self, message: AnyMessage) -> Step:
        """The answer to a message of the head. Never raises."""
        if self._state in ("new", "over"):
            return deny("this handshake is not under way", "Connect again")
        if isinstance(message, Refused):
            return self._advance("over", denied_by_peer(message))
        if self._state == "challenge":
            return self._advance("welcome", self._prove(message))
        return self._advance("over", self._enter(message))

    def _advance(self, state: str, step: Step) -> Step:
        self._state = "over" if step.end is not None else state
        return step

    def _hello(self) -> Step:
        try:
            ours = self._token.is_for(id_of(self._head_certificate))
        except TrustError as error:
            return Step(end=deny(error.what, error.remedy).end)
        if not ours:
            return Step(
                end=deny(
                    "the machine at this address is not the head that made the token",
                    "Check the address; the token and the address come from the same head",
                ).end
            )
        return Step(
            send=(
                TokenHello(
                    name=self._name,
                    certificate=self._identity.certificate_pem,
                    invite=self._token.invite.hex(),
                    nonce=self._nonce,
                ),
            )
        )

    def _prove(self, message: AnyMessage) -> Step:
        if not isinstance(message, TokenChallenge):
            return out_of_turn(message, "TokenChallenge")
        if not is_id(message.nonce):
            return deny("the nonce isn't 64 hex digits", "Is the other side daisychain?")
        self._shared = (id_of(self._head_certificate), self._identity.id, self._nonce, message.nonce)
        return Step(send=(TokenProof(mac=worker_proof(self._token.secret, *self._shared)),))

    def _enter(self, message: AnyMessage) -> Step:
        if not isinstance(message, Welcome) or self._shared is None:
            return out_of_turn(message, "Welcome")
        if not _same(message.mac, head_proof(self._token.secret, *self._shared)):
            return deny("the head doesn't know the token's secret", _NEW_TOKEN)
        return joined_by(message, self._identity, self._head_certificate)
