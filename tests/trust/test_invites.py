"""Tokens, the book of invitations, and both sides of the handshake."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.errors import TrustError, UsageError
from daisychain.link.messages import (
    AnyMessage,
    Done,
    PairConfirm,
    PairHello,
    Ping,
    Refused,
    TokenChallenge,
    TokenHello,
    TokenProof,
    Welcome,
)
from daisychain.trust.handshake import Admitted, Denied, Joined, Step, fresh_nonce
from daisychain.trust.identity import Identity
from daisychain.trust.invites import (
    ENTROPY_BYTES,
    MAX_INVITES,
    MAX_WRONG_PROOFS,
    InviteBook,
    Token,
    TokenDoor,
    TokenKnock,
    head_proof,
    worker_proof,
)

ENTROPY = bytes(range(ENTROPY_BYTES))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("nodes")
    return {name: Identity.load_or_create(folder / name, name) for name in ("head", "worker", "other")}


def door(nodes: dict[str, Identity], book: InviteBook) -> TokenDoor:
    return TokenDoor(nodes["head"], "big", book, fresh_nonce())


def knock(nodes: dict[str, Identity], token: Token, who: str = "worker", head: str = "head") -> TokenKnock:
    return TokenKnock(nodes[who], "old laptop", token, nodes[head].certificate_pem, fresh_nonce())


def talk(knocking: TokenKnock, opening: TokenDoor, now_s: float = 0.0) -> tuple[Step, Step, list[AnyMessage]]:
    """Carry messages both ways until both sides are done; the last step of each, and all that was said."""
    mine, theirs, said = knocking.start(), Step(), []
    for _ in range(10):
        if not mine.send:
            break
        (message,) = mine.send
        theirs = opening.receive(message, now_s)
        (answer,) = theirs.send
        said += [message, answer]
        mine = knocking.receive(answer)
    return mine, theirs, said


def reason(step: Step) -> str:
    assert isinstance(step.end, Denied)
    return step.end.reason


# --- the token ------------------------------------------------------------------------------------


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=6, max_size=6), st.binary(min_size=16, max_size=16))
def test_a_token_is_what_was_written(head: bytes, invite: bytes, secret: bytes) -> None:
    token = Token(head, invite, secret)
    assert Token.parse(token.text) == token
    assert set(token.text) <= set(LETTERS + "-")


def test_a_token_survives_how_people_copy_it(nodes: dict[str, Identity]) -> None:
    token = InviteBook(nodes["head"].id).create(0, 1, 60, ENTROPY)
    for text in (token.text.lower(), token.text.replace("-", ""), f"  {token.text.replace('-', ' - ')}\n"):
        assert Token.parse(text) == token
    assert Token.parse(token.text.replace("O", "0").replace("I", "1").replace("B", "8")) == token


@given(st.integers(0, 63), st.integers(1, 31))
def test_one_wrong_letter_is_a_typo(position: int, shift: int) -> None:
    text = Token(bytes(16), bytes(6), bytes(16)).text.replace("-", "")
    wrong = LETTERS[(LETTERS.index(text[position]) + shift) % 32]
    with pytest.raises(TrustError, match="typo"):
        Token.parse(text[:position] + wrong + text[position + 1 :])


@given(st.text())
def test_any_other_text_is_a_trust_error(text: str) -> None:
    with pytest.raises(TrustError) as caught:
        Token.parse(text)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text", ["A" * 63, "A" * 65, "A" * 63 + "9", "A" * 63 + "=", "Ä" * 64, "\ud800" * 64, "ß" * 32]
)
def test_texts_near_a_token_are_trust_errors(text: str) -> None:
    with pytest.raises(TrustError):
        Token.parse(text)


def test_the_secret_is_not_in_the_repr() -> None:
    assert "secret" not in repr(Token(bytes(16), bytes(6), b"hush-hush-hush-h"))


# --- the book -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now_s", "spent", "wrong", "expected"),
    [
        (0.0, 0, 0, None),
        (59.9, 1, 9, None),
        (60.0, 0, 0, "expired"),
        (0.0, 2, 0, "used up"),
        (0.0, 0, MAX_WRONG_PROOFS, "closed"),
    ],
)
def test_why_an_invitation_ends(now_s: float, spent: int, wrong: int, expected: str | None) -> None:
    book = InviteBook("ab" * 32)
    invite = book.create(0.0, 2, 1.0, ENTROPY).invite.hex()
    for number in range(spent):
        book.spend(invite, f"worker {number}")
    for _ in range(wrong):
        book.count_wrong(invite)
    got = book.judge(invite, now_s)
    assert got is None if expected is None else expected in str(got)


def test_an_unknown_invitation_is_told_so() -> None:
    assert "doesn't know" in str(InviteBook("ab" * 32).judge("nonsense", 0.0))


@pytest.mark.parametrize(
    ("uses", "minutes"), [(0, 1), (-1, 1), (10**6, 1), (1, 0), (1, -5), (1, float("nan")), (1, 1e9)]
)
def test_numbers_out_of_range_are_usage_errors(uses: int, minutes: float) -> None:
    with pytest.raises(UsageError):
        InviteBook("ab" * 32).create(0.0, uses, minutes, ENTROPY)


def test_the_book_is_bounded_and_drops_ended_invitations_first() -> None:
    book, rng = InviteBook("ab" * 32), random.Random(0)
    early = book.create(0.0, 1, 1, rng.randbytes(ENTROPY_BYTES)).invite.hex()
    kept = [book.create(0.0, 1, 60, rng.randbytes(ENTROPY_BYTES)).invite.hex() for _ in range(MAX_INVITES - 1)]
    with pytest.raises(UsageError, match="open already"):
        book.create(30.0, 1, 60, rng.randbytes(ENTROPY_BYTES))
    new = book.create(61.0, 1, 60, rng.randbytes(ENTROPY_BYTES)).invite.hex()
    assert all(book.judge(invite, 61.0) is None for invite in [*kept, new])
    assert "doesn't know" in str(book.judge(early, 61.0))


def test_who_is_forgotten_closes_the_token_it_came_with() -> None:
    book = InviteBook("ab" * 32)
    used = book.create(0.0, 5, 60, ENTROPY).invite.hex()
    other = book.create(0.0, 5, 60, ENTROPY[::-1]).invite.hex()
    book.spend(used, "w")
    book.revoke("w")
    assert book.judge(used, 0.0) is not None
    assert book.judge(other, 0.0) is None


# --- proofs ---------------------------------------------------------------------------------------


def test_proofs_depend_on_everything_and_on_the_side() -> None:
    fields = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
    proofs = {worker_proof(b"s" * 16, *fields), head_proof(b"s" * 16, *fields), worker_proof(b"t" * 16, *fields)}
    for position in range(4):
        changed = [*fields]
        changed[position] = "e" * 64
        proofs.add(worker_proof(b"s" * 16, *changed))
    # the same letters cut elsewhere
    proofs.add(worker_proof(b"s" * 16, "a" * 63, "a" + "b" * 64, *fields[2:]))
    assert len(proofs) == 8


# --- the handshake --------------------------------------------------------------------------------


def test_a_worker_with_the_token_gets_in(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    mine, theirs, said = talk(knock(nodes, Token.parse(token.text)), door(nodes, book))
    assert theirs.end == Admitted(id=nodes["worker"].id, name="old laptop")
    assert isinstance(mine.end, Joined)
    assert (mine.end.head_id, mine.end.head_name) == (nodes["head"].id, "big")
    nodes["worker"].check_signed(nodes["head"].certificate_pem, mine.end.signed)
    assert [type(message) for message in said] == [TokenHello, TokenChallenge, TokenProof, Welcome]
    assert not any(token.secret.hex() in str(message) for message in said)


def test_a_token_lets_in_as_many_as_it_says(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    first, second = door(nodes, book), door(nodes, book)
    late = knock(nodes, token, "other")
    # both say hello while it is still good
    challenge = second.receive(late.start().send[0], 0.0).send[0]
    talk(knock(nodes, token), first)
    step = second.receive(late.receive(challenge).send[0], 0.0)
    assert "used up" in reason(step)
    assert "used up" in reason(late.receive(step.send[0]))


def test_an_expired_token_lets_nobody_in(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 1.0, ENTROPY)
    assert "expired" in reason(talk(knock(nodes, token), door(nodes, book), now_s=60.0)[0])


def test_nothing_is_said_to_a_head_that_the_token_does_not_name(nodes: dict[str, Identity]) -> None:
    token = InviteBook(nodes["head"].id).create(0.0, 1, 60, ENTROPY)
    step = knock(nodes, token, head="other").start()
    assert step.send == ()
    assert "not the head" in reason(step)


def test_wrong_secrets_take_no_use_but_ten_close_the_invitation(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    guess = Token(token.head, token.invite, b"x" * 16)
    for _ in range(MAX_WRONG_PROOFS - 1):
        assert "wrong" in reason(talk(knock(nodes, guess), door(nodes, book))[0])
    assert book.judge(token.invite.hex(), 0.0) is None
    talk(knock(nodes, guess), door(nodes, book))
    assert "closed" in reason(talk(knock(nodes, token), door(nodes, book))[0])


def test_a_recorded_handshake_opens_no_other_door(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 5, 60, ENTROPY)
    said = talk(knock(nodes, token), door(nodes, book))[2]
    again = door(nodes, book)
    again.receive(said[0], 0.0)
    assert "wrong" in reason(again.receive(said[2], 0.0))


def test_a_door_opens_once(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 5, 60, ENTROPY)
    opened = door(nodes, book)
    said = talk(knock(nodes, token), opened)[2]
    for message in said:
        assert "over" in reason(opened.receive(message, 0.0))


def test_a_head_that_does_not_know_the_secret_is_not_believed(nodes: dict[str, Identity]) -> None:
    """It signs and even reflects the worker's own proof."""
    token = InviteBook(nodes["head"].id).create(0.0, 1, 60, ENTROPY)
    signed = nodes["head"].sign(nodes["worker"].certificate_pem)
    for mac in ("", "0" * 64, "ä", "reflected"):
        knocking = knock(nodes, token)
        knocking.start()
        (proof,) = knocking.receive(TokenChallenge(nonce="0" * 64)).send
        assert isinstance(proof, TokenProof)
        mac = proof.mac if mac == "reflected" else mac
        assert "secret" in reason(knocking.receive(Welcome(certificate=signed, head="big", mac=mac)))


