"""The small commands: look, invite, stop, forget."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from daisychain.cli.surface import Surface
from daisychain.errors import LinkError
from daisychain.facts import ENDED, Node, RunState
from daisychain.link.client import AgentClient, connect_local, connect_or_start, read_lock
from daisychain.link.messages import (
    Forget,
    Invitation,
    Look,
    MakeInvite,
    Ping,
    Pong,
    QuitAgent,
    StopRun,
    World,
)

SIGNS = {"ok": "✓", "warn": "!", "refuse": "✗"}


async def command(words: argparse.Namespace, surface: Surface) -> int:
    handlers: dict[str, Callable[[argparse.Namespace, Surface], Awaitable[int]]] = {
        "invite": _invite,
        "nodes": _nodes,
        "status": _status,
        "bench": _bench,
        "paths": _paths,
        "stop": _stop,
        "forget": _forget,
        "agent": _agent,
    }
    return await handlers[words.command](words, surface)


async def _started(surface: Surface) -> AgentClient:
    return await connect_or_start(surface.paths, surface.settings, flags_of(surface))


def flags_of(surface: Surface) -> tuple[str, ...]:
    """What a new agent is started with."""
    flags = [f"--port={surface.settings.port}"]
    if surface.settings.nic:
        flags.append(f"--nic={surface.settings.nic}")
    return tuple(flags)


async def _invite(words: argparse.Namespace, surface: Surface) -> int:
    async with await _started(surface) as agent:
        made = await agent.expect(MakeInvite(uses=words.uses, minutes=words.minutes), Invitation)
    surface.event("invitation", token=made.token, address=made.address, uses=made.uses, minutes=made.minutes)
    surface.say(f"On each machine that shall join ({made.uses} at most, within {made.minutes:g} minutes) run:\n")
    surface.say(f"    daisychain join {made.address} --token {made.token}")
    return 0


def node_facts(node: Node) -> dict[str, object]:
    """A node as `nodes --json` shows it."""
    verdict = node.nic_verdict
    return {
        "name": node.name,
        "id": node.id,
        "state": node.state,
        "role": node.role,
        "address": node.address,
        "port": node.port,
        "nic": node.nic,
        "nic_verdict": {"level": verdict.level, "reason": verdict.reason, "remedy": verdict.remedy},
        "device": msgspec.to_builtins(node.device),
        "versions": msgspec.to_builtins(node.versions),
        "capacity": round(node.capacity.samples_per_second(), 1) if node.capacity else None,
        "share": node.share,
        "lent": node.lent,
        "hot": node.hot,
        "slowdown": node.slowdown,
        "detail": node.detail,
    }


async def _nodes(words: argparse.Namespace, surface: Surface) -> int:
    async with await _started(surface) as agent:
        world = (await agent.expect(Look(), World)).snapshot
    surface.event("nodes", nodes=[node_facts(node) for node in world.nodes])
    surface.say(f"{'NODE':16} {'ROLE':7} {'STATE':10} {'ADDRESS':15} {'NIC':10} {'SAMPLES/S':>10}  DEVICE")
    for n in world.nodes:
        state = "in use" if n.lent and n.state != "lost" else n.state
        speed = f"{n.capacity.samples_per_second():,.0f}" if n.capacity else "unknown"
        surface.say(
            f"{n.name:16} {n.role:7} {state:10} {n.address:15} {SIGNS[n.nic_verdict.level]} {n.nic:8} {speed:>10}  "
            f"{n.device.cpu}, {n.device.cores_logical} cores"
        )
    surface.say(world.advice)
    return 0


async def _status(words: argparse.Namespace, surface: Surface) -> int:
    try:
        agent = await connect_local(surface.paths, surface.settings)
    except LinkError:
        surface.event("status", running=False, pid=None)
        surface.say("No agent is running on this machine")
        return 0
    async with agent:
        pong = await agent.expect(Ping(), Pong)
        world = (await agent.expect(Look(), World)).snapshot
    run = world.run
    surface.event(
        "status", running=True, pid=pong.pid, role=pong.role, version=pong.version, joined=world.joined,
        connected=world.connected, log=world.log_path, run=_run_facts(run), advice=world.advice,
        heads=[
            {"name": h.name, "address": h.address, "port": h.port, "digits": h.digits, "state": h.state}
            for h in world.heads
        ],
        requests=[
            {"name": r.name, "address": r.address, "digits": r.digits, "confirmed": r.confirmed}
            for r in world.requests
        ],
    )  # fmt: skip
    surface.say(f"agent {pong.pid}, {pong.role}" + (f" of {world.joined}" if world.joined else ""))
    if run is not None:
        what, how = "last run" if run.phase in ENDED else "run", "paused" if run.paused else run.phase
        surface.say(f"{what} {run.name}: {how}, step {run.step}")
    surface.say(world.advice)
    return 0


def _run_facts(run: RunState | None) -> dict[str, object] | None:
    if run is None:
        return None
    return {
        "id": run.id,
        "phase": run.phase,
        "paused": run.paused,
        "step": run.step,
        "steps": run.steps,
        "folder": run.folder,
    }


async def _bench(words: argparse.Namespace, surface: Surface) -> int:
    async with await _started(surface) as agent:
        async for world in agent.snapshots(0.3):
            own = next(n for n in world.nodes if n.id == world.self_id)
            if own.state != "measuring":
                break
    if own.capacity is None:
        raise LinkError(own.detail or "this machine's speed is unknown", f"Its log: {surface.paths.agent_log}")
    c = own.capacity
    points = {n: round(c.step_s(n) * 1000, 3) for n in (1, 16, 64, 256, 1024)}
    surface.event(
        "bench", fixed_s=c.fixed_s, per_sample_s=c.per_sample_s, threads=c.threads, torch=c.torch, step_ms=points
    )
    surface.say(
        f"A step of the reference model takes {c.fixed_s * 1000:.2f} ms + {c.per_sample_s * 1e6:.1f} µs a sample"
    )
    surface.say(f"At a batch of 256: {c.samples_per_second():,.0f} samples/s ({c.threads} threads, torch {c.torch})")
    return 0


async def _paths(words: argparse.Namespace, surface: Surface) -> int:
    p = surface.paths
    lock = read_lock(p)
    places = {
        "config": p.config_file,
        "identity": p.identity,
        "runs": p.runs,
        "blobs": p.blobs,
        "log": p.agent_log,
        "capacity": p.capacity,
    }
    surface.event("paths", **{name: str(path) for name, path in places.items()}, port=lock.port if lock else None)
    for name, path in places.items():
        surface.say(f"{name:10} {path}")
    return 0


async def _stop(words: argparse.Namespace, surface: Surface) -> int:
    async with await connect_local(surface.paths, surface.settings) as agent:
        await agent.ask(StopRun())
        async for world in agent.snapshots(0.2):
            if world.run is None or world.run.phase in ENDED:
                break
    surface.event("stopped")
    surface.say("The run was stopped on every node")
    return 0


async def _forget(words: argparse.Namespace, surface: Surface) -> int:
    async with await _started(surface) as agent:
        await agent.ask(Forget(node=words.node))
    surface.event("forgotten", node=words.node)
    surface.say(f"{words.node} is forgotten; to come back it needs a new invitation")
    return 0


async def _agent(words: argparse.Namespace, surface: Surface) -> int:
    lock = read_lock(surface.paths)
    try:
        agent = await connect_local(surface.paths, surface.settings)
    except LinkError:
        surface.event("agent", running=False)
        surface.say("No agent is running on this machine")
        return 0
    async with agent:
        await agent.ask(QuitAgent())
        for _ in range(100):
            now = read_lock(surface.paths)
            if now is None or now != lock:
                break
            await asyncio.sleep(0.1)
    surface.event("agent", running=False)
    surface.say("The agent has ended")
    return 0
