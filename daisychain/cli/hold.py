"""`daisychain pause` and `resume`: on a head the run, on a worker this machine's part in it."""

import argparse

from daisychain.cli.surface import Surface
from daisychain.link.client import connect_local
from daisychain.link.messages import Lend, PauseRun, Ping, Pong


async def command(words: argparse.Namespace, surface: Surface) -> int:
    """Raises LinkError when no agent runs here, UsageError when a head has no run to pause."""
    pause = words.command == "pause"
    async with await connect_local(surface.paths, surface.settings) as agent:
        here = words.here or (await agent.expect(Ping(), Pong)).role == "worker"
        await agent.ask(Lend(lent=pause) if here else PauseRun(paused=pause))
    if here:
        surface.event("lent" if pause else "given_back")
        surface.say(
            "This machine takes no part in runs until: daisychain resume" + (" --here" if words.here else "")
            if pause
            else "This machine takes part in runs again"
        )
    else:
        surface.event("paused" if pause else "resumed")
        surface.say("The run pauses after its current step; go on with: daisychain resume" if pause else "It goes on")
    return 0
