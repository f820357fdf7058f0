"""`daisychain run`: launch, follow, report."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from daisychain.cli.look import flags_of
from daisychain.cli.screen import open_screens
from daisychain.cli.surface import Surface
from daisychain.errors import INTERRUPTED, DaisyError, UsageError
from daisychain.facts import ENDED, RunSpec, RunState
from daisychain.link.client import AgentClient, connect_or_start
from daisychain.link.messages import FollowRun, Launch, Launched, RunNews, StopRun

JOBS = ("tabular", "demo")
STOP_PATIENCE_S = 15.0


async def command(words: argparse.Namespace, surface: Surface) -> int:
    spec = spec_of(words)
    agent = await connect_or_start(surface.paths, surface.settings, flags_of(surface))
    if not (words.headless or words.json) and sys.stdout.isatty():
        await agent.expect(Launch(spec=spec), Launched)
        return await open_screens(words, surface, agent, "run", None)
    async with agent:
        return await launch_and_follow(agent, spec, surface)


def spec_of(words: argparse.Namespace) -> RunSpec:
    """What was typed as a run's specification. Raises UsageError."""
    auto = words.nodes == "auto"
    every = auto or words.nodes == "all"
    nodes = () if every else tuple(name.strip() for name in words.nodes.split(",") if name.strip())
    if words.resume:
        if words.what:
            raise UsageError("--resume takes no script: it goes on with the run's own", "Leave the script out")
        return RunSpec(job="script", resume=Path(words.resume).name, nodes=nodes, auto=auto)
    if not words.what:
        raise UsageError(
            "nothing to train was named", "daisychain run SCRIPT.py, or daisychain run tabular FILE.csv ..."
        )
    job: Literal["script", "tabular", "demo"] = words.what if words.what in JOBS else "script"
    if job == "script" and words.file:
        raise UsageError(f"{words.file!r} after the script", "Put the script's own arguments after --")
    if job == "tabular" and not words.file:
        raise UsageError("the tabular job needs a CSV file", "daisychain run tabular FILE.csv --target COLUMN")
    path = words.file if job == "tabular" else words.what if job == "script" else ""
    return RunSpec(
        job=job,
        path=str(Path(path).resolve()) if path else "",
        target=words.target,
        drop=tuple(words.drop),
        data=tuple(str(Path(p).resolve()) for p in words.data),
        args=tuple(words.args),
        nodes=nodes,
        batch=words.batch,
        micro=words.micro,
        epochs=words.epochs,
        seed=words.seed,
        sync=words.sync,
        equal=words.equal,
        ranks=words.ranks,
        anyway=words.anyway,
        auto=auto,
    )


async def launch_and_follow(
    agent: AgentClient, spec: RunSpec, surface: Surface, keep: Callable[[str], str] = lambda folder: folder
) -> int:
    """Launch, tell how it goes, and return the run's exit code. Ctrl-C ends the run on every node.

    keep: called with the run's folder at the end; returns where it lies then.
    """
    launched = await agent.expect(Launch(spec=spec), Launched)
    surface.event("launched", run=launched.run, folder=launched.folder)
    surface.say(f"run {launched.run}")
    teller = Teller(surface)
    following = asyncio.ensure_future(_follow(agent, launched.run, teller))
    try:
        state = await following
    except asyncio.CancelledError:
        await _stop(agent, launched.run)
        return INTERRUPTED
    return _finish(state, surface, keep(state.folder))


async def _follow(agent: AgentClient, run: str, teller: "Teller") -> RunState:
    async for world in agent.snapshots(1.0):
        if world.run is None or world.run.id != run:
            continue
        teller.tell(world.run)
        if world.run.phase in ENDED:
            break
    return (await agent.expect(FollowRun(run=run), RunNews)).state


async def _stop(agent: AgentClient, run: str) -> None:
    try:
        await agent.ask(StopRun())
        async with asyncio.timeout(STOP_PATIENCE_S) if hasattr(asyncio, "timeout") else _Forever():
            while (await agent.expect(FollowRun(run=run), RunNews)).state.phase not in ENDED:
                await asyncio.sleep(0.2)
    except (DaisyError, TimeoutError):
        pass


class _Forever:
    """Stands in for asyncio.timeout on Python 3.10."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


class Teller:
    """Turns run states into lines, each once."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._phase = ("", "")
        self._told: set[str] = set()

    def tell(self, state: RunState) -> None:
        surface = self._surface
        for line in state.log:
            if line not in self._told:
                self._told.add(line)
                surface.event("log", text=line)
                surface.say(line)
        surface.event(
            "progress", phase=state.phase, step=state.step, steps=state.steps, epoch=state.epoch, epochs=state.epochs,
            loss=state.loss, samples_per_second=state.samples_per_second, step_ms=state.step_ms, eta_s=state.eta_s,
            shares={part.node: part.share for part in state.nodes}, detail=state.detail,
            paused=state.paused, lent=list(state.lent),
        )  # fmt: skip
        phase = (f"paused after step {state.step}" if state.paused else state.phase, state.detail)
        if phase[0] == "running" and state.step:
            shares = " ".join(f"{part.node}:{part.share}" for part in state.nodes)
            loss = f"{state.loss:.4f}" if state.loss is not None else "unknown"
            rate = f"{state.samples_per_second:,.0f}" if state.samples_per_second else "unknown"
            of = f"/{state.steps}" if state.steps else ""
            surface.say(f"step {state.step}{of}  loss {loss}  {rate} samples/s  {state.step_ms or 0:.0f} ms  {shares}")
        elif state.phase not in ENDED and phase != self._phase:
            surface.say(": ".join(part for part in phase if part))
        self._phase = phase


def _finish(state: RunState, surface: Surface, folder: str) -> int:
    code = state.exit if state.exit is not None else 1
    surface.event(
        "finished", exit=code, steps=state.step, samples_per_second=state.samples_per_second,
        speedup_vs_fastest_node=state.speedup_vs_fastest_node, folder=folder, scores=state.scores,
        error=state.error, phase=state.phase,
    )  # fmt: skip
    if state.error:
        where = f" (log: {state.log_path})" if state.log_path else ""
        print(f"daisychain: {state.error}{where}", file=sys.stderr)
    else:
        rate = f"{state.samples_per_second:,.0f}" if state.samples_per_second else "unknown"
        gain = f"{state.speedup_vs_fastest_node:.2f}" if state.speedup_vs_fastest_node else "unknown"
        surface.say(f"{state.phase}: {state.step} steps, {rate} samples/s, {gain} times the fastest node alone")
        if state.scores:
            surface.say(json.dumps(state.scores))
        surface.say(f"report: {folder}/report.md")
    return code
