"""A run's report, for programs and for people."""

import json
from typing import Any

import msgspec

from daisychain.facts import NodeStep, RunSpec, RunState
from daisychain.run.report import as_json, as_markdown

STATE = RunState(
    id="r1",
    name="train.py",
    phase="finished",
    folder="/runs/r1",
    spec=RunSpec(job="script", batch=96),
    step=1200,
    epochs=3,
    batch=7,
    elapsed_s=61.23456,
    samples_per_second=16000.0,
    speedup_vs_fastest_node=0.74,
    loss=0.123456,
    exit=0,
    nodes=(NodeStep(node="head", share=64, compute_ms=8.0, sync_ms=2.5, wait_ms=0.0), NodeStep(node="old", share=32)),
    scores={"rmse": 1.5, "baseline": {"rmse": 3.0}},
)


def changed(**fields: Any) -> RunState:
    return msgspec.structs.replace(STATE, **fields)


def test_json_has_what_programs_rely_on() -> None:
    report = json.loads(json.dumps(as_json(STATE, {"head": 9000.0}, {})))
    assert (report["v"], report["exit"], report["steps"], report["epochs"]) == (1, 0, 1200, 3)
    assert (report["samples_per_second"], report["speedup_vs_fastest_node"]) == (16000.0, 0.74)
    assert (report["seconds"], report["folder"], report["scores"]) == (61.235, "/runs/r1", STATE.scores)
    assert report["nodes"]["head"]["samples_per_second_computing"] == 9000.0
    assert report["nodes"]["old"]["samples_per_second_computing"] is None


def test_json_gives_the_global_batch_not_the_ragged_last_one() -> None:
    assert as_json(STATE, {}, {})["batch"] == 96
    assert as_json(changed(spec=RunSpec(job="script")), {}, {})["batch"] == 7


def test_people_see_the_speedup_also_when_it_is_bad_news() -> None:
    text = as_markdown(STATE, {"head": 21700.0}, {})
    assert "0.74 times" in text
    assert "16,000 samples/s" in text
    assert "| head | 64 | 21,700 | 8 | 2.5 | 0 | unknown |" in text
    assert "| rmse | 1.5 | 3 |" in text
    assert "Log:" not in text


def test_unknown_is_shown_as_unknown() -> None:
    text = as_markdown(changed(samples_per_second=None, speedup_vs_fastest_node=None, loss=None, scores={}), {}, {})
    assert text.count("unknown") == 3 + 1 + 1 + 3 + 2
    assert "score" not in text


def test_a_failed_run_says_of_what_and_where_the_log_is() -> None:
    text = as_markdown(
        changed(phase="failed", exit=6, error="old: train.py:3: boom", log_path="/runs/r1/rank-1.log"), {}, {}
    )
    assert "**failed**: old: train.py:3: boom" in text
    assert "`/runs/r1/rank-1.log`" in text


def test_an_approximate_sync_is_called_that():
    exact, local = STATE, changed(spec=msgspec.structs.replace(STATE.spec, sync="local:50"))
    assert (as_json(exact, {}, {})["sync"], as_json(exact, {}, {})["approximate"]) == ("exact", False)
    assert (as_json(local, {}, {})["sync"], as_json(local, {}, {})["approximate"]) == ("local:50", True)
    assert "approximate" not in as_markdown(exact, {}, {})
    assert "- sync: local:50 (approximate)\n" in as_markdown(local, {}, {})


def test_what_each_node_added_is_said_also_when_it_slows_the_run_down() -> None:
    added = {"head": 0.4, "old": -0.2}
    text = as_markdown(STATE, {}, added)
    assert "| head | 64 | unknown | 8 | 2.5 | 0 | +40% |" in text
    assert "| old | 32 | unknown | unknown | unknown | unknown | -20% |" in text
    assert "\nold slows the run down: without it, it would be 25% faster. Next time: --nodes head\n" in text
    assert as_json(STATE, {}, added)["nodes"]["old"]["added"] == -0.2
    assert as_json(STATE, {}, {})["nodes"]["old"]["added"] is None
