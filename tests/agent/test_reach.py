"""Paths between nodes, over loopback: a word, enough bytes both ways, and a reason when it doesn't work."""

import asyncio
import socket
import time

import pytest

from daisychain.agent import reach
from daisychain.agent.reach import NO_ANSWER, PING, REFUSED, STUCK, WRONG, Ear, Flow, send_flow, try_path

HERE = "127.0.0.1"


async def test_an_open_path() -> None:
    ear = Ear("run-1")
    port = await ear.open(HERE)
    try:
        assert await asyncio.gather(*(try_path(HERE, port, "run-1") for _ in range(4))) == ["", "", "", ""]
    finally:
        ear.close()


async def test_an_ear_of_another_run_is_something_else() -> None:
    ear = Ear("run-1")
    port = await ear.open(HERE)
    try:
        assert await try_path(HERE, port, "run-2") == WRONG
    finally:
        ear.close()


async def test_a_closed_ear_refuses() -> None:
    ear = Ear("run-1")
    port = await ear.open(HERE)
    ear.close()
    assert await try_path(HERE, port, "run-1") == REFUSED


async def test_an_ear_closes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "OPEN_S", 0.05)
    port = await Ear("run-1").open(HERE)
    await asyncio.sleep(0.2)
    assert await try_path(HERE, port, "run-1") == REFUSED


async def test_nobody_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "CONNECT_S", 0.2)
    monkeypatch.setattr(reach, "EXCHANGE_S", 0.2)
    with socket.create_server((HERE, 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        # connections that fill the queue; one more is left without an answer, as behind a firewall that drops
        with socket.create_connection((HERE, port)):
            assert await try_path(HERE, port, "run-1") in (NO_ANSWER, STUCK)


async def test_large_packets_that_get_lost_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "EXCHANGE_S", 0.2)

    over = asyncio.Event()

    async def hole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hole, HERE, 0)
    try:
        assert await try_path(HERE, server.sockets[0].getsockname()[1], "run-1") == STUCK
    finally:
        over.set()
        server.close()
        await asyncio.sleep(0.05)


async def test_an_ear_that_waits_in_vain_for_large_packets_hangs_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(deaf, HERE, 0)
    try:
        assert await try_path(HERE, server.sockets[0].getsockname()[1], "run-1") == STUCK
    finally:
        server.close()
        await asyncio.sleep(0.05)


async def test_a_stranger_with_a_long_word_is_ignored() -> None:
    ear = Ear("run-1")
    port = await ear.open(HERE)
    try:
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"x" * 200_000)
        assert await asyncio.wait_for(reader.read(10), 3) == b""
        writer.close()
        assert await try_path(HERE, port, "run-1") == ""
    except ConnectionError:
        pass  # the other end may reset what it hasn't read
    finally:
        ear.close()


async def test_what_flows_is_counted_while_all_send() -> None:
    ears = [Ear("run-1") for _ in range(3)]
    ports = [await ear.open(HERE) for ear in ears]
    begun_s = time.perf_counter()
    try:
        flows = await asyncio.gather(*(send_flow(HERE, port, "run-1") for port in ports))
    finally:
        for ear in ears:
            ear.close()
    assert time.perf_counter() - begun_s < 3
    for flow in flows:
        assert flow.bytes_per_s is not None
        assert 1e6 < flow.bytes_per_s < 1e11
        assert flow.latency_s is not None
        assert 0 < flow.latency_s < 0.1


async def test_the_rate_is_that_of_the_slow_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PIECE", bytes(20_000))
    ear, read = Ear("run-1"), asyncio.StreamReader.read

    async def slowly(reader: asyncio.StreamReader, n: int = -1) -> bytes:
        await asyncio.sleep(0.01)
        return await read(reader, n)

    monkeypatch.setattr(asyncio.StreamReader, "read", slowly)
    port = await ear.open(HERE)
    try:
        flow = await send_flow(HERE, port, "run-1")
    finally:
        ear.close()
    assert flow.bytes_per_s is not None
    assert 0.3e6 < flow.bytes_per_s < 2.2e6  # 2 MB/s less what the sleeps take longer


async def test_what_can_not_be_measured_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "FLOW_LIMIT_S", 0.5)
    ear = Ear("run-1")
    port = await ear.open(HERE)
    assert await send_flow(HERE, port, "run-2") == Flow(), "another run"
    ear.close()
    assert await send_flow(HERE, port, "run-1") == Flow(), "closed"
    with socket.create_server((HERE, 0)) as deaf:
        assert await send_flow(HERE, deaf.getsockname()[1], "run-1") == Flow(), "no answer"


@pytest.mark.parametrize("answer", [b"nan\n", b"inf\n", b"-5\n", b"many\n", b"1e30\n", b""])
async def test_a_rate_that_is_none_is_unknown(answer: bytes) -> None:
    async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        while await reader.readline() == PING:
            writer.write(PING)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(liar, HERE, 0)
    try:
        flow = await send_flow(HERE, server.sockets[0].getsockname()[1], "run-1")
    finally:
        server.close()
    assert flow.bytes_per_s is None
