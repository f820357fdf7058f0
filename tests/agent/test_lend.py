"""A run that is paused, and nodes whose owners use them: what the conductor does, what the screens are told."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from daisychain.agent import conductor, service
from daisychain.agent.chain import Chain, advice
from daisychain.agent.conductor import Conductor
from daisychain.agent.node_side import NodeSide
from daisychain.agent.service import Agent
from daisychain.config import Settings, locate
from daisychain.facts import Capacity, Device, Node, RunSpec, Verdict, Versions
from daisychain.link.messages import (
    AnyMessage,
    Done,
    Lend,
    Listen,
    Listening,
    Message,
    OrderRank,
    PathsTried,
    PrepareRun,
    StartRank,
    TryPaths,
)

HEAD = Node(
    id="id-head", name="head", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    capacity=Capacity(fixed_s=0.001, per_sample_s=0.0001, threads=2, torch="2.9.0"),
)  # fmt: skip
OLD = msgspec.structs.replace(HEAD, id="id-old", name="old", role="worker", address="10.0.0.2")
USED = msgspec.structs.replace(OLD, lent=True)


class FakeSeat:
    """A node that does everything it is asked."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        self.asked.append(message)
        match message:
            case Listen():
                return Listening(port=5000)
            case TryPaths(peers=peers):
                return PathsTried(reasons=("",) * len(peers))
            case _:
                return Done()

    def orders(self, kind: str) -> list[dict[str, Any]]:
        return [m.order for m in self.asked if isinstance(m, OrderRank) and m.order["kind"] == kind]

    @property
    def started(self) -> bool:
        return any(isinstance(message, StartRank) for message in self.asked)


class Stage:
    """A run of head and old, with ranks that are played by hand."""

    def __init__(self, tmp_path: Path, old: Node) -> None:
        script = tmp_path / "job" / "train.py"
        script.parent.mkdir()
        script.write_text("pass\n", encoding="utf-8")
        self.now = 0.0
        self.seats = {"head": FakeSeat(), "old": FakeSeat()}
        self.run = Conductor(
            head="head", spec=RunSpec(job="script", path=str(script)),
            paths=locate({"DAISYCHAIN_HOME": str(tmp_path / "home")}), settings=Settings(),
            clock=lambda: self.now, changed=lambda: None,
        )  # fmt: skip
        nodes = [(HEAD, self.seats["head"]), (old, self.seats["old"])]
        self.driving = asyncio.ensure_future(self.run.drive(lambda: nodes))

    async def until(self, true: Any) -> None:
        for _ in range(500):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError({name: seat.asked for name, seat in self.seats.items()})

    async def wait(self, *seats: int, generation: int = 0) -> None:
        """These ranks say that they are ready, having ended a generation between two steps."""
        for seat in seats:
            facts = {"port": 4240 + seat, "generation": generation, "completed": 0, "why": ""}
            await self.run.report(seat, {"kind": "waiting", **facts})

    async def formed(self, seat: str, number: int) -> list[str]:
        """The names of the generation with this number, once the seat is told of it."""

        def found() -> list[list[str]]:
            formations = [order["formation"] for order in self.seats[seat].orders("form")]
            return [list(formation["names"]) for formation in formations if formation["generation"] == number]

        await self.until(found)
        return found()[0]

    def events(self) -> list[str]:
        text = (self.run.folder.path / "events.jsonl").read_text(encoding="utf-8")
        told = [json.loads(line) for line in text.splitlines()]
        wanted = ("paused", "resumed", "lent", "given_back")
        return [f"{e['event']} {e.get('node', '')}".strip() for e in told if e["event"] in wanted]


