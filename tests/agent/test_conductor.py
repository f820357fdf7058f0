"""A head's part of a run, with fake seats in the place of nodes and a hand-set clock."""

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daisychain.agent import bundles, conductor
from daisychain.agent.conductor import Conductor, speeds
from daisychain.config import Settings, locate
from daisychain.errors import DaisyError, DataError, LinkError, PreflightError
from daisychain.facts import Capacity, Device, Node, RunSpec, RunState, Verdict, Versions
from daisychain.link.messages import (
    AnyMessage,
    Done,
    EndRun,
    FetchBlob,
    Listen,
    Listening,
    Message,
    PathsTried,
    Prepared,
    PrepareRun,
    StartRank,
    TryPaths,
)

NODE = Node(
    id="id-head", name="head", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    capacity=Capacity(fixed_s=0.001, per_sample_s=0.0001, threads=2, torch="2.9.0"),
)  # fmt: skip


def node(name: str, **fields: Any) -> Node:
    return msgspec.structs.replace(NODE, id=f"id-{name}", name=name, **fields)


class FakeSeat:
    """Answers as a node would; `fail` maps a message's type to the error it refuses with, `hang` names those that
    are not answered until `release`."""

    def __init__(self, fail: dict[str, DaisyError] | None = None, hang: str = "") -> None:
        self.asked: list[Message] = []
        self.fail, self.hang = fail or {}, hang
        self.blocked: dict[str, str] = {}
        """Why this node can't reach another one, by its name."""
        self.hangs = asyncio.Event()
        self.release = asyncio.Event()
        self.started = asyncio.Event()

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
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
                return Prepared(store_port=4242)
            case Listen():
                return Listening(port=5000)
            case TryPaths(peers=peers):
                return PathsTried(reasons=tuple(self.blocked.get(peer.name, "") for peer in peers))
            case _:
                return Done()

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.asked]


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

    async def told(self, words: str) -> None:
        while words not in self.run.state().detail:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

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
    monkeypatch.setattr(conductor, "GRACE_S", 0.1)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def step(number: int, share: int) -> dict[str, Any]:
    times = {"compute_ms": 8.0, "exposed_ms": 2.0, "step_ms": 10.0}
    return {"kind": "step", "step": number, "epoch": 0, "share": share, "loss": 1.0 / number, **times}


SCRIPT_ERROR = {
    "kind": "error", "origin": "script", "type": "ValueError", "message": "boom", "file": "train.py", "line": 3
}  # fmt: skip
PEER_ERROR = {"kind": "error", "origin": "peer", "type": "RuntimeError", "message": "Connection reset by peer"}


