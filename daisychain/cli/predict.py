"""`daisychain predict`: apply a tabular run's model to a new CSV file. torch is loaded in a child only."""

import argparse
import asyncio
from pathlib import Path

from daisychain.cli.surface import Surface
from daisychain.jobs.tabular.predict import predict


async def command(words: argparse.Namespace, surface: Surface) -> int:
    out = Path(words.output) if words.output else None
    made = await asyncio.to_thread(predict, Path(words.model), Path(words.file), out)
    surface.event("predicted", rows=made.rows, output=str(made.out), added=list(made.added))
    surface.say(f"{made.out}: {made.rows} rows, with {', '.join(made.added)}")
    return 0
