"""This node's side of runs: what it refuses."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from daisychain.agent.node_side import NodeSide, with_share
from daisychain.config import Settings, locate
from daisychain.errors import DaisyError
from daisychain.facts import Device, Node, Verdict, Versions
from daisychain.link.messages import Done, EndRun, Ping, PrepareRun, StartRank

NODE = Node(
    id="id", name="old", role="worker", state="ready", address="127.0.0.1", port=1, nic="lo",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch=None, os="Debian", os_family="linux"),
)  # fmt: skip


class FakeHead:
    def sources(self) -> dict[str, Path]:
        return {}


HEAD: Any = FakeHead()


@pytest.fixture
async def side(tmp_path: Path) -> NodeSide:
    return NodeSide(locate({"DAISYCHAIN_HOME": str(tmp_path)}), Settings(), lambda: NODE, 1, lambda: None)


def prepare(run: str) -> PrepareRun:
    return PrepareRun(run=run, files=(), serve_store=False)


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
    message = StartRank(
        run="one", generation=1, rank=0, world_size=1, master_address="", master_port=0, names=("old",), speeds=(),
        script="x.py", args=(), settings={},
    )  # fmt: skip
    with pytest.raises(DaisyError, match="run one was not prepared on this node"):
        await side.handle(message, HEAD)


async def test_other_messages_are_no_orders(side: NodeSide) -> None:
    with pytest.raises(DaisyError, match="Ping is not an order"):
        await side.handle(Ping(), HEAD)


def test_a_share_is_put_on_the_nodes_record() -> None:
    assert with_share(NODE, None) is NODE
    assert with_share(NODE, 3).share == 3
