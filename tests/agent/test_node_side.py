"""This node's side of runs: what it refuses."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daisychain.agent import node_side, ranks
from daisychain.agent.node_side import NodeSide, with_share
from daisychain.config import Settings, locate
from daisychain.errors import DaisyError
from daisychain.facts import Device, Node, Verdict, Versions
from daisychain.link.messages import (
    Done,
    EndRun,
    FlowSent,
    Listen,
    Listening,
    OrderRank,
    Peer,
    Ping,
    PrepareRun,
    SendFlow,
    StartRank,
)

NODE = Node(
    id="id", name="old", role="worker", state="ready", address="127.0.0.1", port=1, nic="lo",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch=None, os="Debian", os_family="linux"),
)  # fmt: skip


FAKE_RANK = """
import json, sys
task = json.loads(sys.stdin.readline())
say = lambda **facts: print(json.dumps(facts), flush=True)
say(kind="waiting", port=1, generation=0, completed=0, why="")
for line in sys.stdin:
    order = json.loads(line)
    say(kind="obeyed", order=order)
    if order["kind"] == "save":
        sys.exit(0)
    if order["kind"] == "leave":
        with open(task["output"] + "/model.pt", "wb") as stream:
            stream.write(b"weights")
        say(kind="done")
"""


class FakeHead:
    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.seats: list[int] = []

    def sources(self) -> dict[str, Path]:
        return {}

    async def report(self, run: str, seat: int, report: dict[str, Any]) -> None:
        assert run == "one"
        self.seats.append(seat)
        self.reports.append(report)

    async def until(self, kind: str) -> dict[str, Any]:
        for _ in range(1000):
            for report in self.reports:
                if report["kind"] == kind:
                    return report
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {kind} but {self.reports}")

    @property
    def obeyed(self) -> list[str]:
        return [report["order"]["kind"] for report in self.reports if report["kind"] == "obeyed"]


HEAD: Any = FakeHead()


@pytest.fixture
async def side(tmp_path: Path) -> NodeSide:
    return NodeSide(locate({"DAISYCHAIN_HOME": str(tmp_path)}), Settings(), lambda: NODE, 1, lambda: None)


def prepare(run: str) -> PrepareRun:
    return PrepareRun(run=run, files=())


@pytest.mark.parametrize("run", ["", ".", "..", "../x", "a/b", "/tmp/x", ".hidden"])
async def test_a_name_that_leads_elsewhere_is_no_runs_name(side: NodeSide, run: str) -> None:
    with pytest.raises(DaisyError, match="is no run's name"):
        await side.handle(prepare(run), HEAD)
    assert not side.busy


async def test_one_run_at_a_time_until_its_end(side: NodeSide) -> None:
    await side.handle(prepare("one"), HEAD)
    assert side.busy
    with pytest.raises(DaisyError, match="in run one already"):
        await side.handle(prepare("two"), HEAD)
    assert await side.handle(EndRun(run="another", reason=""), HEAD) == Done()
    assert side.busy
    assert await side.handle(EndRun(run="one", reason=""), HEAD) == Done()
    assert not side.busy
    await side.handle(prepare("two"), HEAD)
    await asyncio.wait_for(side.end(), 5)
    assert not side.busy


async def test_a_rank_of_a_run_that_was_not_prepared_is_refused(side: NodeSide) -> None:
    message = StartRank(run="one", seat=0, names=("old",), script="x.py", args=(), settings={})
    with pytest.raises(DaisyError, match="run one was not prepared on this node"):
        await side.handle(message, HEAD)
    with pytest.raises(DaisyError, match="run one was not prepared on this node"):
        await side.handle(OrderRank(run="one", seat=4, order={"kind": "leave"}), HEAD)


async def test_other_messages_are_no_orders(side: NodeSide) -> None:
    with pytest.raises(DaisyError, match="Ping is not an order"):
        await side.handle(Ping(), HEAD)


# --- a rank that runs -------------------------------------------------------------------------------------------


@pytest.fixture
async def running(side: NodeSide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeHead]:
    """The head of a run whose rank waits on this side."""
    (tmp_path / "fake_rank.py").write_text(FAKE_RANK, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(ranks, "RANK_MODULE", "fake_rank")
    head = FakeHead()
    link: Any = head
    assert not side.waiting_run
    await side.handle(prepare("one"), link)
    start = StartRank(run="one", seat=4, names=("old",), script="x.py", args=(), settings={})
    assert await side.handle(start, link) == Done()
    await head.until("waiting")
    yield head
    await side.end()


async def test_orders_and_reports_go_through(side: NodeSide, running: FakeHead) -> None:
    assert side.waiting_run == "one"
    link: Any = running
    assert await side.handle(OrderRank(run="one", seat=4, order={"kind": "boundary", "generation": 1}), link) == Done()
    assert (await running.until("obeyed"))["order"] == {"kind": "boundary", "generation": 1}


async def test_a_machine_is_kept_awake_from_its_first_rank_to_the_runs_end(
    side: NodeSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    side._awake = FakeAwake(done)  # type: ignore[assignment]
    await side.handle(prepare("one"), HEAD)
    assert done == []
    monkeypatch.setattr(ranks, "RANK_MODULE", "no_such_module")
    start = StartRank(run="one", seat=4, names=("head", "old"), script="x.py", args=(), settings={})
    await side.handle(start, HEAD)
    assert done == ["hold"]
    await side.end("one")
    assert done == ["hold", "release"]


class FakeAwake:
    def __init__(self, done: list[str]) -> None:
        self.hold = lambda: done.append("hold")
        self.release = lambda: done.append("release")


async def test_a_note_about_the_node_reaches_the_head_as_its_ranks(side: NodeSide, running: FakeHead) -> None:
    await side.note("it is hot")
    assert {"kind": "note", "text": "it is hot"} in running.reports
    assert running.seats[-1] == 4
    state = side.state()
    assert state is not None
    assert any("it is hot" in line for line in state.log)
    await side.end()
    told = len(running.reports)
    await side.note("it is cool")
    assert len(running.reports) == told


async def test_what_a_rank_leaves_is_sent_before_it_is_done(side: NodeSide, running: FakeHead) -> None:
    link: Any = running
    await side.handle(OrderRank(run="one", seat=4, order={"kind": "leave"}), link)
    await running.until("done")
    kinds = [report["kind"] for report in running.reports]
    assert kinds.index("output") < kinds.index("done")
    output = await running.until("output")
    assert (output["path"], base64.b64decode(output["data"])) == ("model.pt", b"weights")


async def test_without_a_head_the_rank_lets_go_and_saves_and_ends(
    side: NodeSide, running: FakeHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_side, "GONE_HEAD_S", 0.1)
    side.head_is_gone(silent=False)
    side.head_is_gone(silent=False)
    while side.busy:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert running.obeyed == ["break", "save"]
    assert not side.waiting_run


async def test_a_silent_head_is_waited_for_longer_and_hears_again_what_it_missed(
    side: NodeSide, running: FakeHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_side, "GONE_HEAD_S", 0.0)
    side.head_is_gone(silent=True)
    await running.until("obeyed")
    again = FakeHead()
    link: Any = again
    await side.head_is_back(link)
    assert [report["kind"] for report in again.reports] == ["waiting"]
    assert side.waiting_run == "one"
    await side.handle(OrderRank(run="one", seat=4, order={"kind": "boundary", "generation": 1}), link)
    assert (await again.until("obeyed"))["order"]["kind"] == "boundary"


async def test_a_head_that_is_back_hears_of_every_rank_that_waits_here(side: NodeSide, running: FakeHead) -> None:
    link: Any = running
    second = StartRank(
        run="one", seat=5, names=("old:0", "old:1"), devices=("cpu", "cpu"), place=1, script="x.py", args=(),
        settings={},
    )  # fmt: skip
    await side.handle(second, link)
    while running.seats.count(5) < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert set(running.seats) == {4, 5}
    assert side.waiting_seats == (4, 5)
    side.head_is_gone(silent=True)
    while len(running.obeyed) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    again = FakeHead()
    returned: Any = again
    await side.head_is_back(returned)
    assert [(seat, report["kind"]) for seat, report in zip(again.seats, again.reports, strict=True)] == [
        (4, "waiting"), (5, "waiting")
    ]  # fmt: skip


async def test_a_nodes_share_is_that_of_its_ranks_together(side: NodeSide) -> None:
    for seat, share in ((4, 30), (5, 20), (4, 31)):
        side._follow(seat, {"kind": "step", "share": share})
    assert side.share == 51
    side._follow(5, {"kind": "steps", "steps": [{"kind": "step", "share": share, "ago_ms": 3.0} for share in (7, 8)]})
    assert side.share == 39
    side._follow(5, {"kind": "exit", "code": -9})
    assert side.share == 31
    side._follow(4, {"kind": "exit", "code": 0})
    assert side.share is None


async def test_a_head_that_comes_back_to_an_idle_node_hears_nothing(side: NodeSide) -> None:
    again = FakeHead()
    link: Any = again
    side.head_is_gone(silent=True)
    await side.head_is_back(link)
    assert again.reports == []


async def test_a_rank_that_ended_meanwhile_does_not_wait(side: NodeSide, running: FakeHead) -> None:
    link: Any = running
    await side.handle(OrderRank(run="one", seat=4, order={"kind": "save"}), link)
    await running.until("exit")
    assert side.waiting_run == ""
    again = FakeHead()
    back: Any = again
    await side.head_is_back(back)
    assert again.reports == []


def test_a_share_is_put_on_the_nodes_record() -> None:
    assert with_share(NODE, None) is NODE
    assert with_share(NODE, 3).share == 3


async def test_what_flows_to_a_listening_node_is_measured(side: NodeSide) -> None:
    await side.handle(prepare("one"), HEAD)
    heard = await side.handle(Listen(run="one"), HEAD)
    assert isinstance(heard, Listening)
    sent = await side.handle(SendFlow(run="one", peer=Peer("old", "127.0.0.1", heard.port)), HEAD)
    assert isinstance(sent, FlowSent)
    assert sent.bytes_per_s
    assert sent.latency_s
    await side.end()
    assert await side.handle(SendFlow(run="one", peer=Peer("old", "127.0.0.1", heard.port)), HEAD) == FlowSent()
