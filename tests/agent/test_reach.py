"""Paths between nodes, over loopback: a word, enough bytes both ways, and a reason when it doesn't work."""

import asyncio
import socket

import pytest

from daisychain.agent import reach
from daisychain.agent.reach import NO_ANSWER, REFUSED, STUCK, WRONG, Ear, try_path

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
