"""Three unequal machines: joining, being lost and coming back, a script, a table."""

import json
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lan, pytest.mark.torch, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def chain(make_chain: Callable[..., Any]) -> Any:
    """Three hosts; joined once for the whole module."""
    made = make_chain("head:cpu=80", "mid:cpu=40:nic=enp3s0", "old:cpu=20")
    token = made.invite("--uses", "2")
    seen = {}
    for name in made.workers:
        said = made.on(name, "join", made.head, "--token", token, "--headless")
        assert said.exit == 0, said.err
        seen[name] = made.nodes()
    made.seen = seen
    return made


@pytest.fixture
def ready(chain: Any) -> Any:
    """The chain once every node has measured its speed."""
    chain.wait_for("ready", within_s=100)
    return chain


def test_a_worker_is_listed_as_soon_as_it_has_joined(chain: Any) -> None:
    for name, nodes in chain.seen.items():
        assert nodes[name]["state"] in ("measuring", "ready")
        assert nodes[name]["role"] == "worker"
    assert chain.seen["old"]["head"]["role"] == "head"


def test_every_node_is_measured_and_known_by_its_own_nic(ready: Any) -> None:
    nodes = ready.nodes()
    assert {name: node["nic"] for name, node in nodes.items()} == {"head": "eth0", "mid": "enp3s0", "old": "eth0"}
    assert {name: node["address"] for name, node in nodes.items()} == {h.name: h.address for h in ready.lan}
    assert len({node["id"] for node in nodes.values()}) == 3
    assert all(node["capacity"] > 0 for node in nodes.values())
    # old has a quarter of head's time; mid lies between, but too near for a busy test machine
    assert ready.lan.without or nodes["head"]["capacity"] > nodes["old"]["capacity"]


def test_a_script_runs_over_all_three(ready: Any, metrics: Callable[..., Any]) -> None:
    said = ready.on("head", "run", ready.script(), "--anyway", "--headless", "--json", "--", "3", "0", timeout=120)
    assert said.exit == 0, said.err
    assert said.last["event"] == "finished"
    assert said.last["exit"] == 0
    steps = 3 * math.ceil(1000 / 96)
    lines = metrics(said.last["folder"])
    assert said.last["steps"] == len(lines) == steps
    assert [line["step"] - lines[0]["step"] for line in lines] == list(range(steps))
    for line in lines:
        assert sum(part["share"] for part in line["nodes"].values()) == line["batch"]
        assert set(line["nodes"]) == {"head", "mid", "old"}
    # every sample once an epoch: ten whole batches and what is left
    assert [line["batch"] for line in lines] == ([96] * 10 + [40]) * 3
    assert lines[-1]["loss"] < lines[0]["loss"]
    # what is found out before the first step, but for the time that ranks take to load torch
    at = {event["event"]: event["time"] for event in map(json.loads, events_of(said.last["folder"]).splitlines())}
    assert at["network"] + at["forecast"] - at["generation"] < 10
    assert {"run.toml", "metrics.jsonl", "events.jsonl", "report.json", "report.md"} <= {
        file.name for file in Path(said.last["folder"]).iterdir()
    }


def test_a_table_is_learnt_as_well_by_three_as_by_one(ready: Any) -> None:
    file = ready.write("late.csv", table(3000))
    words = ("run", "tabular", file, "--target", "late", "--anyway", "--seed", "1", "--batch", "256", "--epochs", "3")
    together = ready.on("head", *words, "--headless", "--json", timeout=120)
    assert together.exit == 0, together.err
    alone = ready.on("head", *words, "--nodes", "head", "--headless", "--json", timeout=120)
    assert alone.exit == 0, alone.err
    three, one = together.last["scores"], alone.last["scores"]
    assert abs(three["log_loss"] - one["log_loss"]) <= 0.003
    assert abs(three["auc"] - one["auc"]) <= 0.005
    # and it learnt something: the same scores could be two untrained models'
    assert one["log_loss"] < one["baseline"]["log_loss"] - 0.02
    report = json.loads((Path(together.last["folder"]) / "report.json").read_text())
    assert report["scores"] == three
    said = ready.on("head", "predict", together.last["folder"], file, "-o", f"{file}.out", timeout=90)
    assert said.exit == 0, said.err
    assert len(Path(f"{file}.out").read_text().splitlines()) == 3001


