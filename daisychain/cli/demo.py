"""`daisychain demo`: a whole chain on this one machine, training for real.

Three agents in folders of their own under one temporary folder, over loopback. The workers are slowed on purpose, by
sleeping in proportion to what they compute; the screens say so. All of it ends with this command.
"""

import argparse
import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from daisychain.cli.run import launch_and_follow
from daisychain.cli.screen import open_screens
from daisychain.cli.surface import Surface
from daisychain.config import Paths, Settings, load, locate
from daisychain.errors import UsageError
from daisychain.facts import RunSpec
from daisychain.link.client import AgentClient, start_agent, wait_for_agent
from daisychain.link.messages import BeWorker, Invitation, Launch, Launched, MakeInvite

LOOPBACK = "127.0.0.1"
END_PATIENCE_S = 8.0


async def command(words: argparse.Namespace, surface: Surface) -> int:
    speeds = parse_speeds(words.speeds)
    headless = words.headless or words.json or not sys.stdout.isatty()
    root = Path(tempfile.mkdtemp(prefix="daisychain-demo-"))
    agents: list[subprocess.Popen[bytes]] = []
    try:
        surface.event("demo", speeds=speeds, folder=str(root))
        surface.say(f"A chain of {len(speeds)} nodes on this one machine; the slower ones are slowed on purpose")
        head = await _build(speeds, root, agents)
        spec = RunSpec(job="demo", epochs=words.epochs)
        async with head:
            if headless:
                return await launch_and_follow(head, spec, surface, lambda folder: _keep(folder, surface.paths))
            await head.expect(Launch(spec=spec), Launched)
            return await open_screens(words, surface, head, "run", None, run_outlives=False)
    finally:
        await _end(agents)
        shutil.rmtree(root, ignore_errors=True)


def _keep(folder: str, paths: Paths) -> str:
    """Move the run's folder out of the demo's temporary one, to the person's own runs."""
    paths.runs.mkdir(parents=True, exist_ok=True)
    return str(shutil.move(folder, paths.runs / Path(folder).name))


def parse_speeds(text: str) -> list[float]:
    """Relative speeds, the head's first. Raises UsageError."""
    try:
        speeds = [float(word) for word in text.split(",")]
    except ValueError:
        speeds = []
    if not 1 <= len(speeds) <= 6 or any(not 0 < s < 1e6 or s * 50 < max(speeds) for s in speeds):
        raise UsageError(f"--speeds is {text!r}", "Give one to six positive numbers such as 4,2,1, at most 50 apart")
    return speeds


async def _build(speeds: list[float], root: Path, agents: "list[subprocess.Popen[bytes]]") -> AgentClient:
    """Start the agents, join the workers to the head, and return the head's client."""
    names = ["head", *(f"worker{number}" for number in range(1, len(speeds)))]
    homes: list[tuple[Paths, Settings]] = []
    for name, speed in zip(names, speeds, strict=True):
        environment = {
            "DAISYCHAIN_HOME": str(root / name),
            "DAISYCHAIN_PORT": str(_free_port()),
            "DAISYCHAIN_NIC": _loopback_nic(),
            "DAISYCHAIN_NAME": name,
            "DAISYCHAIN_MDNS": "false",
            "DAISYCHAIN_THREADS": "1",
            "DAISYCHAIN_SLOWDOWN": str(max(speeds) / speed),
        }
        paths = locate(environment)
        homes.append((paths, load(paths, environment)))
        agents.append(start_agent(paths, environment=environment, tied=True))
    clients = [await wait_for_agent(p, s, a) for (p, s), a in zip(homes, agents, strict=True)]
    head = clients[0]
    invitation = await head.expect(MakeInvite(uses=max(1, len(speeds) - 1)), Invitation)
    for client in clients[1:]:
        async with client:
            await client.ask(BeWorker(host=LOOPBACK, port=homes[0][1].port, token=invitation.token))
    async for world in head.snapshots(0.2):
        if len(world.nodes) == len(speeds):
            break
    return head


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _loopback_nic() -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == LOOPBACK for a in addresses):
            return name
    return "lo"


async def _end(agents: "list[subprocess.Popen[bytes]]") -> None:
    """Let the agents end (their standard input does), and see to it that they have."""
    for agent in agents:
        if agent.stdin is not None:
            with contextlib.suppress(OSError):
                agent.stdin.close()
    until = asyncio.get_running_loop().time() + END_PATIENCE_S
    while any(agent.poll() is None for agent in agents) and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.05)
    for agent in agents:
        if agent.poll() is None:
            agent.kill()
        agent.wait()
