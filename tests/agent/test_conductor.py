"""A head's part of a run, with fake seats in the place of nodes and a hand-set clock."""

import asyncio
import base64
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daisychain.agent import bundles, conductor
from daisychain.agent.conductor import Conductor
from daisychain.agent.seats import Seat, speeds
from daisychain.config import Settings, locate
from daisychain.errors import DaisyError, DataError, LinkError, PreflightError
from daisychain.facts import Capacity, Condition, Device, Gpu, Node, RunSpec, RunState, Verdict, Versions
from daisychain.link.messages import (
    AnyMessage,
    Done,
    EndRun,
    FetchBlob,
    FindModules,
    FlowSent,
    Inspect,
    Inspected,
    Listen,
    Listening,
    Message,
    ModulesFound,
    OrderRank,
    PathsTried,
    PrepareRun,
    SendFlow,
    StartRank,
    TryPaths,
)
from daisychain.run.generations import DEATHS, GIVE_UP_AFTER
from daisychain.run.motion import STALLED_S

NODE = Node(
    id="id-head", name="head", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    capacity=Capacity(fixed_s=0.001, per_sample_s=0.0001, threads=2, torch="2.9.0"),
)  # fmt: skip


def node(name: str, **fields: Any) -> Node:
    fields.setdefault("address", NODE.address if name == NODE.name else f"10.0.0.{1 + sum(name.encode()) % 250}")
    return msgspec.structs.replace(NODE, id=f"id-{name}", name=name, **fields)


class FakeSeat:
    """Answers as a node would; `fail` maps a message's type to the error it refuses with, `hang` names those that
    are not answered until `release`."""

    def __init__(self, fail: dict[str, DaisyError] | None = None, hang: str = "") -> None:
        self.asked: list[Message] = []
        self.fail, self.hang = fail or {}, hang
        self.blocked: dict[str, str] = {}
        """Why this node can't reach another one, by its name."""
        self.lacks: tuple[str, ...] = ()
        self.condition = Condition(clock_s=time.time())
        self.hangs = asyncio.Event()
        self.release = asyncio.Event()
        self.started = asyncio.Event()

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        if isinstance(message, Inspect):
            return Inspected(condition=self.condition)
        self.asked.append(message)
        kind = type(message).__name__
        if kind in self.fail:
            raise self.fail[kind]
        if kind == self.hang:
            self.hangs.set()
            await self.release.wait()
        if isinstance(message, StartRank):
            self.started.set()
        match message:
            case PrepareRun():
                return Done()
            case Listen():
                return Listening(port=5000)
            case TryPaths(peers=peers):
                return PathsTried(reasons=tuple(self.blocked.get(peer.name, "") for peer in peers))
            case SendFlow():
                return FlowSent(bytes_per_s=1e8, latency_s=0.001)
            case FindModules(names=names):
                return ModulesFound(missing=tuple(name for name in names if name in self.lacks))
            case _:
                return Done()

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.asked]

    def orders(self) -> list[dict[str, Any]]:
        return [message.order for message in self.asked if isinstance(message, OrderRank)]

    def starts(self) -> list[StartRank]:
        return [message for message in self.asked if isinstance(message, StartRank)]


