"""Whether the nodes of a run reach each other, tried before any rank starts: gloo's own way to say no is silence.

Each node listens on a random port of its chosen address, as gloo will, and each tries every other one, with enough
bytes both ways to fall into a hole for large packets.
"""

import asyncio
import contextlib

CONNECT_S = 4.0
EXCHANGE_S = 6.0
OPEN_S = 30.0
PAYLOAD = bytes(256 * 1024)

NO_ANSWER = "no answer"
REFUSED = "refused"
STUCK = "small packets pass, large ones don't"
WRONG = "something else answered"


class Ear:
    """A listening socket that answers who knows the run's word, for OPEN_S at most."""

    def __init__(self, word: str) -> None:
        self._word = word.encode() + b"\n"
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
            if await asyncio.wait_for(reader.readline(), EXCHANGE_S) == self._word:
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
    said = word.encode() + b"\n"
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


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)
