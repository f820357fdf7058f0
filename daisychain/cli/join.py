"""`daisychain join`: lend this machine to a head, by screen or by token."""

import argparse
import asyncio

from daisychain.cli.look import flags_of
from daisychain.cli.screen import open_screens
from daisychain.cli.surface import Surface
from daisychain.errors import DaisyError, TrustError, UsageError
from daisychain.link.client import AgentClient, connect_or_start
from daisychain.link.messages import BeWorker, Look, World

CONNECT_PATIENCE_S = 15.0


async def command(words: argparse.Namespace, surface: Surface) -> int:
    host, port = split_address(words.host)
    if words.token and not host:
        raise UsageError("--token needs the head's address", "daisychain join HOST --token TOKEN")
    agent = await connect_or_start(surface.paths, surface.settings, flags_of(surface))
    wish = BeWorker(host=host, port=port, token=words.token)
    if not (words.headless or words.json or words.token):
        return await open_screens(words, surface, agent, "join", wish)
    async with agent:
        await agent.ask(wish)
        head = await _connected(agent, bool(words.token))
    surface.event("joined", head=head)
    surface.say(
        f"Joined {head}. {head} may run code on this machine from now on; leave it with: daisychain forget {head}"
    )
    return 0


def split_address(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT or [v6]:PORT; port 0 when none is given. Raises UsageError."""
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]") or (text.count(":") > 1 and not text.startswith("[")):
        return text.strip("[]"), 0
    if not number.isdecimal() or not 0 < int(number) < 65536:
        raise UsageError(f"{text!r} is not HOST:PORT", "Give a port from 1 to 65535, or leave it away")
    return host.strip("[]"), int(number)


async def _connected(agent: AgentClient, by_token: bool) -> str:
    """The head's name once the link to it is up."""
    world = (await agent.expect(Look(), World)).snapshot
    if not by_token and not world.joined:
        raise TrustError(
            "this machine doesn't belong to a head yet",
            "Without a screen a token is needed; on the head run: daisychain invite",
        )
    until = asyncio.get_running_loop().time() + CONNECT_PATIENCE_S
    while not world.connected:
        if asyncio.get_running_loop().time() > until:
            raise DaisyError(world.advice, "This machine keeps trying by itself")
        await asyncio.sleep(0.1)
        world = (await agent.expect(Look(), World)).snapshot
    return world.joined