class Stage:
    """One run over fake seats."""

    def __init__(self, tmp_path: Path, *, spec: RunSpec | None = None, **seats: FakeSeat) -> None:
        (tmp_path / "job").mkdir()
        self.script = tmp_path / "job" / "train.py"
        self.script.write_text("pass\n", encoding="utf-8")
        self.now = 0.0
        self.seats = seats or {"head": FakeSeat(), "old": FakeSeat()}
        self.nodes = [node(name) for name in self.seats]
        self.paths = locate({"DAISYCHAIN_HOME": str(tmp_path / "home")})
        self.run = Conductor(
            head="head",
            spec=spec or RunSpec(job="script", path=str(self.script), args=("--lr", "1")), paths=self.paths,
            settings=Settings(), clock=lambda: self.now, changed=lambda: None,
        )  # fmt: skip
        self.driving = asyncio.ensure_future(
            self.run.drive(lambda: list(zip(self.nodes, self.seats.values(), strict=True)))
        )

    async def started(self) -> None:
        for seat in self.seats.values():
            await asyncio.wait_for(seat.started.wait(), 5)

    async def wait(self, *seats: int, generation: int = 0, completed: int = 0, why: str = "") -> None:
        for seat in seats:
            report = {"port": 4240 + seat, "generation": generation, "completed": completed, "why": why}
            await self.run.report(seat, {"kind": "waiting", **report})

    async def train(self) -> None:
        """All seats are in generation 1."""
        await self.started()
        await self.wait(*range(len(self.nodes)))
        for seat in range(len(self.nodes)):
            await self.run.report(seat, {"kind": "joined", "generation": 1, "completed": 0})

    async def finish(self, *seats: int) -> None:
        """These ranks do all their work, and end once they may."""
        for seat in seats:
            await self.run.report(seat, {"kind": "done"})
        for seat in seats:
            await self.run.report(seat, {"kind": "exit", "code": 0})

    async def told(self, words: str) -> None:
        while words not in self.run.state().detail:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def order(self, seat: str, kind: str, number: int = 1) -> dict[str, Any]:
        """The first (second ...) order of this kind to a node, once it is there."""
        for _ in range(500):
            found = [order for order in self.seats[seat].orders() if order["kind"] == kind]
            if len(found) >= number:
                return found[number - 1]
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {kind} order for {seat} but {self.seats[seat].orders()}")

    async def starts(self, seat: str, count: int) -> None:
        for _ in range(500):
            if len(self.seats[seat].starts()) >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{seat} was started {len(self.seats[seat].starts())} times only")

    async def end(self) -> RunState:
        await asyncio.wait_for(self.driving, 5)
        return self.run.state()

    def report_json(self) -> dict[str, Any]:
        return dict(json.loads((self.run.folder.path / "report.json").read_text(encoding="utf-8")))

    def events(self) -> list[dict[str, Any]]:
        text = (self.run.folder.path / "events.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "TICK_S", 0.01)
    monkeypatch.setattr(conductor, "LEAVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def step(number: int, share: int) -> dict[str, Any]:
    times = {"compute_ms": 8.0, "exposed_ms": 2.0, "step_ms": 10.0}
    facts = {"step": number, "generation": 1, "epoch": 0, "share": share, "shares": [64, 32], "loss": 1.0 / number}
    data = {"index": number - 1, "digest": number, "batch": 96}
    return {"kind": "step", **facts, **data, **times}


SCRIPT_ERROR = {
    "kind": "error", "origin": "script", "type": "ValueError", "message": "boom", "file": "train.py", "line": 3
}  # fmt: skip
PEER_ERROR = {"kind": "error", "origin": "peer", "type": "RuntimeError", "message": "Connection reset by peer"}


async def test_steps_told_together_count_when_they_were_over(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    stage.now += 1.0
    for seat, share in ((0, 64), (1, 32)):
        steps = [step(number, share) | {"ago_ms": 1000 - 100 * number} for number in (1, 2, 3)]
        await stage.run.report(seat, {"kind": "steps", "steps": steps})
    lines = (stage.run.folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    times = [json.loads(line)["time"] for line in lines]
    assert [later - times[0] for later in times] == pytest.approx([0.0, 0.1, 0.2])
    await stage.run.report(0, {"kind": "steps"})  # nonsense is left out
    stage.driving.cancel()


async def test_a_run_from_launch_to_report(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    plan = {"kind": "plan", "steps": 4, "epochs": 1, "batch": 96, "shares": [64, 32]}
    for rank in (0, 1):
        await stage.run.report(rank, plan)
    assert stage.run.state().phase == "running"
    for number in (1, 2, 3, 4):
        stage.now += 0.1
        await stage.run.report(0, step(number, 64))
        await stage.run.report(1, step(number, 32))
    await stage.run.report(0, {"kind": "scores", "scores": {"accuracy": 0.9}})
    await stage.run.report(1, {"kind": "done"})
    await stage.run.report(0, {"kind": "done"})
    await stage.run.report(1, {"kind": "exit", "code": 0})
    assert not stage.driving.done()
    await stage.run.report(0, {"kind": "exit", "code": 0})
    state = await stage.end()
    assert (state.phase, state.exit, state.error, state.step) == ("finished", 0, "", 4)
    assert not stage.run.active
    report = stage.report_json()
    assert (report["exit"], report["steps"], report["scores"]) == (0, 4, {"accuracy": 0.9})
    assert report["samples_per_second"] == pytest.approx(960)
    folder = stage.run.folder.path
    assert "finished after 4 steps" in (folder / "report.md").read_text(encoding="utf-8")
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["batch"] for line in lines] == [96, 96, 96, 96]
    told = [e["event"] for e in stage.events() if e["event"] not in ("waiting", "forecast")]
    assert told == ["launched", "network", "generation", "plan", "scores", "finished"]
    for seat in stage.seats.values():
        assert [kind for kind in seat.kinds() if kind != "OrderRank"] == [
            "PrepareRun", "Listen", "TryPaths", "SendFlow", "StartRank", "EndRun"
        ]  # fmt: skip
        assert [order["kind"] for order in seat.orders()] == ["form", "leave"]


TRIAL = {
    "kind": "trial", "costs": [[0.0, 0.001], [0.0, 0.002]], "early": [1.0, 1.0], "alone_s": 0.096, "together": None,
    "caps": [0, 0],
    "buckets": [1_000_000], "exchange_s": 0.001, "latency_s": 0.0001, "sums": 0, "why": "",
}  # fmt: skip
PLAN = {"kind": "plan", "steps": 100, "epochs": 1, "batch": 96, "shares": [64, 32]}


async def test_a_run_that_is_forecast_to_gain_begins_and_has_the_forecast_beside_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, PLAN)
    await stage.run.report(0, TRIAL)
    for name in stage.seats:
        assert await stage.order(name, "go") == {"kind": "go"}
    foretold = stage.run.state().foretold
    assert foretold is not None
    assert foretold.speedup == pytest.approx(1.5, rel=0.05)
    assert "forecast: these two machines are 1.5x as fast as head alone" in "".join(stage.run.state().log)
    await stage.finish(0, 1)
    await stage.end()
    assert stage.report_json()["forecast"]["speedup"] == foretold.speedup
    assert "1.5x as fast" in (stage.run.folder.path / "report.md").read_text(encoding="utf-8")


async def test_a_run_that_is_forecast_to_lose_ends_before_its_first_step(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, PLAN)
    await stage.run.report(1, TRIAL)  # only the first rank's counts
    await stage.run.report(0, {**TRIAL, "exchange_s": 5.0})
    state = await stage.end()
    assert (state.phase, state.exit, state.step) == ("failed", 4, 0)
    assert "exact sync is slower than head alone" in state.error
    assert not [order for seat in stage.seats.values() for order in seat.orders() if order["kind"] == "go"]
    assert "--anyway" in state.error
    (refused,) = [event for event in stage.events() if event["event"] == "refused"]
    assert refused["verdicts"][0]["check"] == "forecast"


async def test_it_is_launched_anyway_where_that_was_asked_for(tmp_path: Path) -> None:
    spec = RunSpec(job="script", path=str(tmp_path / "job" / "train.py"), anyway=True)
    stage = Stage(tmp_path, spec=spec)
    await stage.train()
    await stage.run.report(0, PLAN)
    await stage.run.report(0, {**TRIAL, "exchange_s": 5.0})
    await stage.order("head", "go")
    await stage.finish(0, 1)
    assert (await stage.end()).exit == 0


async def test_a_node_that_slows_the_run_is_left_out_where_that_is_left_to_the_forecast(tmp_path: Path) -> None:
    spec = RunSpec(job="script", path=str(tmp_path / "job" / "train.py"), auto=True)
    stage = Stage(tmp_path, spec=spec)
    await stage.train()
    await stage.run.report(0, PLAN)
    await stage.run.report(0, {**TRIAL, "exchange_s": 5.0})
    await stage.order("old", "stop")
    await stage.order("head", "break")
    assert stage.run.state().left_out == ("old",)
    await stage.run.report(1, {"kind": "exit", "code": -9})
    await stage.wait(0, generation=1, why="severed")
    assert (await stage.order("head", "form", 2))["formation"]["names"] == ["head"]
    await stage.run.report(0, {"kind": "joined", "generation": 2, "completed": 0})
    await stage.finish(0)
    state = await stage.end()
    assert (state.exit, state.error) == (0, "")
    assert len(stage.seats["old"].starts()) == 1
    assert stage.report_json()["left_out"] == ["old"]


@pytest.mark.parametrize(
    "wrong", [{"why": "the script trains 2 models"}, {"costs": [[1]]}, {"buckets": []}, {"sums": "x"}]
)
async def test_without_a_forecast_the_run_begins_and_says_why(tmp_path: Path, wrong: dict[str, Any]) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, PLAN)
    await stage.run.report(0, {**TRIAL, **wrong})
    await stage.order("head", "go")
    assert "no forecast of this run: " in "".join(stage.run.state().log)
    assert stage.run.state().foretold is None
    stage.run.stop()
    await stage.end()


async def test_every_rank_is_told_its_seat_and_later_its_generation(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    starts = [seat.starts()[0] for seat in stage.seats.values()]
    assert [(m.seat, m.resume) for m in starts] == [(0, False), (1, False)]
    assert {(m.names, m.script, m.args) for m in starts} == {(("head", "old"), "train.py", ("--lr", "1"))}
    await stage.wait(0, 1)
    common = {
        "generation": 1, "names": ["head", "old"], "speeds": ((0.001, 0.0001),) * 2, "address": "10.0.0.1", "port": 4240
    }  # fmt: skip
    for rank, name in enumerate(stage.seats):
        assert (await stage.order(name, "form"))["formation"] == {**common, "rank": rank}
    stage.run.stop()
    await stage.end()


async def test_a_lone_node_tries_no_paths_and_forms_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat())
    await stage.train()
    assert stage.seats["head"].kinds() == ["PrepareRun", "StartRank"]
    assert (await stage.order("head", "form"))["formation"]["names"] == ["head"]
    await stage.finish(0)
    assert (await stage.end()).exit == 0


async def test_a_resumed_run_goes_on_in_its_folder_from_checkpoints(tmp_path: Path) -> None:
    first = Stage(tmp_path, head=FakeSeat())
    await first.train()
    first.run.stop()
    await first.end()
    spec = msgspec.structs.replace(first.run.spec, resume=first.run.id)
    (tmp_path / "job" / "train.py").unlink()
    (tmp_path / "job").rmdir()
    second = Stage(tmp_path, spec=spec, head=FakeSeat())
    await second.started()
    assert second.run.folder.path == first.run.folder.path
    assert second.seats["head"].starts()[0].resume
    second.run.stop()
    await second.end()


# --- lost ranks ---------------------------------------------------------------------------------------------------


async def test_a_killed_rank_is_left_behind_started_again_and_let_in(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(1, {"kind": "exit", "code": -9, "peak_bytes": 2_000_000_000, "oom": True})
    assert (await stage.order("head", "break")) == {"kind": "break", "generation": 1}
    await stage.wait(0, generation=1, completed=7, why="reset")
    await stage.starts("old", 2)
    assert stage.seats["old"].starts()[1].resume
    assert (await stage.order("head", "form", 2))["formation"]["names"] == ["head"]
    log = "\n".join(stage.run.state().log)
    assert "old: its rank was killed" in log
    assert "it held 2.00 GB of memory at most" in log
    assert "going on after step 7 with head" in log
    await stage.wait(1)
    assert (await stage.order("head", "boundary")) == {"kind": "boundary", "generation": 2}
    await stage.wait(0, generation=2, completed=9)
    formed = (await stage.order("old", "form", 2))["formation"]
    assert (formed["generation"], formed["rank"], formed["names"]) == (3, 1, ["head", "old"])
    await stage.finish(0, 1)
    state = await stage.end()
    assert (state.phase, state.exit, state.error) == ("finished", 0, "")


async def test_a_rank_that_dies_again_and_again_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    for death in range(1, DEATHS + 1):
        await stage.starts("old", death)
        await stage.run.report(1, {"kind": "exit", "code": -11})
        stage.now += 1000
    await stage.wait(0, generation=1, completed=7, why="reset")
    stage.now += 1000
    await asyncio.sleep(0.05)
    assert len(stage.seats["old"].starts()) == DEATHS
    assert "it is left out" in "".join(stage.run.state().log[-3:])
    await stage.finish(0)
    assert (await stage.end()).phase == "finished"


async def test_a_rank_whose_machine_lacks_an_instruction_is_not_started_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(1, {"kind": "exit", "code": conductor.ILLEGAL_INSTRUCTION})
    await stage.wait(0)
    stage.now += 1000
    await stage.order("head", "form")
    assert len(stage.seats["old"].starts()) == 1
    stage.run.stop()
    await stage.end()


async def test_when_nobody_is_left_the_run_ends_with_the_cause(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(1, {"kind": "exit", "code": conductor.ILLEGAL_INSTRUCTION})
    await stage.run.report(0, {"kind": "exit", "code": conductor.ILLEGAL_INSTRUCTION})
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 1)
    assert state.error.startswith("old: ")


async def test_a_frozen_rank_is_left_behind_and_said(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(1, {"kind": "silent"})
    await stage.order("head", "break")
    await stage.order("old", "break")
    assert stage.run.state().log[-1].endswith("old is frozen: its rank says nothing any more")
    await stage.run.report(1, {"kind": "heard"})
    await stage.wait(1, 0, generation=1, completed=3, why="cut")
    assert (await stage.order("old", "form", 2))["formation"]["names"] == ["head", "old"]
    stage.run.stop()
    await stage.end()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_lost_node_is_left_behind_and_comes_back(tmp_path: Path, alive: bool) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    stage.run.lost(node("stranger"), "not ours")
    stage.run.lost(stage.nodes[1], "not heard of for 6 s")
    await stage.order("head", "break")
    await stage.wait(0, generation=1, completed=3, why="cut")
    assert not stage.driving.done()
    assert any(line.endswith("old is lost: not heard of for 6 s") for line in stage.run.state().log)
    again = FakeSeat()
    stage.seats["old"] = again
    stage.run.back(stage.nodes[1], again, alive=(1,) if alive else ())
    if alive:
        assert (await stage.order("old", "break"))["generation"] == 2
        assert not again.starts()
    else:
        await asyncio.wait_for(again.started.wait(), 5)
        assert again.kinds() == ["PrepareRun", "StartRank"]
        assert again.starts()[0].resume
    stage.run.stop()
    await stage.end()


async def test_a_new_connection_before_the_old_ones_end_was_noticed_is_a_loss_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    again = stage.seats["old"] = FakeSeat()
    stage.run.back(stage.nodes[1], again, alive=(1,))
    await stage.order("head", "break")
    await stage.order("old", "break")
    await stage.wait(1, 0, generation=1, completed=3, why="cut")
    assert (await stage.order("old", "form"))["formation"]["names"] == ["head", "old"]
    assert not stage.seats["old"].starts()
    stage.run.stop()
    await stage.end()


# --- failures ----------------------------------------------------------------------------------------------------


async def test_a_scripts_own_error_ends_the_run_and_wins_over_earlier_peer_errors(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, PEER_ERROR)
    assert not stage.run._over.is_set()
    await stage.run.report(1, SCRIPT_ERROR)
    await stage.run.report(0, PEER_ERROR)
    await stage.run.report(0, {"kind": "exit", "code": 1})
    state = await stage.end()
    assert (state.phase, state.exit, state.error) == ("failed", 6, "old: train.py:3: ValueError: boom")
    assert "rank-1.log" in state.log_path
    assert state.log_path.startswith("old: ")
    assert stage.report_json()["error"] == state.error


async def test_a_first_generation_that_can_not_connect_ends_the_run_naming_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "FORMING_S", 0.05)
    stage = Stage(tmp_path)
    await stage.started()
    stage.seats["old"].blocked = {"head": "no answer"}  # closed after it was tried
    await stage.wait(0, 1)
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 1)
    assert "old (eth0, 10.0.0.70) can't reach head (eth0, 10.0.0.1): no answer" in state.error
    assert "sudo ufw allow from 10.0.0.70" in state.error


async def test_a_generation_that_is_only_slow_to_connect_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "FORMING_S", 0.05)
    stage = Stage(tmp_path)
    await stage.started()
    await stage.wait(0, 1)
    while len([kind for kind in stage.seats["old"].kinds() if kind == "TryPaths"]) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for seat in (0, 1):
        await stage.run.report(seat, {"kind": "joined", "generation": 1, "completed": 0})
    await stage.finish(0, 1)
    assert (await stage.end()).exit == 0


async def test_where_steps_stop_for_a_way_that_has_closed_the_others_go_on_without_that_node(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), mid=FakeSeat(), old=FakeSeat())
    await stage.train()
    await stage.run.report(0, step(1, 64))
    await asyncio.sleep(0.05)
    stage.seats["old"].blocked = {"head": "no answer"}
    stage.now += STALLED_S + 1
    await stage.order("old", "stop")
    assert await stage.order("head", "break") == {"kind": "break", "generation": 1}
    await stage.run.report(2, {"kind": "exit", "code": -9})
    await stage.wait(0, 1, generation=1, completed=1, why="severed")
    assert (await stage.order("head", "form", 2))["formation"]["names"] == ["head", "mid"]
    log = "".join(stage.run.state().log)
    assert "old (eth0, 10.0.0.70) can't reach head (eth0, 10.0.0.1): no answer" in log
    assert "going on without old" in log
    assert len(stage.seats["old"].starts()) == 1
    for seat in (0, 1):
        await stage.run.report(seat, {"kind": "joined", "generation": 2, "completed": 1})
    await stage.finish(0, 1)
    assert (await stage.end()).exit == 0