@pytest.fixture
async def stage(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    """A run at its very begin; parametrize indirectly for another record of old."""
    monkeypatch.setattr(conductor, "TICK_S", 0.01)
    made = Stage(tmp_path, getattr(request, "param", OLD))
    yield made
    made.run.stop()
    await asyncio.wait_for(made.driving, 5)


async def train(stage: Stage) -> None:
    """Both are in generation 1."""
    await stage.until(lambda: all(seat.started for seat in stage.seats.values()))
    await stage.wait(0, 1)
    assert await stage.formed("old", 1) == ["head", "old"]


async def test_a_pause_ends_the_generation_between_two_steps_and_resuming_forms_the_next(stage: Stage) -> None:
    await train(stage)
    stage.run.pause(True)
    stage.run.pause(True)
    await stage.until(lambda: all(seat.orders("boundary") for seat in stage.seats.values()))
    await stage.wait(0, 1, generation=1)
    await asyncio.sleep(0.05)
    assert [len(seat.orders("form")) for seat in stage.seats.values()] == [1, 1]
    assert stage.run.state().paused
    stage.run.pause(False)
    assert await stage.formed("old", 2) == ["head", "old"]
    assert not stage.run.state().paused
    assert stage.events() == ["paused", "resumed"]
    log = " ".join(stage.run.state().log)
    assert log.index("paused by its user") < log.index("resumed")


async def test_a_run_paused_before_its_ranks_are_ready_waits_with_them(stage: Stage) -> None:
    stage.run.pause(True)
    await stage.until(lambda: all(seat.started for seat in stage.seats.values()))
    await stage.wait(0, 1)
    await asyncio.sleep(0.05)
    assert not stage.seats["head"].orders("form")
    stage.run.pause(False)
    assert await stage.formed("head", 1) == ["head", "old"]


async def test_the_others_go_on_without_a_node_that_its_owner_uses_until_it_is_given_back(stage: Stage) -> None:
    await train(stage)
    stage.run.lend(USED)
    stage.run.lend(USED)
    assert stage.run.state().lent == ("old",)
    await stage.until(lambda: all(seat.orders("boundary") for seat in stage.seats.values()))
    await stage.wait(0, 1, generation=1)
    assert await stage.formed("head", 2) == ["head"]
    stage.run.lend(OLD)
    await stage.until(lambda: len(stage.seats["head"].orders("boundary")) == 2)
    await stage.wait(0, generation=2)
    assert await stage.formed("old", 3) == ["head", "old"]
    assert stage.run.state().lent == ()
    assert stage.events() == ["lent old", "given_back old"]
    assert any("old: its owner uses it" in line for line in stage.run.state().log)


@pytest.mark.parametrize("stage", [USED], indirect=True)
async def test_a_node_in_use_at_the_launch_gets_the_files_and_no_rank_before_it_is_given_back(stage: Stage) -> None:
    await stage.until(lambda: stage.seats["head"].started)
    await stage.wait(0)
    assert await stage.formed("head", 1) == ["head"]
    assert any(isinstance(message, PrepareRun) for message in stage.seats["old"].asked)
    assert not stage.seats["old"].started
    stage.run.lend(OLD)
    await stage.until(lambda: stage.seats["old"].started)
    assert stage.events() == ["lent old", "given_back old"]


async def test_with_every_node_in_use_the_run_says_that_it_waits(stage: Stage) -> None:
    await train(stage)
    stage.run.lend(USED)
    stage.run.lend(msgspec.structs.replace(HEAD, lent=True))
    await stage.wait(0, 1, generation=1)
    assert stage.run.state().detail.startswith("every node is used by its owner")
    stage.run.lend(HEAD)
    assert await stage.formed("head", 2) == ["head"]
    assert not stage.run.state().detail.startswith("every")


async def test_a_stranger_in_use_is_no_matter_of_the_run(stage: Stage) -> None:
    await train(stage)
    stage.run.lend(msgspec.structs.replace(USED, id="id-new", name="new", address="10.0.0.77"))
    assert stage.run.state().lent == ()
    assert stage.events() == []


async def test_a_new_node_in_use_gets_a_seat_and_no_rank_before_it_is_given_back(stage: Stage) -> None:
    await train(stage)
    new, seat = msgspec.structs.replace(USED, id="id-new", name="new", address="10.0.0.3"), FakeSeat()
    stage.run.news(new, seat)
    await asyncio.sleep(0.05)
    assert stage.run.state().lent == ("new",)
    assert not seat.started
    stage.run.lend(msgspec.structs.replace(new, lent=False))
    await stage.until(lambda: seat.started)


@pytest.fixture
async def agent(tmp_path: Path) -> Any:
    """An agent of a worker that listens nowhere; `told` has the records that its head got."""
    made: Any = Agent(locate({"DAISYCHAIN_HOME": str(tmp_path)}), Settings(lend_when_used=True), True)
    made.told = []

    async def tell_news() -> None:
        made.told.append(made.own)

    made.membership = SimpleNamespace(active=True, tell_news=tell_news)
    made.node_side = SimpleNamespace(busy=True, share=7)
    made.headship = SimpleNamespace(lend=made.told.append)
    made._own = OLD
    return made


@pytest.mark.parametrize("worker", [True, False])
async def test_whoever_leads_is_told_when_the_owner_takes_it_and_gives_it_back(agent: Any, worker: bool) -> None:
    agent.membership.active = worker
    for lent in (True, True, False):
        assert await agent._from_local(None, Lend(lent=lent), 1) == Done()
    assert [(node.lent, node.share) for node in agent.told] == [(True, None), (False, 7)]


async def test_an_agent_that_may_look_sees_its_owner_come_and_go(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    idle_s = iter([400.0, 2.0, None, 3.0, 301.0])
    over = asyncio.Event()

    def read() -> float | None:
        try:
            return next(idle_s)
        except StopIteration:
            over.set()
            return 999.0

    monkeypatch.setattr(service.idle, "read_idle_s", read)
    monkeypatch.setattr(service, "LOOK_FOR_OWNER_S", 0.0)
    looking = asyncio.ensure_future(agent._watch_owner())
    await asyncio.wait_for(over.wait(), 5)
    looking.cancel()
    assert [node.lent for node in agent.told] == [True, False, True, False]


def test_a_lost_node_is_known_to_be_in_use_still_and_the_advice_says_so() -> None:
    chain = Chain().arrived(USED, 1.0)
    assert "old: in use by its owner" in advice(chain.nodes(HEAD), 0)
    gone = chain.gone("id-old", 2.0, "cut off").nodes(HEAD)
    assert gone[1].lent
    assert "can't be reached" in advice(gone, 0)


async def test_a_workers_own_view_of_a_run_says_that_it_is_in_use_while_it_is_in_it(tmp_path: Path) -> None:
    own = [OLD]
    side = NodeSide(locate({"DAISYCHAIN_HOME": str(tmp_path)}), Settings(), lambda: own[0], 1, lambda: None)
    assert side.state() is None
    head: Any = type("Head", (), {"sources": lambda _: {}})()
    await side.handle(PrepareRun(run="one", files=()), head)
    own[0] = USED
    state = side.state()
    assert state is not None
    assert state.lent == ("old",)
    await side.end()
    ended = side.state()
    assert ended is not None
    assert ended.lent == ()
