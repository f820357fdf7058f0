"""Losing nodes in the middle of a run: killed, frozen, cut off; and the head itself. Real processes."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """Three hosts, joined and measured."""
    made = make_chain("head:cpu=90", "mid:cpu=60:nic=enp3s0", "old:cpu=50")
    made.join_all()
    return made


def rank_of(chain: Any, host: str) -> int:
    return next(pid for pid, words in chain.lan[host].commands().items() if "train.rank" in words)


def test_a_killed_rank_costs_a_second_and_comes_back(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 40)
    run.reach(10)
    pid = rank_of(chain, "mid")
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGKILL)) < 1
    assert sorted(run.members) == ["head", "old"]
    run.wait_for_members("head", "mid", "old", within_s=30)
    pid = rank_of(chain, "head")
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGKILL)) < 1
    run.finish(40, undisturbed(40))


def test_a_killed_agent_takes_its_rank_along_and_both_come_back(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 60)
    run.reach(10)
    agent = chain.agent_pid("old")
    assert run.next_step_after(lambda: os.kill(agent, signal.SIGKILL)) < 1
    assert sorted(run.members) == ["head", "mid"]
    assert chain.on("old", "join", "--headless").exit == 0
    run.wait_for_members("head", "mid", "old", within_s=60)
    both = (chain.agent_pid("mid"), rank_of(chain, "mid"))
    assert run.next_step_after(lambda: [os.kill(pid, signal.SIGKILL) for pid in both]) < 1
    assert chain.on("mid", "join", "--headless").exit == 0
    run.finish(60, undisturbed(60))
    chain.wait_for("ready", within_s=100)


def test_a_frozen_rank_is_left_behind_and_goes_on_where_the_others_are(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 30)
    run.reach(10)
    pid = rank_of(chain, "old")
    assert run.next_step_after(lambda: os.kill(pid, signal.SIGSTOP)) < 8
    assert sorted(run.members) == ["head", "mid"]
    os.kill(pid, signal.SIGCONT)
    run.wait_for_members("head", "mid", "old", within_s=5)
    run.finish(30, undisturbed(30))


def test_a_pulled_cable_is_noticed_and_the_node_is_in_again_once_it_is_back(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 40)
    run.reach(10)
    assert run.next_step_after(chain.lan["mid"].cut) < 8
    assert sorted(run.members) == ["head", "old"]
    chain.lan["mid"].mend()
    run.wait_for_members("head", "mid", "old", within_s=5)
    run.finish(40, undisturbed(40))
    chain.wait_for("ready", within_s=20)


def test_when_the_head_is_killed_the_workers_stop_and_two_nodes_resume_at_the_very_sample(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, 20)
    run.reach(30)
    for pid in (chain.agent_pid("head"), rank_of(chain, "head")):
        os.kill(pid, signal.SIGKILL)
    chain.until(lambda: not chain.ranks("mid") and not chain.ranks("old"), 10, chain.ranks)
    assert run.process.wait(30) != 0
    reached = run.steps
    run.hurry()
    said = chain.on("head", "status")
    assert said.exit == 0, (chain.lan["head"].home / ".local/state/daisychain/agent.log").read_text()
    chain.wait_for("ready", within_s=30)
    chain.until(lambda: chain.nodes()["old"]["state"] == "ready", 20)
    said = chain.on(
        "head", "run", "--resume", run.folder.name, "--nodes", "head,old", "--headless", "--json", timeout=90
    )
    assert said.exit == 0, said.err
    steps = [line["step"] for line in run.lines("metrics.jsonl")]
    assert steps[-1] == 20 * run.STEPS
    assert reached - 2 <= steps[reached] - 1 <= reached + 2
    run.check(20, undisturbed(20))
