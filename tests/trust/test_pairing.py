"""Six digits: equal without a man in the middle, different with one; every other order refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.link.messages import (
    AnyMessage,
    Done,
    PairConfirm,
    PairHello,
    PairNonce,
    PairReveal,
    Ping,
    Refused,
    TokenHello,
    Welcome,
)
from daisychain.trust.handshake import Admitted, Denied, Joined, Step, fresh_nonce
from daisychain.trust.identity import Identity
from daisychain.trust.pairing import HandshakeLimit, PairingHead, PairingWorker, commitment, digits


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("nodes")
    return {name: Identity.load_or_create(folder / name, name) for name in ("head", "worker", "middle")}


def at_work(nodes: dict[str, Identity], worker: str = "worker", head: str = "head") -> PairingWorker:
    return PairingWorker(nodes[worker], "old laptop", nodes[head].certificate_pem, fresh_nonce(), "i5-3320M, 8 GB")


def at_head(nodes: dict[str, Identity], head: str = "head") -> PairingHead:
    return PairingHead(nodes[head], "big", fresh_nonce())


def exchange(worker: PairingWorker, head: PairingHead) -> list[AnyMessage]:
    """Carry messages until both know the digits."""
    (hello,) = worker.start().send
    (nonce,) = head.receive(hello).send
    (reveal,) = worker.receive(nonce).send
    assert head.receive(reveal) == Step()
    return [hello, nonce, reveal]


def reason(step: Step) -> str:
    assert isinstance(step.end, Denied)
    return step.end.reason


def refused(step: Step) -> str:
    """The reason, when the peer is told too."""
    (message,) = step.send
    assert isinstance(message, Refused)
    assert message.exit == 5
    assert message.reason == reason(step)
    return message.reason


def test_both_see_the_same_digits_and_both_must_say_yes(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    assert head.request("10.0.0.2") is None
    exchange(worker, head)
    assert worker.digits == head.digits
    assert len(worker.digits) == 6
    assert worker.digits.isdigit()
    assert worker.head_name == "big"
    waiting = head.request("10.0.0.2")
    assert waiting is not None
    assert (waiting.id, waiting.name, waiting.digits) == (nodes["worker"].id, "old laptop", worker.digits)
    assert (waiting.confirmed, waiting.device) == (False, "i5-3320M, 8 GB")

    (confirm,) = worker.confirm().send
    assert head.receive(confirm) == Step()
    assert head.confirmed
    step = head.accept()
    assert step.end == Admitted(id=nodes["worker"].id, name="old laptop")
    end = worker.receive(step.send[0]).end
    assert isinstance(end, Joined)
    nodes["worker"].check_signed(nodes["head"].certificate_pem, end.signed)
    assert head.request("10.0.0.2") is None


def test_the_heads_user_may_be_faster(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    exchange(worker, head)
    assert head.accept() == Step()
    step = head.receive(worker.confirm().send[0])
    assert isinstance(step.end, Admitted)
    assert isinstance(worker.receive(step.send[0]).end, Joined)


def test_who_sits_between_shows_different_digits(nodes: dict[str, Identity]) -> None:
    worker, towards_worker = at_work(nodes, head="middle"), at_head(nodes, "middle")
    towards_head, head = at_work(nodes, worker="middle"), at_head(nodes)
    exchange(worker, towards_worker)
    exchange(towards_head, head)
    assert worker.digits == towards_worker.digits
    assert towards_head.digits == head.digits
    # chance makes them equal once in a million; the nonces are random, so try twice
    if worker.digits == head.digits:
        towards_head, head = at_work(nodes, worker="middle"), at_head(nodes)
        exchange(towards_head, head)
    assert worker.digits != head.digits


def test_relayed_messages_show_different_digits(nodes: dict[str, Identity]) -> None:
    """The middle passes everything on, with its own certificate towards the worker."""
    differing = 0
    for _ in range(2):
        worker, head = at_work(nodes, head="middle"), at_head(nodes)
        exchange(worker, head)
        differing += worker.digits != head.digits
    assert differing


def test_digits_depend_on_everything_and_keep_their_zeros() -> None:
    fields = ["a" * 64, "b" * 64, "c" * 64, "d" * 64]
    seen = {digits(*fields)}
    for position in range(4):
        changed = [*fields]
        changed[position] = "e" * 64
        seen.add(digits(*changed))
    assert len(seen) == 5
    many = [digits(f"{number:064x}", *fields[1:]) for number in range(200)]
    assert all(len(text) == 6 and text.isdigit() for text in many)
    assert any(text.startswith("0") for text in many)


def test_another_nonce_than_the_committed_one_is_refused(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    head.receive(worker.start().send[0])
    assert "committed" in refused(head.receive(PairReveal(nonce="0" * 64)))
    assert head.digits == ""


def test_a_commitment_of_another_worker_is_refused(nodes: dict[str, Identity]) -> None:
    """Copying somebody's commitment and later its nonce doesn't work under another id."""
    nonce = fresh_nonce()
    head = at_head(nodes)
    copied = commitment(nonce, nodes["worker"].id)
    head.receive(PairHello(name="m", certificate=nodes["middle"].certificate_pem, commitment=copied))
    assert "committed" in refused(head.receive(PairReveal(nonce=nonce)))


def test_a_recorded_handshake_is_refused(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    said = exchange(worker, head)
    again = at_head(nodes)
    again.receive(said[0])
    again.receive(said[2])
    assert again.digits != head.digits or again._nonce != head._nonce
    # in the same handshake nothing may come twice
    for message in (said[0], said[2]):
        worker, head = at_work(nodes), at_head(nodes)
        exchange(worker, head)
        refused(head.receive(message))


def test_a_head_that_welcomes_before_the_user_said_yes_is_not_believed(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    exchange(worker, head)
    signed = nodes["head"].sign(nodes["worker"].certificate_pem)
    refused(worker.receive(Welcome(certificate=signed, head="big")))
    refused(worker.confirm())


def test_a_second_confirmation_says_nothing_twice(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    exchange(worker, head)
    worker.confirm()
    assert worker.confirm() == Step()


def test_a_welcome_for_another_node_is_refused(nodes: dict[str, Identity]) -> None:
    for signed in (
        nodes["head"].sign(nodes["middle"].certificate_pem),
        nodes["middle"].sign(nodes["worker"].certificate_pem),
    ):
        worker, head = at_work(nodes), at_head(nodes)
        exchange(worker, head)
        worker.confirm()
        assert "something else" in refused(worker.receive(Welcome(certificate=signed, head="big")))


def test_declining_tells_the_worker(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    exchange(worker, head)
    step = head.decline()
    assert "declined" in refused(step)
    assert "declined" in reason(worker.receive(step.send[0]))
    assert head.decline() == Step()
    refused(head.accept())


def test_accepting_before_there_are_digits_is_refused(nodes: dict[str, Identity]) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    head.receive(worker.start().send[0])
    refused(head.accept())


def test_a_node_cannot_pair_with_itself(nodes: dict[str, Identity]) -> None:
    assert "itself" in refused(at_head(nodes).receive(at_work(nodes, worker="head").start().send[0]))


def test_hostile_texts_are_not_shown(nodes: dict[str, Identity]) -> None:
    hello = PairHello(
        name="\x1b[2J", certificate=nodes["worker"].certificate_pem, commitment="0" * 64, device="[red]" + "x" * 999
    )
    head = at_head(nodes)
    head.receive(hello)
    assert (head.worker_name, head.device) == (f"node {nodes['worker'].id[:8]}", "")
    worker = at_work(nodes)
    worker.start()
    end = worker.receive(Refused(reason="[b]\x1b[2J" + "x" * 999)).end
    assert isinstance(end, Denied)
    assert not set("[]\x1b") & set(end.reason)
    assert len(end.reason) <= 300


WORDS = st.text(max_size=80) | st.sampled_from(["0" * 64, "a" * 64])
MESSAGES = st.one_of(
    st.builds(PairHello, name=WORDS, certificate=WORDS, commitment=WORDS, device=WORDS, protocol=st.integers(0, 2)),
    st.builds(PairNonce, nonce=WORDS, head=WORDS),
    st.builds(PairReveal, nonce=WORDS),
    st.builds(Welcome, certificate=WORDS, head=WORDS),
    st.builds(Refused, reason=WORDS, remedy=WORDS),
    st.builds(TokenHello, name=WORDS, certificate=WORDS, invite=WORDS, nonce=WORDS),
    st.sampled_from([Done(), Ping(), PairConfirm()]),
)


@given(st.lists(MESSAGES, max_size=6), st.integers(0, 3))
def test_no_message_in_any_order_raises_or_gets_in(
    nodes: dict[str, Identity], messages: list[AnyMessage], progress: int
) -> None:
    worker, head = at_work(nodes), at_head(nodes)
    if progress == 1:
        head.receive(worker.start().send[0])
    elif progress > 1:
        exchange(worker, head)
    if progress == 3:
        head.accept()
        worker.confirm()
    for message in messages:
        got_in = isinstance(head.receive(message).end, Admitted)
        # with the head's yes, the worker's own confirmation is the one message that may let it in
        assert not got_in or (progress == 3 and message == PairConfirm())
        assert not isinstance(worker.receive(message).end, Joined)


# --- the limit ------------------------------------------------------------------------------------


def test_five_in_ten_minutes_then_wait() -> None:
    limit = HandshakeLimit()
    assert [limit.refusal("a", now) for now in (0, 1, 2, 3, 4)] == [None] * 5
    assert "in 595 s" in str(limit.refusal("a", 5))
    assert limit.refusal("b", 5) is None
    # refused tries don't prolong the wait; the window slides
    assert limit.refusal("a", 599.9) is not None
    assert limit.refusal("a", 600) is None
    assert limit.refusal("a", 600.5) is not None
    assert limit.refusal("a", 601) is None


def test_memory_is_bounded_and_nobody_loses_its_count_to_a_crowd() -> None:
    limit = HandshakeLimit(keys=10)
    for _ in range(5):
        limit.refusal("guesser", 0)
    crowd = [limit.refusal(f"k{number}", 1) for number in range(100)]
    assert crowd[:9] == [None] * 9
    assert all("too many" in str(reason) for reason in crowd[9:])
    assert limit.refusal("guesser", 2) is not None
    assert len(limit._times) == 10
    assert limit.refusal("late", 700) is None
    assert len(limit._times) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 400)), max_size=60))
def test_never_more_than_five_in_any_window(tries: list[tuple[str, float]]) -> None:
    limit, now, allowed = HandshakeLimit(), 0.0, []
    for key, later in tries:
        now += later
        if limit.refusal(key, now) is None:
            allowed.append((key, now))
    for key, start in allowed:
        assert sum(other == key and start <= at < start + 600 for other, at in allowed) <= 5