def test_a_node_cannot_join_itself(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    assert "itself" in reason(talk(knock(nodes, token, "head"), door(nodes, book))[0])


def test_another_protocol_is_named(nodes: dict[str, Identity]) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    hello = TokenHello(
        name="w", certificate=nodes["worker"].certificate_pem, invite=token.invite.hex(), nonce="0" * 64, protocol=99
    )
    assert "version 99" in reason(door(nodes, book).receive(hello, 0.0))


@pytest.mark.parametrize("name", ["", " ", "x" * 64, "ä" * 40, "a\x1b[2Jb", "[red]x", "a\nb", "\u202egnp.exe"])
def test_a_name_that_no_screen_should_show_is_replaced(nodes: dict[str, Identity], name: str) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    hostile = TokenKnock(nodes["worker"], name, token, nodes["head"].certificate_pem, fresh_nonce())
    end = talk(hostile, door(nodes, book))[1].end
    assert end == Admitted(id=nodes["worker"].id, name=f"node {nodes['worker'].id[:8]}")


WORDS = st.text(max_size=80) | st.sampled_from(["0" * 64, ENTROPY[:6].hex(), "-----BEGIN CERTIFICATE-----\n"])
MESSAGES = st.one_of(
    st.builds(TokenHello, name=WORDS, certificate=WORDS, invite=WORDS, nonce=WORDS, protocol=st.integers(0, 2)),
    st.builds(TokenChallenge, nonce=WORDS),
    st.builds(TokenProof, mac=WORDS),
    st.builds(Welcome, certificate=WORDS, head=WORDS, mac=WORDS),
    st.builds(Refused, reason=WORDS, remedy=WORDS),
    st.builds(PairHello, name=WORDS, certificate=WORDS, commitment=WORDS),
    st.sampled_from([Done(), Ping(), PairConfirm()]),
)


@given(st.lists(MESSAGES, max_size=5), st.booleans())
def test_no_message_in_any_order_raises_or_gets_in(
    nodes: dict[str, Identity], messages: list[AnyMessage], greeted: bool
) -> None:
    book = InviteBook(nodes["head"].id)
    token = book.create(0.0, 1, 60, ENTROPY)
    opening, knocking = door(nodes, book), knock(nodes, token)
    if greeted:
        opening.receive(knocking.start().send[0], 0.0)
    for message in messages:
        step = opening.receive(message, 0.0)
        assert len(step.send) == 1
        assert not isinstance(step.end, Admitted)
        assert not isinstance(knocking.receive(message).end, Joined)
    assert book.judge(token.invite.hex(), 0.0) is None


def test_a_joined_step_is_what_keep_membership_takes(nodes: dict[str, Identity], tmp_path: Path) -> None:
    worker = Identity.load_or_create(tmp_path, "w")
    book = InviteBook(nodes["head"].id)
    knocking = TokenKnock(worker, "w", book.create(0.0, 1, 60, ENTROPY), nodes["head"].certificate_pem, fresh_nonce())
    end = talk(knocking, door(nodes, book))[0].end
    assert isinstance(end, Joined)
    worker.keep_membership(end.head_id, end.head_name, end.head_certificate, end.signed)
    assert worker.membership(nodes["head"].id) is not None
