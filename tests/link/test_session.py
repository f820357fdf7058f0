"""Sessions over real loopback TLS between two identities."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from daisychain.errors import (
    DaisyError,
    DataError,
    LinkError,
    NoNodeError,
    PreflightError,
    ScriptError,
    TrustError,
    UsageError,
)
from daisychain.facts import Verdict
from daisychain.link import session as session_module
from daisychain.link.client import dial
from daisychain.link.messages import (
    MAX_FRAME_BYTES,
    AnyMessage,
    Done,
    FetchBlob,
    Heartbeat,
    Look,
    Ping,
    Pong,
    RankReport,
    Refused,
)
from daisychain.link.server import listen
from daisychain.link.session import Session, error_of, refusal
from daisychain.trust.identity import Identity
from daisychain.trust.tls import client_context, server_context

Handler = Callable[[Session, AnyMessage, int], Awaitable[AnyMessage | None]]
PONG = Pong(pid=1, version="1", role="head")


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    return Identity.load_or_create(folder / "a", "head"), Identity.load_or_create(folder / "b", "worker")


class Ends:
    """Both ends of one connection; what each is asked goes to `server` and `client`."""

    def __init__(self) -> None:
        self.server: Handler = self.nothing
        self.client: Handler = self.nothing
        self.notices: list[AnyMessage] = []
        self.at_server: Session
        self.at_client: Session
        self.accepted = asyncio.Event()
        self.socket: Any = None

    async def nothing(self, session: Session, message: AnyMessage, number: int) -> AnyMessage | None:
        self.notices.append(message)
        return None


@pytest.fixture
async def ends(identities: tuple[Identity, Identity]) -> AsyncIterator[Ends]:
    head, worker = identities
    both = Ends()

    async def accept(socket: ServerConnection, _: ssl.SSLObject) -> None:
        both.at_server = Session(socket, "worker", lambda *words: both.server(*words))
        both.accepted.set()
        await both.at_server.run()

    (server,) = await listen(["127.0.0.1"], 0, server_context(head), accept)
    port = next(iter(server.sockets)).getsockname()[1]
    socket, server_id, _ = await dial("127.0.0.1", port, client_context(worker))
    assert server_id == head.id
    both.socket = socket
    both.at_client = Session(socket, "head", lambda *words: both.client(*words))
    reading = asyncio.create_task(both.at_client.run())
    await asyncio.wait_for(both.accepted.wait(), 5)
    yield both
    await both.at_client.close()
    await asyncio.wait_for(reading, 5)
    server.close()
    await server.wait_closed()


async def test_both_ends_ask_and_answer(ends: Ends) -> None:
    async def answer(session: Session, message: AnyMessage, number: int) -> AnyMessage:
        assert isinstance(message, Ping)
        assert number > 0
        return PONG

    ends.server = ends.client = answer
    assert await ends.at_client.ask(Ping(), 5) == PONG
    assert await ends.at_server.ask(Ping(), 5) == PONG
    assert (ends.at_client.address, ends.at_server.address) == ("127.0.0.1", "127.0.0.1")


async def test_answers_find_their_requests_in_any_order(ends: Ends) -> None:
    gate = asyncio.Event()

    async def answer(session: Session, message: AnyMessage, number: int) -> AnyMessage | None:
        if isinstance(message, Ping):
            await gate.wait()
            return PONG
        gate.set()
        return None

    ends.server = answer
    pong, done = await asyncio.gather(ends.at_client.ask(Ping(), 5), ends.at_client.ask(Look(), 5))
    assert (pong, done) == (PONG, Done())


async def test_a_notice_is_handled_and_not_answered(ends: Ends) -> None:
    await ends.at_client.notify(Heartbeat())
    await ends.at_client.ask(Ping(), 5)
    assert ends.notices == [Heartbeat(), Ping()]


@pytest.mark.parametrize("kind", [DaisyError, UsageError, NoNodeError, TrustError, ScriptError])
async def test_a_refusal_is_the_error_it_was(ends: Ends, kind: type[DaisyError]) -> None:
    async def refuse(*_: object) -> AnyMessage:
        raise kind("old: it can't", "Try this")

    ends.server = refuse
    with pytest.raises(DaisyError) as caught:
        await ends.at_client.ask(Ping(), 5)
    assert type(caught.value) is kind
    assert (caught.value.what, caught.value.remedy) == ("old: it can't", "Try this")


VERDICT = Verdict(level="refuse", check="torch", reason="torch is not installed", remedy="Install it", node="old")


@pytest.mark.parametrize(
    "error",
    [DataError("x.csv: no such file", "Look"), LinkError("gone"), DaisyError("x"), PreflightError([VERDICT])],
)
def test_an_error_that_crosses_the_link_keeps_its_words_and_exit_code(error: DaisyError) -> None:
    there = error_of(refusal(error))
    assert str(there) == str(error)
    assert there.exit_code == error.exit_code
    assert getattr(there, "verdicts", ()) == getattr(error, "verdicts", ())


def test_a_refusal_with_a_strange_exit_code_is_still_an_error() -> None:
    assert type(error_of(Refused(reason="x", exit=-7))) is DaisyError


async def test_a_mistake_in_a_handler_is_an_answer_and_a_log_line(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: object) -> AnyMessage:
        raise ZeroDivisionError("ours")

    ends.server = broken
    with caplog.at_level(logging.ERROR), pytest.raises(DaisyError, match="Ping failed inside the agent"):
        await ends.at_client.ask(Ping(), 5)
    assert "ZeroDivisionError" in caplog.text
    ends.server = ends.nothing
    assert await ends.at_client.ask(Ping(), 5) == Done()


@pytest.mark.parametrize(
    "frame",
    [
        '{"m": {"type": "Exec"}}', '{"m": {"type": "Ping", "x": 1}}', "hello", "", "[]",
        '{"m": {"type": "RankReport", "run": "r", "generation": 1, "rank": 0, "report": {"x": '
        + "[" * 100_000 + "]" * 100_000 + "}}}",
    ],
    ids=["type", "field", "text", "empty", "list", "deep"],
)  # fmt: skip
async def test_a_frame_of_another_protocol_closes_the_connection(ends: Ends, frame: str) -> None:
    await ends.socket.send(frame)
    await asyncio.wait_for(ends.at_server.closed.wait(), 5)
    await asyncio.wait_for(ends.at_client.closed.wait(), 5)
    assert ends.socket.close_code == 1008


async def test_an_oversized_frame_closes_the_connection(ends: Ends) -> None:
    await ends.socket.send("x" * (MAX_FRAME_BYTES + 1))
    await asyncio.wait_for(ends.at_server.closed.wait(), 5)
    assert not ends.notices


async def test_an_answer_that_nobody_waits_for_is_passed_over(ends: Ends) -> None:
    await ends.socket.send('{"m": {"type": "Done"}, "re": 99}')
    await ends.socket.send(b"\0\0\0\0\0\0\0\x63content")
    await ends.socket.send(b"")
    assert await ends.at_client.ask(Ping(), 5) == Done()


async def test_too_many_requests_at_once_are_refused(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_WAITING", 4)
    gate = asyncio.Event()

    async def slow(*_: object) -> AnyMessage:
        await gate.wait()
        return PONG

    ends.server = slow
    asked = [asyncio.ensure_future(ends.at_client.ask(Ping(), 5)) for _ in range(6)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
    assert all("too many requests" in str(one.exception()) for one in done)
    gate.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[:4] == [PONG] * 4
    assert all(isinstance(answer, DaisyError) for answer in answers[4:])
    assert await ends.at_client.ask(Ping(), 5) == PONG


async def test_no_answer_in_time_is_an_error_and_a_late_one_does_no_harm(ends: Ends) -> None:
    gate = asyncio.Event()

    async def slow(*_: object) -> None:
        await gate.wait()

    ends.server = slow
    with pytest.raises(LinkError, match=r"127\.0\.0\.1 did not answer"):
        await ends.at_client.ask(Ping(), 0.05)
    gate.set()
    assert await ends.at_client.ask(Ping(), 5) == Done()


# --- content --------------------------------------------------------------------------------------------------


def serving(content: bytes, size: int = 1000) -> Handler:
    async def serve(session: Session, message: AnyMessage, number: int) -> None:
        assert isinstance(message, FetchBlob)
        for at in range(message.offset, len(content), size):
            await session.send_chunk(number, content[at : at + size])

    return serve


async def test_content_arrives_whole_in_order_and_from_an_offset(ends: Ends) -> None:
    content = bytes(range(256)) * 40
    ends.server = serving(content)
    got = bytearray()
    await ends.at_client.fetch(FetchBlob(run="r", sha256="a", offset=240), got.extend, 5)
    assert got == content[240:]


async def test_two_fetches_at_once_are_not_mixed(ends: Ends) -> None:
    async def serve(session: Session, message: AnyMessage, number: int) -> None:
        assert isinstance(message, FetchBlob)
        for _ in range(50):
            await session.send_chunk(number, message.sha256.encode())
            await asyncio.sleep(0)

    ends.server = serve
    one, two = bytearray(), bytearray()
    await asyncio.gather(
        ends.at_client.fetch(FetchBlob(run="r", sha256="a", offset=0), one.extend, 5),
        ends.at_client.fetch(FetchBlob(run="r", sha256="b", offset=0), two.extend, 5),
    )
    assert one == b"a" * 50
    assert two == b"b" * 50


async def test_a_refused_fetch_is_the_error(ends: Ends) -> None:
    async def refuse(*_: object) -> AnyMessage:
        raise DataError("run r has no file a", "Launch again")

    ends.server = refuse
    with pytest.raises(UsageError, match="run r has no file a"):
        await ends.at_client.fetch(FetchBlob(run="r", sha256="a", offset=0), bytearray().extend, 5)


async def test_a_full_disk_while_fetching_is_raised_once_and_the_link_stays(ends: Ends) -> None:
    ends.server = serving(b"x" * 10_000)
    calls = []

    def full(piece: bytes) -> None:
        calls.append(piece)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await ends.at_client.fetch(FetchBlob(run="r", sha256="a", offset=0), full, 5)
    assert len(calls) == 1
    ends.server = ends.nothing
    assert await ends.at_client.ask(Ping(), 5) == Done()


# --- the end --------------------------------------------------------------------------------------------------


async def test_a_lost_connection_fails_what_waits_and_what_is_sent_later(ends: Ends) -> None:
    came = asyncio.Event()

    async def never(*_: object) -> None:
        came.set()
        await asyncio.sleep(60)

    ends.server = never
    asked = [asyncio.ensure_future(ends.at_client.ask(Ping(), 30)) for _ in range(3)]
    await asyncio.wait_for(came.wait(), 5)
    ends.at_server._socket.transport.abort()
    for one in asked:
        with pytest.raises(LinkError, match=r"the connection to 127\.0\.0\.1 was lost"):
            await asyncio.wait_for(one, 5)
    assert ends.at_client.closed.is_set()
    with pytest.raises(LinkError, match="is closed"):
        await ends.at_client.ask(Ping(), 5)
    with pytest.raises(LinkError, match="is closed"):
        await ends.at_client.notify(RankReport(run="r", seat=0, report={}))


async def test_a_lost_connection_ends_what_was_in_work_for_it(ends: Ends) -> None:
    came, ended = asyncio.Event(), asyncio.Event()

    async def never(*_: object) -> None:
        came.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    ends.server = never
    asked = asyncio.ensure_future(ends.at_client.ask(Ping(), 30))
    await asyncio.wait_for(came.wait(), 5)
    await ends.at_client.close()
    await asyncio.wait_for(ended.wait(), 5)
    with pytest.raises(LinkError):
        await asked


async def test_what_is_heard_is_noticed(ends: Ends) -> None:
    before = ends.at_server.heard_at
    await asyncio.sleep(0.01)
    await ends.at_client.ask(Ping(), 5)
    assert ends.at_server.heard_at > before


# --- the listening and the dialling end ---------------------------------------------------------------------------


async def test_a_taken_port_is_said(identities: tuple[Identity, Identity]) -> None:
    async def accept(*_: object) -> None: ...

    context = server_context(identities[0])
    (first,) = await listen(["127.0.0.1"], 0, context, accept)
    port = next(iter(first.sockets)).getsockname()[1]
    with pytest.raises(DaisyError, match=rf"can't listen on 127\.0\.0\.1:{port}") as caught:
        await listen(["127.0.0.1"], port, context, accept)
    assert "--port" in caught.value.remedy
    first.close()
    await first.wait_closed()


async def test_nobody_there_is_said_with_host_and_port(identities: tuple[Identity, Identity]) -> None:
    with pytest.raises(LinkError, match=r"can't reach 127\.0\.0\.1:1: ") as caught:
        await dial("127.0.0.1", 1, client_context(identities[0]))
    assert caught.value.remedy


async def test_another_node_at_a_known_address_is_refused(
    identities: tuple[Identity, Identity], tmp_path: Path
) -> None:
    head, worker = identities
    impostor = Identity.load_or_create(tmp_path / "impostor", "head")

    async def accept(socket: ServerConnection, _: ssl.SSLObject) -> None: ...

    (server,) = await listen(["127.0.0.1"], 0, server_context(impostor), accept)
    port = next(iter(server.sockets)).getsockname()[1]
    with pytest.raises(LinkError, match="is not the node it was before"):
        await dial("127.0.0.1", port, client_context(worker, head.certificate_pem))
    server.close()
    await server.wait_closed()


async def test_who_is_no_daisychain_is_said(identities: tuple[Identity, Identity]) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LinkError, match=rf"can't reach 127\.0\.0\.1:{port}"):
        await dial("127.0.0.1", port, client_context(identities[0]))
    server.close()
    await server.wait_closed()