async def test_a_step_that_only_takes_long_is_let_be(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, step(1, 64))
    await asyncio.sleep(0.05)
    for _ in range(3):
        stage.now += 2 * STALLED_S
        await asyncio.sleep(0.05)
    # before the run, after 20 and after 60 seconds
    assert [kind for kind in stage.seats["old"].kinds() if kind == "TryPaths"] == ["TryPaths"] * 3
    assert not [order for order in stage.seats["old"].orders() if order["kind"] in ("stop", "break")]
    await stage.finish(0, 1)
    assert (await stage.end()).exit == 0


async def test_a_killed_rank_explains_what_its_peers_say_once_nobody_is_left(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, PEER_ERROR)
    for _ in range(DEATHS):
        await stage.run.report(0, {"kind": "exit", "code": 1})
        await stage.run.report(1, {"kind": "exit", "code": -9})
        stage.now += 1000
    state = await stage.end()
    assert state.exit == 1
    assert state.error.startswith("old: its rank was killed")


async def test_an_exit_after_its_work_is_no_loss_and_does_not_end_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(1, {"kind": "done"})
    await stage.run.report(1, {"kind": "exit", "code": 0})
    await asyncio.sleep(0.05)
    assert not stage.driving.done()
    assert len(stage.seats["old"].starts()) == 1
    stage.run.stop()
    await stage.end()


