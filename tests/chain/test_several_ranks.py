"""Several ranks on a node: each has its own share, log and checkpoints; one that is killed costs no other."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(240)]
SEATS = ("head:0", "head:1", "old:0", "old:1")


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """Two hosts, joined and measured."""
    made = make_chain("head:cpu=100", "old:cpu=100")
    assert made.on("old", "join", made.head, "--token", made.invite(), "--headless").exit == 0
    made.wait_for("ready", within_s=100)
    return made


def ranks_of(chain: Any, host: str) -> list[int]:
    return sorted(pid for pid, words in chain.lan[host].commands().items() if "train.rank" in words)


def test_two_ranks_a_node_train_as_one_machine_and_are_lost_and_come_back_one_by_one(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 40, "--ranks", "2")
    run.reach(10)
    assert sorted(run.members) == list(SEATS)
    assert [len(ranks_of(chain, host)) for host in ("head", "old")] == [2, 2]
    last = run.lines("metrics.jsonl")[-1]
    assert set(last["nodes"]) == set(SEATS)
    assert sum(part["share"] for part in last["nodes"].values()) == last["batch"]
    together = {name: node["share"] for name, node in chain.nodes().items()}
    assert set(together) == {"head", "old"}
    assert sum(together.values()) in (96, 40)

    pid = ranks_of(chain, "old")[-1]
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGKILL)) < 2
    assert len(run.members) == 3
    assert {"head:0", "head:1"} <= set(run.members)
    run.wait_for_members(*SEATS, within_s=60)
    run.finish(40, undisturbed(40))
    assert {"rank-0.log", "rank-1.log"} <= {file.name for file in run.folder.iterdir()}


def test_a_lost_node_takes_all_its_ranks_along(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 40, "--ranks", "2")
    run.reach(10)
    agent = chain.agent_pid("old")
    assert run.next_step_after(lambda: os.kill(agent, signal.SIGKILL)) < 2
    assert sorted(run.members) == ["head:0", "head:1"]
    assert chain.on("old", "join", "--headless").exit == 0
    run.wait_for_members(*SEATS, within_s=90)
    run.finish(40, undisturbed(40))
    chain.wait_for("ready", within_s=100)


def test_one_machine_alone_may_have_several(chain: Any) -> None:
    words = ("--ranks", "3", "--nodes", "head", "--headless", "--json", "--", "1", "0")
    said = chain.on("head", "run", chain.script(), *words, timeout=120)
    assert said.exit == 0, said.err
    assert said.last["steps"] == 11
