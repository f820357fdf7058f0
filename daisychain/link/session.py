"""One connection of the control channel: frames in, frames out, requests matched with their answers.

A request's binary frames are its id (8 bytes, big endian) and then content; nothing else is binary.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from daisychain.errors import BY_EXIT_CODE, DaisyError, LinkError, PreflightError
from daisychain.link.messages import AnyMessage, Done, FetchBlob, Frame, Message, Refused, decode, encode

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
MAX_WAITING = 64
"""Requests of one peer that may be in work at once; more are refused."""

Handler = Callable[["Session", AnyMessage, int], Awaitable[AnyMessage | None]]
"""Called with the session, the message and its request id (0: a notice). Returns the answer, for a request."""


class Session:
    """A connection with a peer that is known to be `peer` (what the caller found out from TLS)."""

    def __init__(self, socket: Connection, peer: Any, handler: Handler) -> None:
        self.peer = peer
        self._socket = socket
        self._handler = handler
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[AnyMessage]] = {}
        self._sinks: dict[int, Callable[[bytes], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()
        self.heard_at = asyncio.get_running_loop().time()
        """When anything last came in, on the loop's monotonic clock."""
        # asked now: a connection that was lost doesn't know any more
        self.address = _ip(socket.remote_address)
        """The peer's IP address."""
        self.local_address = _ip(socket.local_address)
        """This end's IP address."""

    async def run(self) -> None:
        """Read until the connection ends. Never raises for what the peer sent."""
        try:
            async for text in self._socket:
                self.heard_at = asyncio.get_running_loop().time()
                if isinstance(text, bytes):
                    self._take_chunk(text)
                    continue
                try:
                    frame = decode(text)
                except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
                    log.warning("%s sent a frame that is not of this protocol: %s", self.address, error)
                    await self._socket.close(1008, "not of this protocol")
                    break
                await self._take(frame)
        except ConnectionClosed:
            pass
        finally:
            self._end()

    async def notify(self, message: Message) -> None:
        """Send without waiting for an answer. Raises LinkError when the connection is gone."""
        await self._send(Frame(m=message))  # type: ignore[arg-type]

    async def ask(self, message: Message, timeout_s: float = 30.0) -> AnyMessage:
        """Send a request and return its answer.

        Raises the error that a Refused stands for; LinkError when the peer is gone or doesn't answer in time.
        """
        return await self._exchange(message, timeout_s, None)

    async def fetch(self, message: FetchBlob, sink: Callable[[bytes], None], timeout_s: float = 3600.0) -> None:
        """Ask for content; `sink` gets each piece, in order. Raises like ask, and the OSError of a full disk."""
        failure: list[OSError] = []

        def guarded(piece: bytes) -> None:
            if not failure:
                try:
                    sink(piece)
                except OSError as error:
                    failure.append(error)

        await self._exchange(message, timeout_s, guarded)
        if failure:
            raise failure[0]

    async def _exchange(self, message: Message, timeout_s: float, sink: Callable[[bytes], None] | None) -> AnyMessage:
        number = next(self._numbers)
        future: asyncio.Future[AnyMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if sink is not None:
            self._sinks[number] = sink
        try:
            await self._send(Frame(m=message, id=number))  # type: ignore[arg-type]
            answer = await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise LinkError(f"{self.address} did not answer within {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
            self._sinks.pop(number, None)
        if isinstance(answer, Refused):
            raise error_of(answer)
        return answer

    async def send_chunk(self, number: int, piece: bytes) -> None:
        """A piece of content for the peer's request `number`."""
        await self._send_raw(number.to_bytes(8, "big") + piece)

    async def close(self, reason: str = "") -> None:
        with contextlib.suppress(Exception):
            await self._socket.close(1000, reason[:100])

    async def _send(self, frame: Frame) -> None:
        await self._send_raw(encode(frame))

    async def _send_raw(self, data: str | bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            raise LinkError(f"the connection to {self.address or 'the peer'} is closed") from error

    def _take_chunk(self, data: bytes) -> None:
        sink = self._sinks.get(int.from_bytes(data[:8], "big"))
        if sink is not None:
            sink(data[8:])

    async def _take(self, frame: Frame) -> None:
        if frame.re:
            future = self._waiting.get(frame.re)
            if future is not None and not future.done():
                future.set_result(frame.m)
        elif not frame.id:
            await self._guard(frame)
        elif len(self._tasks) >= MAX_WAITING:
            await self._answer(frame.id, Refused(reason="too many requests at once", remedy="Wait for answers first"))
        else:
            task = asyncio.create_task(self._guard(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guard(self, frame: Frame) -> None:
        """Run the handler; whatever it raises becomes an answer and a log line, never the end of the agent."""
        try:
            answer = await self._handler(self, frame.m, frame.id)
        except DaisyError as error:
            answer = refusal(error)
        except (ConnectionClosed, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("while handling %s of %s", type(frame.m).__name__, self.address)
            answer = Refused(reason=f"{type(frame.m).__name__} failed inside the agent", remedy="See the agent's log")
        if frame.id:
            await self._answer(frame.id, Done() if answer is None else answer)
        elif isinstance(answer, Refused):
            log.warning("%s from %s: %s", type(frame.m).__name__, self.address, answer.reason)

    async def _answer(self, number: int, message: AnyMessage) -> None:
        with contextlib.suppress(LinkError):
            await self._send(Frame(m=message, re=number))

    def _end(self) -> None:
        self.closed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkError(f"the connection to {self.address or 'the peer'} was lost"))
        for task in self._tasks:
            task.cancel()


def _ip(name: Any) -> str:
    return str(name[0]) if name else ""


def refusal(error: DaisyError) -> Refused:
    """The message that carries an error to the other side."""
    verdicts = error.verdicts if isinstance(error, PreflightError) else ()
    return Refused(reason=error.what, remedy=error.remedy, exit=error.exit_code, verdicts=verdicts)


def error_of(refused: Refused) -> DaisyError:
    """The error that a refusal carries."""
    if refused.verdicts:
        return PreflightError(refused.verdicts)
    return BY_EXIT_CODE.get(refused.exit, DaisyError)(refused.reason, refused.remedy)