async def test_a_script_that_never_trains_has_scores_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat())
    await stage.started()
    await stage.run.report(0, {"kind": "scores", "scores": {"accuracy": 0.5}})
    await stage.finish(0)
    state = await stage.end()
    assert (state.phase, state.scores) == ("finished", {"accuracy": 0.5})


async def test_ranks_that_do_not_end_by_themselves_are_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    for seat in (0, 1):
        await stage.run.report(seat, {"kind": "done"})
    state = await stage.end()
    assert (state.phase, state.exit) == ("finished", 0)
    assert stage.seats["old"].kinds()[-1] == "EndRun"


async def test_a_rank_that_still_waits_is_let_go_with_those_who_are_done(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), mid=FakeSeat(), old=FakeSeat())
    await stage.train()
    await stage.run.report(2, {"kind": "exit", "code": -9})
    await stage.wait(0, 1, generation=1, completed=3, why="reset")
    await stage.run.report(0, {"kind": "done"})
    await stage.wait(2)
    await stage.run.report(1, {"kind": "done"})
    assert await stage.order("old", "leave")
    assert (await stage.end()).phase == "finished"


@pytest.mark.parametrize("moment", ["PrepareRun", "Listen", "TryPaths"])
async def test_a_node_that_is_lost_before_any_rank_is_started_ends_the_run(tmp_path: Path, moment: str) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(hang=moment))
    await asyncio.wait_for(stage.seats["old"].hangs.wait(), 5)
    stage.run.lost(stage.nodes[1], "not heard of for 6 s")
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 1)
    assert state.error.startswith("old: not heard of for 6 s")


