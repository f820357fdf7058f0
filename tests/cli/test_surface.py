"""Where a command meets the person: one line and an exit code for an error, JSON lines for programs."""

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from daisychain.cli import parser
from daisychain.cli.run import Teller, launch_and_follow
from daisychain.cli.surface import Surface, run_command
from daisychain.config import Settings, locate
from daisychain.errors import (
    DaisyError,
    DataError,
    LinkError,
    NoNodeError,
    PreflightError,
    ScriptError,
    TrustError,
    UsageError,
)
from daisychain.facts import NodeStep, RunSpec, RunState, Snapshot, Verdict
from daisychain.link.messages import AnyMessage, Done, FollowRun, Launch, Launched, Message, RunNews


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAISYCHAIN_HOME", str(tmp_path))
    for name in Settings.__struct_fields__:
        monkeypatch.delenv(f"DAISYCHAIN_{name.upper()}", raising=False)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, outcome: Any, as_json: bool = False, **words: Any) -> int:
    """Run a command that raises, or calls, or returns `outcome`."""

    async def command(words: argparse.Namespace, made: Surface) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return int(outcome(made) if callable(outcome) else outcome)

    monkeypatch.setitem(parser.COMMANDS, "nodes", "fake")
    monkeypatch.setitem(sys.modules, "daisychain.cli.fake", SimpleNamespace(command=command))
    return run_command(argparse.Namespace(command="nodes", json=as_json, **words))


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """stdout as JSON lines, all of it."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (DaisyError, 1), (LinkError, 1), (UsageError, 2), (DataError, 2), (NoNodeError, 3), (TrustError, 5),
        (ScriptError, 6),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[DaisyError], code: int
) -> None:
    assert run(monkeypatch, kind("old: it can't", "Try this")) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "daisychain: old: it can't. Try this\n")


def test_an_error_is_an_event_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, NoNodeError("no node is ready", "Join one"), as_json=True) == 3
    assert events(capsys) == [
        {"v": 1, "event": "error", "message": "no node is ready", "remedy": "Join one", "exit": 3}
    ]


def test_a_refusal_lists_its_verdicts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [
        Verdict(level="refuse", check="torch", reason="torch is not installed", remedy="Install it", node="old"),
        Verdict(level="warn", check="nic", reason="only Wi-Fi", remedy="Use a cable", node="new"),
    ]
    assert run(monkeypatch, PreflightError(verdicts), as_json=True) == 4
    said = capsys.readouterr()
    (event,) = (json.loads(line) for line in said.out.splitlines())
    assert event["event"] == "refused"
    assert event["verdicts"][0] == {
        "node": "old", "level": "refuse", "check": "torch", "reason": "torch is not installed", "remedy": "Install it",
    }  # fmt: skip
    assert [v["node"] for v in event["verdicts"]] == ["old", "new"]
    assert said.err.splitlines() == [
        "daisychain: refuse: old: torch is not installed. Install it",
        "daisychain: warn: new: only Wi-Fi. Use a cable",
    ]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_mistake_of_ours_is_a_line_and_a_file_never_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path, as_json: bool
) -> None:
    assert run(monkeypatch, ZeroDivisionError("division by zero"), as_json) == 1
    said = capsys.readouterr()
    log = home / "state" / "command.log"
    assert "Traceback" not in said.out + said.err
    assert len(said.err.splitlines()) == 1
    assert "division by zero" in said.err
    assert str(log) in said.err
    assert "ZeroDivisionError" in log.read_text(encoding="utf-8")
    assert bool(said.out) is as_json


def test_a_mistake_is_told_also_when_its_file_can_not_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    (home / "state").write_text("in the way", encoding="utf-8")
    assert run(monkeypatch, ZeroDivisionError("division by zero")) == 1
    assert "division by zero" in capsys.readouterr().err


def test_ctrl_c_is_130_and_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""


def test_settings_reach_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAISYCHAIN_NIC", "eth1")
    assert run(monkeypatch, lambda made: made.settings.port, port=1234, nic=None) == 1234
    assert run(monkeypatch, lambda made: int(made.settings.nic == "eth1")) == 1


def test_a_wrong_setting_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DAISYCHAIN_PORT", "many")
    assert run(monkeypatch, 0) == 2
    assert "port" in capsys.readouterr().err


def test_people_get_lines_and_programs_get_events(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        made = Surface(as_json, locate(), Settings())
        made.say("words")
        made.event("nodes", nodes=["grün"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "words"
    assert [json.loads(line) for line in lines[1:]] == [{"v": 1, "event": "nodes", "nodes": ["grün"]}]


# --- telling how a run goes -------------------------------------------------------------------------------------------

STATE = RunState(
    id="r", name="x.py", phase="shipping", folder="/runs/r", spec=RunSpec(job="script"), detail="1 of 2 MB"
)


def changed(**fields: Any) -> RunState:
    return msgspec.structs.replace(STATE, **fields)


def test_each_log_line_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(Surface(True, locate(), Settings()))
    for log in (("a",), ("a", "b"), ("b", "c"), ("c",)):
        teller.tell(changed(log=log))
    told = events(capsys)
    assert [event["text"] for event in told if event["event"] == "log"] == ["a", "b", "c"]
    assert [event["event"] for event in told].count("progress") == 4


def test_people_see_each_phase_once_and_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(Surface(False, locate(), Settings()))
    running = changed(
        phase="running", detail="", step=3, steps=9, loss=0.5, samples_per_second=1234.4, step_ms=81.2,
        nodes=(NodeStep(node="head", share=5), NodeStep(node="old", share=3)),
    )  # fmt: skip
    for state in (
        STATE,
        STATE,
        changed(detail="2 of 2 MB"),
        running,
        changed(phase="running", step=4),
        changed(phase="finished"),
    ):
        teller.tell(state)
    assert capsys.readouterr().out.splitlines() == [
        "shipping: 1 of 2 MB",
        "shipping: 2 of 2 MB",
        "step 3/9  loss 0.5000  1,234 samples/s  81 ms  head:5 old:3",
        "step 4  loss unknown  unknown samples/s  0 ms  ",
    ]


class FakeAgent:
    """Answers as a local agent would that runs `states`."""

    def __init__(self, *states: RunState) -> None:
        self.states = states

    async def expect(self, message: Message, kind: type[Any], timeout_s: float = 60.0) -> Any:
        answer: AnyMessage = Done()
        if isinstance(message, Launch):
            answer = Launched(run="r", folder="/runs/r")
        elif isinstance(message, FollowRun):
            answer = RunNews(state=self.states[-1])
        assert isinstance(answer, kind)
        return answer

    async def snapshots(self, interval_s: float = 1.0) -> Any:
        yield Snapshot(self_id="a", role="head", nodes=(), run=changed(id="an older run", phase="finished"))
        for state in self.states:
            yield Snapshot(self_id="a", role="head", nodes=(), run=state)


async def test_a_runs_last_event_is_finished(capsys: pytest.CaptureFixture[str]) -> None:
    agent: Any = FakeAgent(
        STATE, changed(phase="finished", exit=0, step=9, scores={"auc": 0.9}, samples_per_second=5.0)
    )
    assert await launch_and_follow(agent, STATE.spec, Surface(True, locate(), Settings())) == 0
    told = events(capsys)
    assert told[0] == {"v": 1, "event": "launched", "run": "r", "folder": "/runs/r"}
    last = told[-1]
    assert (last["event"], last["exit"], last["steps"], last["folder"]) == ("finished", 0, 9, "/runs/r")
    assert (last["scores"], last["samples_per_second"], last["speedup_vs_fastest_node"]) == ({"auc": 0.9}, 5.0, None)


async def test_a_failed_run_says_why_and_where_its_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    agent: Any = FakeAgent(changed(phase="failed", exit=6, error="old: x.py:3: boom", log_path="/runs/r/rank-1.log"))
    assert await launch_and_follow(agent, STATE.spec, Surface(False, locate(), Settings())) == 6
    assert capsys.readouterr().err == "daisychain: old: x.py:3: boom (log: /runs/r/rank-1.log)\n"


def test_a_pause_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(Surface(False, locate(), Settings()))
    paused = changed(phase="running", detail="", step=7, paused=True)
    for state in (paused, paused, msgspec.structs.replace(paused, paused=False, step=8)):
        teller.tell(state)
    assert capsys.readouterr().out.splitlines() == [
        "paused after step 7",
        "step 8  loss unknown  unknown samples/s  0 ms  ",
    ]
