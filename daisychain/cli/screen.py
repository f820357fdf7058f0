"""`daisychain`: the screens."""

import argparse
import sys
from typing import Literal

from daisychain.cli.look import flags_of
from daisychain.cli.surface import Surface
from daisychain.errors import UsageError
from daisychain.facts import ENDED, Snapshot
from daisychain.link.client import AgentClient, Reconnecting, connect_or_start
from daisychain.link.messages import BeWorker, Look, World


async def command(words: argparse.Namespace, surface: Surface) -> int:
    if not sys.stdout.isatty():
        raise UsageError(
            "the screens need a terminal", "In scripts use: daisychain nodes --json, daisychain run --headless --json"
        )
    agent = await connect_or_start(surface.paths, surface.settings, flags_of(surface))
    world = (await agent.expect(Look(), World)).snapshot
    return await open_screens(words, surface, agent, _first_screen(world), None)


def _first_screen(world: Snapshot) -> Literal["cluster", "join", "run"]:
    """Where a person wants to be: at the run that goes on, else with the nodes, or as a worker with the head."""
    if world.role == "worker":
        return "join"
    return "run" if world.run is not None and world.run.phase not in ENDED else "cluster"


async def open_screens(
    words: argparse.Namespace,
    surface: Surface,
    agent: AgentClient,
    start: Literal["cluster", "join", "run"],
    wish: BeWorker | None,
    run_outlives: bool = True,
) -> int:
    """Show the screens until the person quits; what runs goes on."""
    from daisychain.tui.app import DaisyApp
    from daisychain.tui.terminal import run_app

    backend = Reconnecting(surface.paths, surface.settings, agent)
    try:
        app = DaisyApp(backend, surface.settings, surface.paths, start, wish)
        app.run_outlives = run_outlives
        return int(await run_app(app, mouse=not words.no_mouse))
    finally:
        await backend.close()