async def test_what_ranks_die_of_while_they_are_ended_explains_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(hang="EndRun"))
    await stage.train()
    await stage.run.report(0, SCRIPT_ERROR)
    await asyncio.wait_for(stage.seats["old"].hangs.wait(), 5)
    await stage.run.report(0, {"kind": "exit", "code": -6})
    stage.seats["old"].release.set()
    state = await stage.end()
    assert state.error == "head: train.py:3: ValueError: boom"


async def test_a_node_whose_disk_is_too_small_is_refused_before_anything_is_shipped(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.seats["old"].condition = Condition(clock_s=time.time(), disk_free_bytes=1)
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 4)
    assert state.error.startswith(
        "old has 0 MB of disk space free, and the run's files alone take 0 MB. Free some space"
    )
    assert stage.seats["old"].kinds() == ["EndRun"]


async def test_what_a_node_is_like_is_told_with_the_run_where_it_is_no_reason_to_refuse(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.seats["old"].condition = Condition(clock_s=time.time() + 900, busy=0.9)
    await stage.started()
    log = "\n".join(stage.run.state().log)
    assert "90% of old's processor is in use by other programs" in log
    assert "old's clock is 15 minutes ahead of the head's" in log
    stage.run.stop()
    await stage.end()


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        (DaisyError("the disk is full", "Free some space"), 1, "old: the disk is full. Free some space"),
        (LinkError("the connection was lost"), 1, "old: the connection was lost"),
        (DataError("old: x.csv is not there"), 2, "old: x.csv is not there"),
    ],
)
async def test_a_node_that_refuses_is_named_once(tmp_path: Path, error: DaisyError, exit_code: int, text: str) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"PrepareRun": error}))
    state = await stage.end()
    assert (state.phase, state.exit, state.error) == ("failed", exit_code, text)
    assert stage.report_json()["error"] == text
    assert stage.seats["head"].kinds() == ["PrepareRun", "EndRun"]


async def test_a_preflight_refusal_keeps_its_kind(tmp_path: Path) -> None:
    verdict = Verdict(level="refuse", check="disk", reason="the disk is full", node="old")
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"PrepareRun": PreflightError([verdict])}))
    state = await stage.end()
    assert (state.exit, state.error) == (4, "old: the disk is full")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
async def test_a_disk_that_takes_no_files_refuses_the_run_and_names_the_node(tmp_path: Path, number: int) -> None:
    error = bundles.explain(OSError(number, os.strerror(number)), Path("/disk"))
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"PrepareRun": error}))
    state = await stage.end()
    assert state.exit == 4
    assert state.error == f"old: {error.what}. {error.remedy}"


async def test_a_node_that_can_not_start_its_rank_is_left_out(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"StartRank": DaisyError("the disk is full")}))
    await asyncio.wait_for(stage.seats["head"].started.wait(), 5)
    await stage.wait(0)
    assert (await stage.order("head", "form"))["formation"]["names"] == ["head"]
    assert any("old can't take part: old: the disk is full" in line for line in stage.run.state().log)
    await stage.finish(0)
    assert (await stage.end()).phase == "finished"


async def test_a_run_that_no_node_can_start_fails_with_the_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat({"StartRank": DaisyError("the disk is full", "Free some space")}))
    for death in range(1, DEATHS + 1):
        await stage.starts("head", death)
        await asyncio.sleep(0.02)
        stage.now += 1000
    state = await stage.end()
    assert (state.phase, state.exit, state.error) == ("failed", 1, "head: the disk is full. Free some space")


async def test_a_node_that_can_not_be_ended_holds_nothing_up(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"EndRun": LinkError("gone")}))
    await stage.train()
    await stage.finish(0, 1)
    assert (await stage.end()).exit == 0