async def test_a_run_from_launch_to_report(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    plan = {"kind": "plan", "steps": 4, "epochs": 1, "batch": 96, "shares": [64, 32]}
    for rank in (0, 1):
        await stage.run.report(rank, plan)
    assert stage.run.state().phase == "running"
    for number in (1, 2, 3, 4):
        stage.now += 0.1
        await stage.run.report(0, step(number, 64))
        await stage.run.report(1, step(number, 32))
    await stage.run.report(0, {"kind": "scores", "scores": {"accuracy": 0.9}})
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
    assert [e["event"] for e in stage.events()] == ["launched", "plan", "scores", "finished"]
    for seat in stage.seats.values():
        assert seat.kinds() == ["PrepareRun", "Listen", "TryPaths", "StartRank", "EndRun"]


async def test_every_rank_is_told_its_place(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    head, old = (seat.asked for seat in stage.seats.values())
    assert [m.serve_store for m in (head[0], old[0]) if isinstance(m, PrepareRun)] == [True, False]
    starts = [m for m in (*head, *old) if isinstance(m, StartRank)]
    assert [(m.rank, m.world_size, m.master_address, m.master_port) for m in starts] == [
        (0, 2, "10.0.0.1", 4242),
        (1, 2, "10.0.0.1", 4242),
    ]
    assert {(m.names, m.script, m.args) for m in starts} == {(("head", "old"), "train.py", ("--lr", "1"))}
    stage.run.stop()
    await stage.end()


async def test_a_lone_node_serves_no_store(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat())
    await stage.started()
    first = stage.seats["head"].asked[0]
    assert isinstance(first, PrepareRun)
    assert not first.serve_store
    await stage.run.report(0, {"kind": "exit", "code": 0})
    assert (await stage.end()).exit == 0


# --- failures ----------------------------------------------------------------------------------------------------


async def test_a_script_error_wins_over_an_earlier_and_a_later_peer_error(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(0, PEER_ERROR)
    await stage.run.report(1, SCRIPT_ERROR)
    await stage.run.report(0, PEER_ERROR)
    await stage.run.report(0, {"kind": "exit", "code": 1})
    state = await stage.end()
    assert (state.phase, state.exit, state.error) == ("failed", 6, "old: train.py:3: ValueError: boom")
    assert "rank-1.log" in state.log_path
    assert state.log_path.startswith("old: ")
    assert stage.report_json()["error"] == state.error


async def test_a_killed_rank_explains_what_its_peers_say(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(0, PEER_ERROR)
    await stage.run.report(0, {"kind": "exit", "code": 1})
    await stage.run.report(1, {"kind": "exit", "code": -9})
    state = await stage.end()
    assert state.exit == 1
    assert state.error.startswith("old: its rank was killed")


async def test_a_peer_error_alone_is_shown_after_a_moment(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(0, PEER_ERROR)
    assert not stage.driving.done()
    assert (await stage.end()).error == "head: RuntimeError: Connection reset by peer"


async def test_an_exit_of_one_rank_does_not_end_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(1, {"kind": "exit", "code": 0})
    await asyncio.sleep(0.01)
    assert not stage.driving.done()
    stage.run.stop()
    await stage.end()


async def test_a_node_that_is_lost_while_it_runs(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    stage.run.lost(node("stranger"), "not ours")
    await asyncio.sleep(0.15)
    assert not stage.driving.done()
    stage.run.lost(stage.nodes[1], "not heard of for 6 s")
    await stage.run.report(0, PEER_ERROR)
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 1)
    assert state.error.startswith("old: not heard of for 6 s. ")
    assert "EndRun" in stage.seats["head"].kinds()


@pytest.mark.parametrize("moment", ["PrepareRun", "StartRank"])
async def test_a_node_that_is_lost_before_the_first_step_is_named(tmp_path: Path, moment: str) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(hang=moment))
    await asyncio.wait_for(stage.seats["old"].hangs.wait(), 5)
    stage.run.lost(stage.nodes[1], "not heard of for 6 s")
    state = await stage.end()
    assert (state.phase, state.exit) == ("failed", 1)
    assert state.error.startswith("old: not heard of for 6 s")


async def test_what_ranks_die_of_while_they_are_ended_explains_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat(hang="EndRun"))
    await stage.started()
    stage.run.lost(stage.nodes[1], "its connection ended")
    await asyncio.wait_for(stage.seats["old"].hangs.wait(), 5)
    await stage.run.report(0, {"kind": "exit", "code": -6})
    stage.seats["old"].release.set()
    state = await stage.end()
    assert state.error.startswith("old: its connection ended")


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
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"StartRank": PreflightError([verdict])}))
    state = await stage.end()
    assert (state.exit, state.error) == (4, "old: the disk is full")


async def test_a_node_that_can_not_be_ended_holds_nothing_up(tmp_path: Path) -> None:
    stage = Stage(tmp_path, head=FakeSeat(), old=FakeSeat({"EndRun": LinkError("gone")}))
    await stage.started()
    for rank in (0, 1):
        await stage.run.report(rank, {"kind": "exit", "code": 0})
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


def output(path: str, data: bytes) -> dict[str, Any]:
    return {"kind": "output", "path": path, "data": base64.b64encode(data).decode()}


async def test_output_lands_in_the_runs_folder(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(0, output("model.pt", b"one "))
    await stage.run.report(0, output("model.pt", b"two"))
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
        {"kind": "output"}, {"kind": "output", "path": "x", "data": "!"}, {"kind": "scores"}, {"kind": [1]},
        {"kind": "scores", "scores": 3}, {"kind": "step", "step": float("inf")},
        {"kind": "shares", "reason": "x", "name": "y"},
    ],
)  # fmt: skip
async def test_a_malformed_report_changes_nothing(tmp_path: Path, report: dict[str, Any]) -> None:
    stage = Stage(tmp_path)
    await stage.started()
    await stage.run.report(0, report)
    for rank in (0, 1, -1, 2, 99):
        await stage.run.report(rank, {"kind": "exit", "code": 0})
    assert (await stage.end()).phase == "finished"


async def test_a_disk_that_fills_up_ends_the_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, head=FakeSeat())
    await stage.started()

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
    found = speeds([node(f"n{i}", capacity=capacity) for i, capacity in enumerate(capacities)])
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
