"""A machine that gets hot during a run says so, once, and says when it has cooled down."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daisychain.agent import service
from daisychain.agent.heat import Heat
from daisychain.agent.service import Agent
from daisychain.config import Settings, locate
from daisychain.facts import Device, Node, Verdict, Versions


def test_it_is_hot_from_near_the_limit_on_until_it_has_cooled_well_below() -> None:
    heat, hot = Heat(), []
    for now_c in (60.0, 94.0, 95.0, 99.0, 86.0, 84.9, 94.0, 100.0):
        heat = heat.seen(now_c, 100.0)
        hot.append(heat.hot)
    assert hot == [False, False, True, True, True, False, False, True]


def test_nothing_new_is_the_very_same() -> None:
    heat = Heat().seen(97.0, 100.0)
    assert heat.seen(99.0, 100.0) is heat
    assert heat.detail == "hot: 97 °C, of 100 °C at most"
    assert "slows down, and its share follows" in heat.news
    cool = heat.seen(70.4, 100.0)
    assert (cool.detail, cool.news) == ("", "its processor has cooled down to 70 °C")


def test_what_has_no_sensor_is_never_hot() -> None:
    heat = Heat()
    assert heat.seen(None, None) is heat
    assert Heat(True, 97.0, 100.0).seen(None, None).news == "its processor has cooled down"


async def test_an_agent_looks_during_runs_only_and_tells_head_screen_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent: Any = Agent(locate({"DAISYCHAIN_HOME": str(tmp_path)}), Settings(), True)
    looks = iter([(60.0, 100.0), (97.0, 100.0), (98.0, 100.0), (70.0, 100.0)])
    told: list[tuple[bool, str]] = []
    notes: list[str] = []
    over = asyncio.Event()

    def read() -> tuple[float, float]:
        assert agent.node_side.busy or agent.own.hot
        try:
            return next(looks)
        except StopIteration:
            over.set()
            return 60.0, 100.0

    async def note(text: str) -> None:
        notes.append(text)

    async def tell_news() -> None:
        told.append((agent.own.hot, agent.own.detail))
        # the run ends while it is hot: it is looked at all the same
        agent.node_side.busy = False

    agent._own = Node(
        id="id", name="old", role="worker", state="ready", address="10.0.0.2", port=1, nic="eth0",
        nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
        device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
        versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    )  # fmt: skip
    agent.membership = SimpleNamespace(active=True, tell_news=tell_news)
    agent.node_side = SimpleNamespace(busy=True, share=None, note=note)
    monkeypatch.setattr(service, "LOOK_FOR_HEAT_S", 0.001)
    monkeypatch.setattr(service, "read_heat", read)
    looking = asyncio.ensure_future(agent._watch_heat())
    while len(told) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    assert not over.is_set(), "no run, not hot: no look"
    agent.node_side.busy = True
    await asyncio.wait_for(over.wait(), 5)
    looking.cancel()
    assert told == [(True, "hot: 97 °C, of 100 °C at most"), (False, "")]
    assert len(notes) == 2
