"""Pausing a run, and owners who take their machines back while it goes on. Real processes on a pretend LAN."""

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(240)]

EPOCHS = 40


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """Two hosts, joined and measured."""
    made = make_chain("head:cpu=100", "old:cpu=80")
    token = made.invite()
    assert made.on("old", "join", made.head, "--token", token, "--headless").exit == 0
    made.wait_for("ready", within_s=100)
    return made


def say(chain: Any, host: str, *words: str) -> dict[str, Any]:
    """The JSON event of a command that went well."""
    said = chain.on(host, *words, "--json")
    assert said.exit == 0, said.err
    return dict(said.last)


def told(run: Any, *names: str) -> list[dict[str, Any]]:
    return [line for line in run.lines("events.jsonl") if line["event"] in names]


def cpu_s(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def next_step(run: Any, begun: float) -> float:
    """Seconds from `begun` until one more step is applied."""
    seen = run.steps
    while run.steps == seen:
        assert time.monotonic() < begun + 20, run.said()
        time.sleep(0.01)
    return time.monotonic() - begun


def test_a_paused_run_stands_burns_nothing_and_goes_on_to_the_same_model(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, EPOCHS)
    run.reach(10)
    assert say(chain, "head", "pause")["event"] == "paused"
    time.sleep(2)
    stood = run.steps
    ranks = [pid for pid, words in chain.ranks().items() if "train.rank" in words]
    assert len(ranks) == 2
    before, begun = cpu_s(ranks), time.monotonic()
    time.sleep(4)
    assert (cpu_s(ranks) - before) / (time.monotonic() - begun) < 0.01 * len(ranks)
    assert run.steps == stood
    status = say(chain, "head", "status")["run"]
    assert (status["phase"], status["paused"], status["step"]) == ("running", True, stood)
    assert say(chain, "head", "pause")["event"] == "paused"
    assert say(chain, "head", "resume")["event"] == "resumed"
    assert next_step(run, time.monotonic()) < 2
    run.finish(EPOCHS, undisturbed(EPOCHS))
    assert [line["event"] for line in told(run, "paused", "resumed")] == ["paused", "resumed"]
    assert chain.on("head", "pause").reason == "daisychain: no run is going on"


def test_a_worker_takes_its_machine_back_and_gives_it_back(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, EPOCHS)
    run.reach(10)
    assert say(chain, "old", "pause")["event"] == "lent"
    begun = time.monotonic()
    run.wait_for_members("head", within_s=2)
    assert next_step(run, begun) < 2
    assert chain.nodes()["old"]["lent"]
    assert chain.nodes()["old"]["share"] is None
    rank = [pid for pid, words in chain.lan["old"].commands().items() if "train.rank" in words]
    before, begun = cpu_s(rank), time.monotonic()
    time.sleep(3)
    assert (cpu_s(rank) - before) / (time.monotonic() - begun) < 0.01
    assert run.members == ["head"]
    assert say(chain, "old", "resume")["event"] == "given_back"
    run.wait_for_members("head", "old", within_s=5)
    run.finish(EPOCHS, undisturbed(EPOCHS))
    assert [(line["event"], line["node"]) for line in told(run, "lent", "given_back")] == [
        ("lent", "old"), ("given_back", "old")
    ]  # fmt: skip


def test_a_machine_taken_back_while_its_cable_is_out_stays_out_to_the_end(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, EPOCHS)
    run.reach(10)
    assert run.next_step_after(chain.lan["old"].cut) < 8
    assert say(chain, "old", "pause")["event"] == "lent"
    chain.lan["old"].mend()
    chain.until(lambda: any("old is back" in line for line in chain_log(chain, run)), 20, run.said)
    chain.until(lambda: bool(told(run, "lent")), 5, run.said)
    time.sleep(1)
    assert run.members == ["head"]
    run.finish(EPOCHS, undisturbed(EPOCHS))
    say(chain, "old", "resume")


def test_a_head_lends_its_own_machine_and_leads_on(
    chain: Any, begin: Callable[..., Any], undisturbed: Callable[..., Any]
) -> None:
    run = begin(chain, EPOCHS)
    run.reach(10)
    assert say(chain, "head", "pause", "--here")["event"] == "lent"
    run.wait_for_members("old", within_s=2)
    seen = run.steps
    run.reach(seen + 3, within_s=10)
    say(chain, "old", "pause")
    chain.until(lambda: "every node is used" in run.process.out.read_text(), 5, run.said)
    say(chain, "old", "resume")
    run.wait_for_members("old", within_s=5)
    say(chain, "head", "resume", "--here")
    run.wait_for_members("head", "old", within_s=5)
    run.finish(EPOCHS, undisturbed(EPOCHS))


def chain_log(chain: Any, run: Any) -> list[str]:
    return [line for line in run.process.out.read_text().splitlines() if '"log"' in line]
