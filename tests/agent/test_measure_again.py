"""Measuring a node's speed again when a person asks for it: who does it, when not, and what the others are told."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from daisychain.agent import service
from daisychain.agent.headship import Headship
from daisychain.agent.membership import Membership
from daisychain.agent.service import Agent
from daisychain.config import Settings, locate
from daisychain.errors import NoNodeError, UsageError
from daisychain.facts import Capacity, Device, Node, Verdict, Versions
from daisychain.link.messages import Done, Measure

OWN = Node(
    id="id-own", name="own", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    capacity=Capacity(fixed_s=0.001, per_sample_s=0.0001, threads=2, torch="2.9.0"),
)  # fmt: skip
SLOWER = Capacity(fixed_s=0.002, per_sample_s=0.0003, threads=2, torch="2.9.0")


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An agent that listens nowhere; `told` has the records that its head got, `measured` counts the benches."""
    made: Any = Agent(locate({"DAISYCHAIN_HOME": str(tmp_path)}), Settings(), True)
    made.told, made.measured = [], 0

    async def tell_news() -> None:
        made.told.append(made.own)

    async def measure(threads: int, slowdown: float) -> Capacity:
        made.measured += 1
        return SLOWER

    monkeypatch.setattr(service.capacity, "measure", measure)
    made.membership = SimpleNamespace(active=False, tell_news=tell_news, head_name="head")
    made.node_side = SimpleNamespace(busy=False, share=None, threads=2)
    made.headship = SimpleNamespace()
    made._own, made._threads = OWN, 2
    return made


@pytest.mark.parametrize("name", ["", "own", "id-own"])
async def test_it_says_that_it_measures_and_then_what_came_of_it(agent: Any, name: str) -> None:
    for _ in range(2):
        assert await agent._from_local(None, Measure(node=name), 1) == Done()
    assert agent.own.state == "measuring"
    await asyncio.gather(*agent._tasks)
    assert [(node.state, node.capacity) for node in agent.told] == [("measuring", OWN.capacity), ("ready", SLOWER)]
    assert agent.measured == 1
    # what is remembered from the first time doesn't count
    await agent._from_local(None, Measure(), 1)
    await asyncio.gather(*agent._tasks)
    assert agent.measured == 2


async def test_not_while_it_takes_part_in_a_run(agent: Any) -> None:
    agent.node_side.busy = True
    with pytest.raises(UsageError, match="own takes part in a run"):
        await agent._from_local(None, Measure(), 1)
    assert agent.own.state == "running"
    assert not agent._tasks


async def test_a_worker_may_not_ask_it_of_others(agent: Any) -> None:
    agent.membership.active = True
    with pytest.raises(UsageError, match="is a worker of head"):
        await agent._from_local(None, Measure(node="old"), 1)


async def test_a_head_passes_it_on_and_its_worker_does_it(agent: Any) -> None:
    worker: Any = SimpleNamespace(measure_again=lambda: agent.told.append("again"))
    member: Any = SimpleNamespace(_agent=worker)

    class Line:
        async def ask(self, message: Any, timeout_s: float) -> Any:
            return await Membership._from_head(member, None, message, 1)  # type: ignore[arg-type]

    old = msgspec.structs.replace(OWN, id="id-old", name="old", role="worker")
    lost = msgspec.structs.replace(old, id="id-lost", name="lost", state="lost")
    head: Any = SimpleNamespace(nodes=lambda: (OWN, old, lost), _sessions={"id-old": Line()})
    agent.headship = SimpleNamespace(measure=lambda node: Headship.measure(head, node))
    assert await agent._from_local(None, Measure(node="old"), 1) == Done()
    assert agent.told == ["again"]
    for name in ("lost", "nobody"):
        with pytest.raises(NoNodeError, match=name):
            await agent._from_local(None, Measure(node=name), 1)