def test_a_killed_agent_is_lost_and_comes_back_without_a_token(ready: Any) -> None:
    pid = ready.agent_pid("mid")
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    ready.wait_for("lost", "mid", within_s=10)
    assert time.monotonic() - killed < 10
    said = ready.on("mid", "join", "--headless")
    assert said.exit == 0, said.err
    assert ready.nodes()["mid"]["state"] in ("measuring", "ready")
    assert ready.agent_pid("mid") != pid


def test_a_cut_cable_is_lost_and_mended_by_itself(ready: Any) -> None:
    ready.lan["old"].cut()
    try:
        ready.wait_for("lost", "old", within_s=12)
    finally:
        ready.lan["old"].mend()
    ready.wait_for("ready", "old", within_s=40)


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_a_firewall_is_named_before_any_rank_starts(ready: Any) -> None:
    head = ready.lan["head"]
    head.let_in(47632)
    try:
        started = time.monotonic()
        said = ready.on("head", "run", ready.script(), "--anyway", "--headless", "--json", "--", "3", "0", timeout=60)
        assert time.monotonic() - started < 30
    finally:
        head.open_up()
    assert said.exit == 4, said
    assert "can't reach head" in said.last["error"]
    assert "ufw" in said.last["error"]
    assert not ready.ranks()


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
def test_a_firewall_that_closes_in_the_middle_of_a_run_costs_the_node_behind_it_only(ready: Any) -> None:
    old = ready.lan["old"]
    words = ("run", ready.script(), "--anyway", "--headless", "--json", "--", "8", "0.1")
    run = ready.start("head", *words)
    try:
        ready.until(lambda: ready.steps_of(run) > 3, 60, run.err.read_text)
        folder = json.loads(run.out.read_text().splitlines()[0])["folder"]
        old.shut(47632)
        closed = time.monotonic()
        # not steps, for some may have been made before the way was closed and said after it
        ready.until(lambda: '"left_out"' in events_of(folder), 30, run.err.read_text)
        seen = ready.steps_of(run)
        ready.until(lambda: ready.steps_of(run) > seen + 3, 30, run.err.read_text)
        assert time.monotonic() - closed < 30
        assert ready.on("head", "stop").exit == 0
        assert run.wait(20) == 130
    finally:
        old.open_up()
    left_out = [json.loads(line) for line in events_of(folder).splitlines() if '"left_out"' in line]
    assert [event["node"] for event in left_out] == ["old"]
    assert "old (eth0, " in left_out[0]["why"]


def test_an_agent_ends_when_told_to(ready: Any) -> None:
    pid = ready.agent_pid("old")
    assert ready.on("old", "agent", "stop").exit == 0
    ready.until(lambda: pid not in ready.lan["old"].pids(), 10, ready.lan["old"].commands)
    assert not ready.lan["old"].commands()


def events_of(folder: str) -> str:
    return (Path(folder) / "events.jsonl").read_text()


def table(rows: int) -> str:
    """A seeded CSV whose column `late` depends on the others, with missing values here and there."""
    chance = random.Random(7)
    lines = ["distance,carrier,hour,late"]
    for _ in range(rows):
        distance, hour = chance.uniform(50, 3000), chance.randrange(5, 24)
        carrier = chance.choice(["AA", "B6", "DL", "UA"])
        score = (hour - 14) / 4 + (carrier == "B6") * 1.5 - distance / 2000
        late = chance.random() < 1 / (1 + math.exp(-score))
        lines.append(f"{'' if chance.random() < 0.02 else f'{distance:.0f}'},{carrier},{hour},{late}")
    return "\n".join(lines) + "\n"
