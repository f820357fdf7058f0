"""`daisychain`: the screens."""

import argparse
import sys
from typing import Literal

from daisychain.cli.look import flags_of
from daisychain.cli.surface import Surface
from daisychain.errors import UsageError
from daisychain.link.client import AgentClient, Reconnecting, connect_or_start
from daisychain.link.messages import BeWorker, Look, World


async def command(words: argparse.Namespace, surface: Surface) -> int:
    if not sys.stdout.isatty():
        raise UsageError(
            "the screens need a terminal", "In scripts use: daisychain nodes --json, daisychain run --headless --json"
        )
    agent = await connect_or_start(surface.paths, surface.settings, flags_of(surface))
    world = (await agent.expect(Look(), World)).snapshot
    return await open_screens(words, surface, agent, "join" if world.role == "worker" else "cluster", None)


async def open_screens(
    words: argparse.Namespace,
    surface: Surface,
    agent: AgentClient,
    start: Literal["cluster", "join", "run"],
    wish: BeWorker | None,
) -> int:
    """Show the screens until the person quits; what runs goes on."""
    from daisychain.tui.app import DaisyApp
    from daisychain.tui.terminal import run_app

    backend = Reconnecting(surface.paths, surface.settings, agent)
    try:
        app = DaisyApp(backend, surface.settings, surface.paths, start, wish)
        return int(await run_app(app, mouse=not words.no_mouse))
    finally:
        await backend.close()
