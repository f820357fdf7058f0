"""Whether the nodes of a run reach each other, tried before any rank starts: gloo's own way to say no is silence.

Each node listens on a random port of its chosen address, as gloo will, and each tries every other one, with enough
bytes both ways to fall into a hole for large packets. Then all send to their neighbour in a ring at once, as gloo's
all-reduce does, and the receivers count: on one medium for all, a pair alone would look faster than it will be.
"""

import asyncio
import contextlib
import socket
import struct
import time
from typing import NamedTuple

CONNECT_S = 4.0
EXCHANGE_S = 6.0
OPEN_S = 30.0
PAYLOAD = bytes(256 * 1024)
PINGS = 5
"""Of which the fastest counts."""
SENDING_AT_S = 0.3
"""After the order to send: all pings are over by then, also those of nodes that got it a little later."""
WARM_S = 0.25
"""Of the sending, not counted: TCP is still finding out how fast the path is."""
FLOW_S = 1.0
"""Of the sending, in all."""
FLOW_LIMIT_S = 2.8
"""Of everything; what isn't known by then stays unknown."""
MOST_BYTES_PER_S = 1e12
PIECE = bytes(64 * 1024)
PING = b"ping\n"
GO = b"go\n"

NO_ANSWER = "no answer"
REFUSED = "refused"
STUCK = "small packets pass, large ones don't"
WRONG = "something else answered"


class Flow(NamedTuple):
    """What one neighbour of a ring got through to the next, with all sending at once; None: unknown."""

    bytes_per_s: float | None = None
    latency_s: float | None = None
    """Of a message one way: half of what there and back takes."""


class Ear:
    """A listening socket that answers who knows the run's word, for OPEN_S at most."""

    def __init__(self, word: str) -> None:
        self._word, self._flow_word = _words(word)
        self._server: asyncio.Server | None = None
        self._closing: asyncio.TimerHandle | None = None

    async def open(self, address: str) -> int:
        """Listen on this address only; the port."""
        self._server = await asyncio.start_server(self._answer, address, 0)
        self._closing = asyncio.get_running_loop().call_later(OPEN_S, self.close)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._closing is not None:
            self._closing.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = await asyncio.wait_for(reader.readline(), EXCHANGE_S)
            if said == self._flow_word:
                await asyncio.wait_for(_count(reader, writer), FLOW_LIMIT_S)
            elif said == self._word:
                writer.write(self._word)
                await asyncio.wait_for(reader.readexactly(len(PAYLOAD)), EXCHANGE_S)
                writer.write(PAYLOAD)
                await asyncio.wait_for(writer.drain(), EXCHANGE_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            await _close(writer)


async def try_path(address: str, port: int, word: str) -> str:
    """Empty when the Ear at address:port can be reached and data passes both ways, else one of the reasons above."""
    said, _ = _words(word)
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
    except (asyncio.TimeoutError, TimeoutError):
        return NO_ANSWER
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return error.strerror or NO_ANSWER
    known = False
    try:
        writer.write(said)
        if await asyncio.wait_for(reader.readline(), EXCHANGE_S) != said:
            return WRONG
        known = True
        writer.write(PAYLOAD)
        await asyncio.wait_for(reader.readexactly(len(PAYLOAD)), EXCHANGE_S)
    except (asyncio.TimeoutError, TimeoutError):
        return STUCK
    except (OSError, asyncio.IncompleteReadError, ValueError):
        # an Ear that has answered and then hangs up waited in vain for what was sent
        return STUCK if known else WRONG
    finally:
        await _close(writer)
    return ""


async def send_flow(address: str, port: int, word: str) -> Flow:
    """What gets through to the Ear at address:port; it takes FLOW_LIMIT_S at most, and never raises."""
    try:
        return await asyncio.wait_for(_send_flow(address, port, word), FLOW_LIMIT_S)
    except (OSError, asyncio.TimeoutError, TimeoutError, ValueError):
        return Flow()


async def _send_flow(address: str, port: int, word: str) -> Flow:
    sending_s = time.perf_counter() + SENDING_AT_S
    reader, writer = await asyncio.open_connection(address, port)
    try:
        # closing drops what was not sent yet, which on a slow path would go on for seconds
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(_words(word)[1])
        latency_s = min([await _ping(reader, writer) for _ in range(PINGS)]) / 2
        await asyncio.sleep(max(0.0, sending_s - time.perf_counter()))
        writer.write(GO)
        rate = await _send_until_answered(reader, writer)
        return Flow(rate if 0 < rate < MOST_BYTES_PER_S else None, latency_s)
    finally:
        writer.transport.abort()


async def _ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Seconds there and back."""
    begun_s = time.perf_counter()
    writer.write(PING)
    if await reader.readline() != PING:
        raise ConnectionError("no answer to a ping")
    return time.perf_counter() - begun_s


async def _send_until_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """The rate that the other end has counted. Raises ValueError when it says something else."""
    answer = asyncio.ensure_future(reader.readline())
    drained = asyncio.ensure_future(asyncio.sleep(0))
    try:
        while not answer.done():
            if drained.done():
                drained.result()
                writer.write(PIECE)
                drained = asyncio.ensure_future(writer.drain())
            await asyncio.wait({answer, drained}, return_when=asyncio.FIRST_COMPLETED)
        return float(answer.result())
    finally:
        answer.cancel()
        drained.cancel()
        await asyncio.gather(answer, drained, return_exceptions=True)


async def _count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The other end of _send_flow."""
    while (line := await reader.readline()) == PING:
        writer.write(PING)
    if line != GO:
        return
    count, begun_s, warm_s, now_s = 0, 0.0, 0.0, 0.0
    while piece := await reader.read(len(PIECE)):
        now_s = time.perf_counter()
        begun_s = begun_s or now_s
        if warm_s:
            count += len(piece)
        elif now_s - begun_s >= WARM_S:
            warm_s = now_s
        if now_s - begun_s >= FLOW_S:
            break
    if count:
        writer.write(f"{count / (now_s - warm_s)}\n".encode())
        while await reader.read(len(PIECE)):  # closing with something unread would take the answer back
            pass


def _words(word: str) -> tuple[bytes, bytes]:
    """What is said first: to try a path, to send all that it carries."""
    return word.encode() + b"\n", word.encode() + b" flow\n"


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)
