"""The listening end: TLS 1.3 on chosen addresses, one handler for every connection."""

import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve

from daisychain.errors import DaisyError
from daisychain.link.messages import MAX_FRAME_BYTES

Accept = Callable[[ServerConnection, ssl.SSLObject], Awaitable[None]]
MAX_CONNECTIONS = 128
OPEN_TIMEOUT_S = 10.0


async def listen(addresses: Sequence[str], port: int, context: ssl.SSLContext, accept: Accept) -> list[Server]:
    """Servers on every address; `accept` runs for each connection and owns it until it returns.

    Raises DaisyError when the port is taken.
    """
    open_now = 0

    async def guarded(socket: ServerConnection) -> None:
        nonlocal open_now
        if open_now >= MAX_CONNECTIONS:
            await socket.close(1013, "too many connections")
            return
        open_now += 1
        try:
            tls: Any = socket.transport.get_extra_info("ssl_object")
            await accept(socket, tls)
        finally:
            open_now -= 1

    servers: list[Server] = []
    try:
        for address in addresses:
            servers.append(
                await serve(
                    guarded, address, port, ssl=context, max_size=MAX_FRAME_BYTES, max_queue=8, compression=None,
                    ping_interval=None, open_timeout=OPEN_TIMEOUT_S, close_timeout=2, server_header=None,
                )
            )  # fmt: skip
    except OSError as error:
        for server in servers:
            server.close()
        raise DaisyError(
            f"can't listen on {addresses[len(servers)]}:{port}: {os.strerror(error.errno or 0)}",
            "Another program has this port: set another one on every node with --port or DAISYCHAIN_PORT",
        ) from error
    return servers
