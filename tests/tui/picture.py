"""Draws the run screen as an SVG picture, for the README.

    python tests/tui/picture.py OUT.svg [--state STATE.json] [--size 120x40] [--theme dark]

STATE.json is a RunState as `daisychain run --json` reports it; without one, recorded_run.json beside this file.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from daisychain.config import Paths, Settings
from daisychain.facts import RunState, Snapshot
from daisychain.link.messages import Done, Message
from daisychain.tui.app import DaisyApp

SAMPLE = Path(__file__).with_name("recorded_run.json")


class OneSnapshot:
    """A backend with a single snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    async def ask(self, message: Message) -> Message:
        return Done()

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        yield self.snapshot
        await asyncio.Event().wait()


async def picture(state: RunState, size: tuple[int, int], theme: str) -> str:
    """The run screen of `state` as SVG text."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(*(Path(folder) / name for name in ("config", "data", "state", "cache")))
        snapshot = Snapshot(self_id="", role="head", nodes=(), run=state)
        app = DaisyApp(OneSnapshot(snapshot), Settings(theme=theme), paths, start="run")
        async with app.run_test(size=size) as pilot:
            await pilot.pause(0.2)
            return app.export_screenshot(title="daisychain", simplify=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="the run screen as SVG")
    parser.add_argument("out", type=Path)
    parser.add_argument("--state", type=Path, default=SAMPLE)
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--theme", default="dark")
    words = parser.parse_args()
    width, _, height = words.size.partition("x")
    state = msgspec.json.decode(words.state.read_bytes(), type=RunState)
    words.out.write_text(asyncio.run(picture(state, (int(width), int(height)), words.theme)), encoding="utf-8")


if __name__ == "__main__":
    main()