async def test_data_that_is_not_there_fails_before_any_node_is_asked(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    spec = RunSpec(job="script", path=str(tmp_path / "x.py"), data=(str(tmp_path / "gone.csv"),))
    stage = Stage(tmp_path, spec=spec)
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 2)
    assert "gone.csv: no such file" in state.error
    assert all(not seat.asked for seat in stage.seats.values())


# --- stopping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["PrepareRun", "StartRank"])
async def test_a_stop_before_the_first_step(tmp_path: Path, moment: str) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(hang=moment))
    await asyncio.wait_for(stage.seats["old"].hangs.wait(), 5)
    stage.run.stop()
    state = await stage.end()
    assert (state.phase, state.exit) == ("stopped", 130)
    assert stage.seats["old"].kinds()[-1] == "EndRun"
    assert stage.report_json()["phase"] == "stopped"


async def test_a_stop_while_a_node_is_measured(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.nodes[1] = node("old", state="measuring")
    await stage.told("waiting for old")
    stage.run.stop()
    assert (await stage.end()).phase == "stopped"
    assert not stage.seats["head"].asked


async def test_a_stop_while_it_runs(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    stage.run.stop()
    state = await stage.end()
    assert (state.phase, state.exit) == ("stopped", 130)
    ends = [m for seat in stage.seats.values() for m in seat.asked if isinstance(m, EndRun)]
    assert [m.run for m in ends] == [stage.run.id, stage.run.id]


async def test_a_node_that_is_never_measured_is_waited_for_no_longer_than_patience(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.nodes[1] = node("old", state="measuring", capacity=None)
    await stage.told("waiting for old")
    stage.now = conductor.MEASURING_PATIENCE_S + 1
    await stage.started()
    stage.run.stop()
    await stage.end()


# --- what ranks send ----------------------------------------------------------------------------------------------


def output(path: str, data: bytes, offset: int = 0) -> dict[str, Any]:
    return {"kind": "output", "path": path, "offset": offset, "data": base64.b64encode(data).decode()}


async def test_output_lands_in_the_runs_folder(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    # cut off after its first piece, and sent again
    for offset, piece in ((0, b"one "), (0, b"one "), (4, b"two")):
        await stage.run.report(0, output("model.pt", piece, offset))
    await stage.run.report(0, output("sub/deep.txt", b"x"))
    folder = stage.run.folder.path
    assert (folder / "model.pt").read_bytes() == b"one two"
    assert (folder / "sub" / "deep.txt").read_bytes() == b"x"
    stage.run.stop()
    await stage.end()


def evil(folder: Path) -> list[Path]:
    return [*folder.rglob("*evil*"), *Path("/tmp").glob("daisychain-evil")]


@pytest.mark.parametrize("path", ["../evil", "a/../../evil", "/tmp/daisychain-evil", "sub/../../../evil"])
async def test_output_lands_nowhere_else(tmp_path: Path, path: str) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(0, output(path, b"x"))
    assert not evil(tmp_path)
    stage.run.stop()
    await stage.end()


@pytest.mark.parametrize(
    "report",
    [
        {}, {"kind": "step"}, {"kind": "step", "step": "x"}, {"kind": "exit"}, {"kind": "exit", "code": "x"},
        {"kind": "exit", "code": -9, "peak_bytes": "much"},
        {"kind": "output"}, {"kind": "output", "path": "x", "data": "!"}, {"kind": "scores"}, {"kind": [1]},
        {"kind": "scores", "scores": 3}, {"kind": "step", "step": float("inf")},
        {"kind": "shares", "reason": "x", "name": "y"}, {"kind": "waiting"}, {"kind": "joined"},
        {"kind": "joined", "generation": "x"}, {"kind": "nonsense"},
    ],
)  # fmt: skip
async def test_a_malformed_report_changes_nothing(tmp_path: Path, report: dict[str, Any]) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    await stage.run.report(0, report)
    for seat in (-1, 2, 99):
        await stage.run.report(seat, {"kind": "exit", "code": 0})
    await stage.finish(0, 1)
    assert (await stage.end()).phase == "finished"


async def test_a_disk_that_fills_up_ends_the_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, head=FakeSeat())
    await stage.train()

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stage.run.folder, "metric", full)
    await stage.run.report(0, step(1, 8))
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 1)
    assert "the disk is full" in state.error


async def test_what_comes_after_the_end_is_passed_over(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    stage.run.stop()
    before = await stage.end()
    await stage.run.report(0, SCRIPT_ERROR)
    await stage.run.report(0, output("late", b"x"))
    assert stage.run.state() == before
    assert not (stage.run.folder.path / "late").exists()


class FakeSession:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def send_chunk(self, number: int, piece: bytes) -> None:
        assert number == 7
        self.pieces.append(piece)


async def test_files_of_this_run_are_served_and_no_others(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    (file,) = bundles.describe({"train.py": stage.script})
    session: Any = FakeSession()
    await stage.run.serve_blob(session, 7, FetchBlob(run=stage.run.id, sha256=file.sha256, offset=2))
    assert session.pieces == [b"ss\n"]
    for run, sha in ((stage.run.id, "0" * 64), ("another", file.sha256), (stage.run.id, "../../etc/passwd")):
        with pytest.raises(DataError, match="has no file"):
            await stage.run.serve_blob(session, 7, FetchBlob(run=run, sha256=sha, offset=0))
    assert len(session.pieces) == 1
    stage.run.stop()
    await stage.end()


async def test_progress_of_shipping_is_shown(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(hang="PrepareRun"))
    await asyncio.wait_for(stage.seats["old"].hangs.wait(), 5)
    stage.run.shipped("old", 12_000_000, 27_000_000)
    assert stage.run.state().detail == "old: 12 of 27 MB"
    stage.run.stop()
    await stage.end()


async def test_two_runs_in_one_second_have_two_folders(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    second = Conductor(
        head="head",
        spec=stage.run.spec,
        paths=stage.paths,
        settings=Settings(),
        clock=lambda: 0.0,
        changed=lambda: None,
    )
    assert second.folder.path != stage.run.folder.path
    second.folder.close()
    stage.run.stop()
    await stage.end()


# --- speeds -------------------------------------------------------------------------------------------------------

FAST = Capacity(fixed_s=0.1, per_sample_s=0.01, threads=1, torch="2")
SLOW = Capacity(fixed_s=0.3, per_sample_s=0.03, threads=1, torch="2")


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ([FAST, SLOW], [(0.1, 0.01), (0.3, 0.03)]),
        ([FAST, None, SLOW], [(0.1, 0.01), (0.2, 0.02), (0.3, 0.03)]),
        ([None, None], [(0.0, 0.001), (0.0, 0.001)]),
    ],
)
def test_an_unmeasured_node_counts_as_the_mean_of_the_others(
    capacities: list[Capacity | None], expected: list[tuple[float, float]]
) -> None:
    nodes = [node(f"n{i}", capacity=capacity) for i, capacity in enumerate(capacities)]
    found = speeds([Seat(each.name, each, FakeSeat(), ("cpu",), 0) for each in nodes])
    assert [pytest.approx(pair) for pair in expected] == list(found)


async def test_a_blocked_path_refuses_the_run_before_any_rank_starts(tmp_path: Path) -> None:
    old = FakeSeat()
    old.blocked["head"] = "no answer"
    stage = Stage(tmp_path, head=FakeSeat(), old=old)
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 4)
    assert "old" in state.error
    assert "can't reach head" in state.error
    assert "ufw" in state.error
    assert all("StartRank" not in seat.kinds() for seat in stage.seats.values())
    assert any(event["event"] == "refused" for event in stage.events())


GLOO = (
    "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect timeout [none]"
)


async def test_ranks_that_gloo_can_not_connect_end_the_run_naming_node_nic_and_peer(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.wait(0, 1)
    stage.seats["old"].blocked["head"] = "no answer"
    for number in range(1, 1 + GIVE_UP_AFTER):
        await stage.order("old", "form", number)
        await stage.wait(0, 1, generation=number, why=GLOO)
    state = await stage.end()
    old = stage.nodes[1]
    assert (state.phase, state.exit) == ("failed", 1)
    assert state.error.startswith(f"gloo can't connect the ranks: old (eth0, {old.address}) can't reach head (eth0, ")
    assert "ufw" in state.error
    # gloo's own words name nobody; they are where they do no harm
    assert "pair.h" not in state.error
    assert state.log_path.endswith("rank-0.log")
    assert GLOO in {event.get("why") for event in stage.events()}


async def test_a_module_that_a_node_lacks_refuses_the_run_before_anything_is_shipped(tmp_path: Path) -> None:
    old = FakeSeat()
    old.lacks = ("pandas",)
    stage = Stage(tmp_path, head=FakeSeat(), old=old)
    stage.script.write_text("import torch\nimport pandas\n", encoding="utf-8")
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 4)
    assert "old: train.py:2 imports pandas" in state.error
    assert "python -m pip install pandas" in state.error
    assert all("PrepareRun" not in seat.kinds() for seat in stage.seats.values())


async def test_a_node_that_comes_later_takes_part_once_it_is_ready(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    late = stage.seats["late"] = FakeSeat()
    stage.run.back(node("late", state="measuring"), late, alive=())
    assert len(stage.run.taking_part) == 2
    stage.run.news(node("late"), late)
    await asyncio.wait_for(late.started.wait(), 5)
    assert late.kinds() == ["PrepareRun", "StartRank"]
    assert late.starts()[0].names == ("head", "old", "late")
    await stage.wait(2)
    assert (await stage.order("head", "boundary"))["generation"] == 1
    stage.run.stop()
    await stage.end()


async def test_a_run_of_named_nodes_takes_no_others(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    spec = RunSpec(job="script", path=str(tmp_path / "x.py"), nodes=("head", "old"))
    stage = Stage(tmp_path, spec=spec)
    await stage.train()
    late = FakeSeat()
    stage.run.news(node("late"), late)
    await asyncio.sleep(0.05)
    assert late.asked == []
    assert len(stage.run.taking_part) == 2
    stage.run.stop()
    await stage.end()


# --- several ranks on a node ---------------------------------------------------------------------------------------


def orders_to(side: FakeSeat, kind: str) -> list[int]:
    """The seats that got an order of this kind on a node."""
    return [m.seat for m in side.asked if isinstance(m, OrderRank) and m.order["kind"] == kind]


def two_each(tmp_path: Path) -> Stage:
    (tmp_path / "x.py").touch()
    return Stage(tmp_path, spec=RunSpec(job="script", path=str(tmp_path / "x.py"), ranks=2))


async def train_on_four(stage: Stage) -> None:
    await stage.starts("head", 2)
    await stage.starts("old", 2)
    await stage.wait(0, 1, 2, 3)
    for seat in range(4):
        await stage.run.report(seat, {"kind": "joined", "generation": 1, "completed": 0})


async def test_every_rank_of_a_node_has_its_seat_and_the_files_are_shipped_once(tmp_path: Path) -> None:
    stage = two_each(tmp_path)
    await train_on_four(stage)
    names = ("head:0", "head:1", "old:0", "old:1")
    starts = [message for seat in stage.seats.values() for message in seat.starts()]
    assert [(m.seat, m.place, m.devices, m.names) for m in starts] == [
        (seat, seat % 2, ("cpu", "cpu"), names) for seat in range(4)
    ]
    for name, seat in stage.seats.items():
        assert [kind for kind in seat.kinds() if kind != "OrderRank"] == [
            "PrepareRun", "Listen", "TryPaths", "SendFlow", "StartRank", "StartRank"
        ]  # fmt: skip
        await stage.order(name, "form", 2)
    formations = [order["formation"] for seat in stage.seats.values() for order in seat.orders()]
    assert [formation["rank"] for formation in formations] == [0, 1, 2, 3]
    assert {(tuple(formation["names"]), formation["address"]) for formation in formations} == {(names, "10.0.0.1")}
    # each of the two has half of its node's CPU
    assert formations[0]["speeds"] == ((0.001, 0.0002),) * 4
    assert len(stage.run.taking_part) == 2
    assert [stage.run.node_of(seat) for seat in (-1, 0, 1, 2, 3, 4)] == [
        "", "id-head", "id-head", "id-old", "id-old", ""
    ]  # fmt: skip
    await stage.finish(0, 1, 2, 3)
    assert (await stage.end()).exit == 0
    assert [seat.kinds().count("EndRun") for seat in stage.seats.values()] == [1, 1]


async def test_a_nodes_share_is_that_of_its_ranks_together(tmp_path: Path) -> None:
    stage = two_each(tmp_path)
    await train_on_four(stage)
    await stage.run.report(0, {"kind": "plan", "steps": 4, "epochs": 1, "batch": 96, "shares": [40, 30, 20, 6]})
    assert stage.run.shares == {"id-head": 70, "id-old": 26}
    stage.run.stop()
    await stage.end()


async def test_one_rank_of_a_node_is_lost_and_started_again_alone(tmp_path: Path) -> None:
    stage = two_each(tmp_path)
    await train_on_four(stage)
    await stage.run.report(3, {"kind": "exit", "code": -9})
    await stage.order("old", "break")
    await stage.starts("old", 3)
    assert [(m.seat, m.resume) for m in stage.seats["old"].starts()] == [(2, False), (3, False), (3, True)]
    assert orders_to(stage.seats["old"], "break") == [2]
    await stage.wait(0, 1, 2, generation=1, completed=3, why="reset")
    assert (await stage.order("old", "form", 3))["formation"]["names"] == ["head:0", "head:1", "old:0"]
    stage.run.stop()
    await stage.end()


@pytest.mark.parametrize("alive", [(), (2,), (2, 3)])
async def test_a_lost_node_takes_all_its_ranks_along_and_each_comes_back_as_it_is(
    tmp_path: Path, alive: tuple[int, ...]
) -> None:
    stage = two_each(tmp_path)
    await train_on_four(stage)
    stage.run.lost(stage.nodes[1], "not heard of for 6 s")
    await stage.wait(0, 1, generation=1, completed=3, why="cut")
    assert (await stage.order("head", "form", 3))["formation"]["names"] == ["head:0", "head:1"]
    assert sum("old is lost" in line for line in stage.run.state().log) == 1
    again = stage.seats["old"] = FakeSeat()
    stage.run.back(stage.nodes[1], again, alive=alive)
    await stage.starts("old", 2 - len(alive)) if len(alive) < 2 else await stage.order("old", "break", 2)
    assert orders_to(again, "break") == list(alive)
    assert sorted(message.seat for message in again.starts()) == [seat for seat in (2, 3) if seat not in alive]
    # its agent has the files for as long as one of its ranks lives
    assert again.kinds().count("PrepareRun") == int(not alive)
    stage.run.stop()
    await stage.end()


async def test_a_node_that_comes_later_brings_all_its_ranks_and_a_lent_one_takes_them_out(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.train()
    late, three = stage.seats.setdefault("late", FakeSeat()), node("late", ranks=3)
    stage.run.news(three, late)
    await stage.starts("late", 3)
    assert late.kinds().count("PrepareRun") == 1
    assert late.starts()[-1].names == ("head", "old", "late:0", "late:1", "late:2")
    stage.run.lend(msgspec.structs.replace(three, lent=True))
    assert stage.run.state().lent == ("late:0", "late:1", "late:2")
    assert [event["node"] for event in stage.events() if event["event"] == "lent"] == ["late"]
    assert [place.lent for place in stage.run._generations.seats] == [False, False, True, True, True]
    stage.run.stop()
    await stage.end()


async def test_gpus_get_a_rank_each_and_one_that_is_left_out_is_said(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    gpus = tuple(
        Gpu(name=name, verdict=Verdict(level="ok" if name == "A2000" else "warn", check="gpu", reason=f"{name}: why"))
        for name in ("K80", "A2000")
    )
    stage.nodes[1] = msgspec.structs.replace(
        stage.nodes[1], ranks=1, device=msgspec.structs.replace(NODE.device, gpus=gpus)
    )
    await stage.starts("old", 2)
    starts = stage.seats["old"].starts()
    assert [(m.devices, m.place) for m in starts] == [(("cuda:1", "cpu"), 0), (("cuda:1", "cpu"), 1)]
    assert starts[0].names == ("head", "old:cuda1", "old:cpu")
    log = "\n".join(stage.run.state().log)
    assert "old: K80: why" in log
    assert "A2000: why" not in log
    stage.run.stop()
    await stage.end()


async def test_a_run_whose_network_is_not_measured_is_forecast_from_its_ranks_sums(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(fail={"SendFlow": LinkError("no answer")}))
    await stage.train()
    await stage.run.report(0, PLAN)
    assert stage.run.state().phase == "running"
    await stage.run.report(0, TRIAL)
    await stage.order("head", "go")
    assert [event["event"] for event in stage.events() if event["event"] in ("network", "forecast")] == ["forecast"]
    stage.run.stop()
    await stage.end()
