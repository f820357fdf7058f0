"""A fake backend and a recorded world for the tests of the screens."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from textual.pilot import Pilot

from daisychain.config import Paths, Settings
from daisychain.facts import (
    Address,
    Capacity,
    Condition,
    Device,
    FoundHead,
    JoinRequest,
    Nic,
    Node,
    NodeStep,
    RunSpec,
    RunState,
    Snapshot,
    Verdict,
    Versions,
)
from daisychain.link.messages import Done, Examined, Message, Nics
from daisychain.tui.app import DaisyApp

OK = Verdict(level="ok", check="nic", reason="wired, 1000 Mbit/s")
WIFI = Verdict(
    level="warn",
    check="nic",
    reason="Wi-Fi shares one medium between all nodes",
    remedy="Plug in a cable where you can",
)


class FakeBackend:
    """Snapshots that a test sends, requests that it looks at, answers that it scripts."""

    def __init__(self, *first: Snapshot) -> None:
        self.queue: asyncio.Queue[Snapshot | Exception | None] = asyncio.Queue()
        self.asked: list[Message] = []
        self.answers: dict[type[Message], Message | Exception] = {}
        self.streams = 0
        self.idle = False
        self.answering = asyncio.Event()
        """Clear it to hold every answer back."""
        self.answering.set()
        for snapshot in first:
            self.queue.put_nowait(snapshot)

    def send(self, item: Snapshot | Exception | None) -> None:
        """A snapshot; or an error that ends the stream; or None, which ends it without one."""
        self.queue.put_nowait(item)

    async def ask(self, message: Message) -> Message:
        self.asked.append(message)
        await self.answering.wait()
        answer = self.answers.get(type(message), Done())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        self.streams += 1
        while True:
            self.idle = self.queue.empty()
            item = await self.queue.get()
            self.idle = False
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item


def node(name: str = "anna", **changes: object) -> Node:
    fields: dict[str, object] = {
        "id": f"id-{name}",
        "name": name,
        "role": "worker",
        "state": "ready",
        "address": "192.168.1.20",
        "port": 47632,
        "nic": "eth0",
        "nic_verdict": OK,
        "device": Device(cpu="AMD Ryzen 7 5800X", cores_physical=8, cores_logical=16, memory_bytes=16 * 2**30),
        "versions": Versions(
            daisychain="0.1", python="3.11.2", torch="2.13.0", os="Debian GNU/Linux 12", os_family="linux"
        ),
        "capacity": Capacity(fixed_s=0.001, per_sample_s=1 / 22000, threads=8, torch="2.13.0"),
    }
    return Node(**(fields | changes))  # type: ignore[arg-type]


def three() -> tuple[Node, ...]:
    old = Device(cpu="Intel Core i5-5200U", cores_physical=2, cores_logical=4, memory_bytes=8 * 2**30)
    mini = Device(cpu="Intel N100", cores_physical=4, cores_logical=4, memory_bytes=8 * 2**30)
    slow = Capacity(fixed_s=0.002, per_sample_s=1 / 3700, threads=2, torch="2.13.0")
    middle = Capacity(fixed_s=0.002, per_sample_s=1 / 10400, threads=4, torch="2.13.0")
    return (
        node("anna", role="head"),
        node("mini-pc", address="192.168.1.31", device=mini, capacity=middle),
        node("old-laptop", address="192.168.1.42", device=old, capacity=slow, nic="wlp2s0", nic_verdict=WIFI),
    )


def world(**changes: object) -> Snapshot:
    fields: dict[str, object] = {
        "self_id": "id-anna",
        "role": "head",
        "nodes": three(),
        "nics": (Nic(name="eth0", kind="ethernet", addresses=(Address(ip="192.168.1.20", prefix=24),)),),
        "advice": "old-laptop is on Wi-Fi: with a cable this chain would be about 1.4 times as fast",
    }
    return Snapshot(**(fields | changes))  # type: ignore[arg-type]


def request(name: str = "attic", digits: str = "318204", **changes: object) -> JoinRequest:
    fields: dict[str, object] = {
        "id": f"id-{name}",
        "address": "192.168.1.77",
        "confirmed": True,
        "device": "4 cores, 8 GB",
    }
    return JoinRequest(**(fields | {"name": name, "digits": digits} | changes))  # type: ignore[arg-type]


def head(name: str = "anna", **changes: object) -> FoundHead:
    fields: dict[str, object] = {
        "id": f"id-{name}", "address": "192.168.1.20", "port": 47632, "digits": "318204", "state": "ready",
    }  # fmt: skip
    return FoundHead(**(fields | {"name": name} | changes))  # type: ignore[arg-type]


def run(step: int = 412, **changes: object) -> RunState:
    """A run of three nodes as it stands at `step` of 1000; its curves are a formula of the step."""
    marks = sorted({round(step * part / 150) for part in range(1, 151)} - {0}) if step else []
    fields: dict[str, object] = {
        "id": "2026-11-02-digits",
        "name": "digits",
        "phase": "running",
        "folder": "/home/anna/.local/share/daisychain/runs/2026-11-02-digits",
        "spec": RunSpec(job="demo"),
        "step": step,
        "steps": 1000,
        "epoch": min(10, 1 + step // 100),
        "epochs": 10,
        "batch": 1536,
        "elapsed_s": step * 0.094,
        "eta_s": (1000 - step) * 0.094,
        "samples_per_second": 16340.0,
        "step_ms": 94.0,
        "loss": 0.2131,
        "loss_history": tuple((mark, 0.15 + 2.2 * 0.99**mark + 0.03 * ((mark * 7919) % 11) / 11) for mark in marks),
        "step_ms_history": tuple(
            (mark, 91.0 + (mark * 104729) % 13 + (38 if 118 < mark < 131 else 0)) for mark in marks
        ),
        "nodes": (
            NodeStep(node="anna", share=938, compute_ms=61.2, sync_ms=24.1, wait_ms=8.4),
            NodeStep(node="mini-pc", share=438, compute_ms=63.8, sync_ms=24.3, wait_ms=5.2),
            NodeStep(node="old-laptop", share=160, compute_ms=69.0, sync_ms=24.0, wait_ms=0.6),
        ),
        "log": (
            "forecast: 1.58 times the fastest node alone",
            "shares: anna 934, mini-pc 440, old-laptop 162",
            "step 118: old-laptop slowed down, 69 -> 104 ms",
            "step 131: old-laptop is back",
            "new shares: anna 938, mini-pc 438, old-laptop 160",
            "epoch 4 done, loss 0.221",
        ),
    }
    return RunState(**(fields | changes))  # type: ignore[arg-type]


def verdict(node: str, check: str, reason: str, remedy: str = "", level: str = "") -> Verdict:
    """ok without a remedy, a warning with one, unless `level` says so."""
    return Verdict(level=level or ("warn" if remedy else "ok"), check=check, reason=reason, remedy=remedy, node=node)  # type: ignore[arg-type]


def cant_reach(start: Node, end: Node, why: str = "no answer within 3 s") -> Verdict:
    """As agent/preflight.py words it."""
    reason = f"{start.name} ({start.address}) can't reach {end.name} ({end.address}) on a random TCP port: {why}"
    firewalld = f"sudo firewall-cmd --zone=trusted --add-source={start.address}"
    remedy = f"On {end.name} let {start.name} in: sudo ufw allow from {start.address}, or {firewalld}"
    return verdict(end.name, "path", reason, remedy, "refuse")


def examined(
    nodes: tuple[Node, ...] | None = None, *more: Verdict, blocked: tuple[tuple[int, int], ...] = ()
) -> Examined:
    """What a check finds: every node is well but for `more`; blocked: (from, to), positions, that have no way."""
    nodes = three() if nodes is None else nodes
    well = [
        each
        for n in nodes
        for each in (
            msgspec.structs.replace(n.nic_verdict, node=n.name),
            verdict(n.name, "torch", f"{n.name} has torch {n.versions.torch}"),
            verdict(n.name, "disk", f"{n.name} has 41.2 GB of disk space free"),
            verdict(n.name, "memory", f"{n.name} has 6.1 GB of memory free"),
        )
    ]
    ways = [(start, end) for start in range(len(nodes)) for end in range(len(nodes)) if start != end]
    paths = tuple((nodes[a].name, nodes[b].name, "no answer within 3 s" if (a, b) in blocked else "") for a, b in ways)
    shut = [cant_reach(nodes[a], nodes[b]) for a, b in blocked]
    now = Condition(
        clock_s=1.7e9, skew_s=0.2, disk_free_bytes=41_200_000_000, memory_free_bytes=6_100_000_000, busy=0.04
    )
    return Examined(verdicts=(*well, *more, *shut), nodes=nodes, conditions=tuple(now for _ in nodes), paths=paths)


def nics(*names: str) -> Nics:
    """This machine's NICs: eth0, which is chosen, and others that work."""
    every = ("eth0", *names)
    return Nics(
        nics=tuple(
            Nic(name=name, kind="ethernet", addresses=(Address(ip=f"192.168.{at + 1}.20", prefix=24),), mtu=1500)
            for at, name in enumerate(every)
        ),
        verdicts=tuple(OK for _ in every),
        chosen="eth0",
    )


async def settle(pilot: Pilot[None]) -> None:
    """Wait until the app has taken every snapshot that was sent, and has drawn."""
    backend = cast("FakeBackend", cast("DaisyApp", pilot.app).backend)
    ending = time.monotonic() + 10
    while not (backend.idle and backend.queue.empty()) and time.monotonic() < ending:
        await pilot.pause(0.01)
    await pilot.pause(0.05)
    await pilot.pause()


@pytest.fixture
def make() -> SimpleNamespace:
    """The builders above, for tests of this folder."""
    return SimpleNamespace(
        node=node, three=three, world=world, request=request, head=head, run=run, backend=FakeBackend, settle=settle,
        verdict=verdict, cant_reach=cant_reach, examined=examined, nics=nics,
    )  # fmt: skip


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path / "data", tmp_path / "state", tmp_path / "cache")


@pytest.fixture
def app_of(paths: Paths) -> Callable[..., DaisyApp]:
    """Makes an app over a backend; keywords go to DaisyApp, `theme` to its settings."""

    def build(backend: FakeBackend, theme: str = "dark", **keywords: object) -> DaisyApp:
        app = DaisyApp(backend, Settings(theme=theme), paths, **keywords)  # type: ignore[arg-type]
        app.retry_s = 0.02
        return app

    return build
