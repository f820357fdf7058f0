"""A rank's process, its reports and its end, with tiny children in the place of torch."""

import asyncio
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from daisychain.agent import ranks
from daisychain.agent.bundles import BlobStore
from daisychain.agent.ranks import NodeRun, run_child
from daisychain.config import Paths, locate
from daisychain.errors import DaisyError, DataError
from daisychain.link.messages import Done, File, PrepareRun, StartRank

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")

FAKE_RANK = """
import json, os, subprocess, sys, time
task = json.loads(sys.stdin.readline())
say = lambda **facts: print(json.dumps(facts), flush=True)
mode = task["args"][0]
if mode == "told":
    keys = "RANK WORLD_SIZE GLOO_SOCKET_IFNAME OMP_NUM_THREADS".split()
    say(kind="task", task=task, env={key: os.environ.get(key) for key in keys}, cwd=os.getcwd(),
        gpus=[os.environ.get(key) for key in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")])
    print("words to the log", file=sys.stderr)
elif mode == "noise":
    print("not json"); print("[1, 2]"); print("{" * 10); print()
    print(json.dumps({"kind": "long", "text": "x" * 2_000_000}))
    say(kind="after")
elif mode == "exit":
    sys.exit(7)
elif mode == "suicide":
    os.kill(os.getpid(), 9)
elif mode == "echo":
    say(kind="waiting", port=1, generation=0, completed=0, why="")
    for line in sys.stdin:
        say(kind="obeyed", order=json.loads(line))
elif mode == "deaf":
    say(kind="waiting", port=1, generation=0, completed=0, why="")
    time.sleep(120)
elif mode == "beats":
    say(kind="beat"); say(kind="after")
else:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
    say(kind="child", pid=child.pid)
    if mode == "family":
        time.sleep(120)
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return locate({"DAISYCHAIN_HOME": str(tmp_path / "home")})


@pytest.fixture
def node_run(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeRun:
    (tmp_path / "fake_rank.py").write_text(FAKE_RANK, encoding="utf-8")
    monkeypatch.setattr(ranks, "RANK_MODULE", "fake_rank")
    monkeypatch.setattr(ranks, "DRAIN_S", 0.1)
    return NodeRun(paths, "run-1", {"PYTHONPATH": str(tmp_path)})


def blob(content: bytes, path: str = "train.py") -> File:
    return File(path, hashlib.sha256(content).hexdigest(), len(content))


def order(*files: File) -> PrepareRun:
    return PrepareRun(run="run-1", files=files)


async def shipped(have: int, total: int) -> None:
    pass


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


class Heard:
    """What a rank reported, and its exit."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.exit = asyncio.Event()
        self.first = asyncio.Event()

    async def __call__(self, rank: int, report: dict[str, Any]) -> None:
        assert rank == 1
        if report["kind"] == "exit":
            self.exit.set()
        self.reports.append(report)
        self.first.set()

    @property
    def code(self) -> int:
        return int(self.reports[-1]["code"])


async def start(run: NodeRun, mode: str, folder: Path, *, resume: bool = False) -> Heard:
    heard = Heard()
    message = StartRank(
        run="run-1", seat=1, names=("head", "old"), script="train.py", args=(mode,), settings={"seed": 3}, resume=resume
    )  # fmt: skip
    answer = await run.start(
        message, address="10.0.0.2", folder=folder, threads=2, slowdown=1.5, nic="eth7", report=heard
    )  # fmt: skip
    assert answer == Done()
    return heard


async def test_a_rank_is_told_its_place_and_starts_in_its_work_folder(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    folder = tmp_path / "runs"
    heard = await start(node_run, "told", folder, resume=True)
    await asyncio.wait_for(heard.exit.wait(), 20)
    first = heard.reports[0]
    assert first["env"] == {
        "RANK": "1", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth7", "OMP_NUM_THREADS": "2"
    }  # fmt: skip
    assert Path(first["cwd"]) == node_run.folder.resolve()
    task = first["task"]
    assert (task["slowdown"], task["threads"], task["settings"]) == (1.5, 2, {"seed": 3})
    assert (task["rank"], task["names"], task["address"], task["resume"]) == (1, ["head", "old"], "10.0.0.2", True)
    assert task["checkpoints"] == str(folder / "checkpoints")
    assert task["output"] == str(node_run.rank(1).output) == str(node_run.folder / ".output")
    assert heard.code == 0
    assert "words to the log" in (folder / "rank-1.log").read_text(encoding="utf-8")
    await node_run.end()
    assert not node_run.folder.exists()


async def test_noise_on_the_pipe_is_passed_over(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "noise", tmp_path / "log")
    await asyncio.wait_for(heard.exit.wait(), 20)
    assert [report["kind"] for report in heard.reports] == ["after", "exit"]
    await node_run.end()


@pytest.mark.parametrize(("mode", "code"), [("exit", 7), ("suicide", -9)])
async def test_the_last_report_is_the_exit(node_run: NodeRun, tmp_path: Path, mode: str, code: int) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, mode, tmp_path / "log")
    await asyncio.wait_for(heard.exit.wait(), 20)
    assert heard.code == code
    await node_run.end()


async def test_a_killed_rank_comes_with_the_memory_it_held_and_whether_the_kernel_did_it(
    node_run: NodeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "SILENT_AFTER_S", 0.2)
    kills = iter([4, 5])
    monkeypatch.setattr(ranks, "count_oom_kills", lambda: next(kills))
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "deaf", tmp_path)
    await Until.kind(heard, "silent")
    (pid,) = [child.pid for child in psutil.Process().children() if "fake_rank" in " ".join(child.cmdline())]
    os.kill(pid, 9)
    await asyncio.wait_for(heard.exit.wait(), 20)
    last = heard.reports[-1]
    assert (last["kind"], last["code"], last["oom"]) == ("exit", -9, True)
    assert 1_000_000 < last["peak_bytes"] < 200_000_000
    await node_run.end()


def test_torch_on_windows_is_told_to_do_without_libuv() -> None:
    assert ranks.of_system("win32") == {"USE_LIBUV": "0"}
    assert ranks.of_system("linux") == ranks.of_system("darwin") == {}


async def test_the_end_kills_the_rank_and_its_children_and_reports_nothing(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "family", tmp_path / "log")
    await asyncio.wait_for(heard.first.wait(), 20)
    child = heard.reports[0]["pid"]
    assert alive(child)
    await asyncio.wait_for(node_run.end(), 10)
    assert await gone(child)
    assert not heard.exit.is_set()


async def test_a_child_that_outlives_its_rank_hides_no_exit_and_is_killed(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "orphan", tmp_path / "log")
    await asyncio.wait_for(heard.exit.wait(), 10)
    child = heard.reports[0]["pid"]
    assert heard.code == 0
    assert alive(child)
    await node_run.end()
    assert await gone(child)


async def test_the_end_may_come_twice_or_before_anything_was_started(node_run: NodeRun) -> None:
    assert await node_run.end() == Done()
    assert await node_run.end() == Done()


# --- while it runs -------------------------------------------------------------------------------------------


class Until:
    """Waits for a report."""

    @staticmethod
    async def kind(heard: Heard, kind: str, count: int = 1) -> dict[str, Any]:
        for _ in range(1000):
            found = [report for report in heard.reports if report["kind"] == kind]
            if len(found) >= count:
                return found[-1]
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {kind} but {heard.reports}")


FORM = {"kind": "form", "formation": {"generation": 3}}


async def test_orders_reach_the_rank_in_order_and_its_waiting_is_remembered_until_it_is_over(
    node_run: NodeRun, tmp_path: Path
) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    assert (node_run.alive, node_run.rank(1).waits, node_run.rank(1).generation) == ((), None, 0)
    heard = await start(node_run, "echo", tmp_path)
    waiting = await Until.kind(heard, "waiting")
    assert node_run.alive
    assert node_run.rank(1).waits == waiting
    await node_run.order(1, {"kind": "break", "generation": 2})
    assert node_run.rank(1).waits == waiting
    await node_run.order(1, FORM)
    assert (node_run.rank(1).waits, node_run.rank(1).generation) == (None, 3)
    await Until.kind(heard, "obeyed", 2)
    assert [report["order"]["kind"] for report in heard.reports if report["kind"] == "obeyed"] == ["break", "form"]
    await node_run.end()
    assert not node_run.alive


async def test_an_order_to_a_rank_that_has_ended_is_no_error(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    await node_run.order(1, FORM)
    heard = await start(node_run, "exit", tmp_path)
    await asyncio.wait_for(heard.exit.wait(), 20)
    for _ in range(3):
        await node_run.order(1, FORM)
    await node_run.end()


async def test_a_rank_that_reads_no_orders_holds_nobody_up(
    node_run: NodeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "ORDER_TIMEOUT_S", 0.05)
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "deaf", tmp_path)
    await Until.kind(heard, "waiting")
    for _ in range(4):
        await asyncio.wait_for(node_run.order(1, {"kind": "form", "formation": {"generation": 1, "x": "x" * 10**6}}), 5)
    await node_run.end()


async def test_a_rank_may_be_started_again(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    first = await start(node_run, "suicide", tmp_path)
    await asyncio.wait_for(first.exit.wait(), 20)
    second = await start(node_run, "echo", tmp_path)
    await Until.kind(second, "waiting")
    assert node_run.alive
    await node_run.end()


async def test_silence_is_told_once_and_so_is_its_end(
    node_run: NodeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "SILENT_AFTER_S", 0.2)
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "echo", tmp_path)
    await Until.kind(heard, "waiting")
    await Until.kind(heard, "silent")
    await node_run.order(1, {"kind": "break", "generation": 1})
    await Until.kind(heard, "heard")
    kinds = [report["kind"] for report in heard.reports if report["kind"] in ("silent", "heard")]
    assert kinds[:2] == ["silent", "heard"]
    await node_run.end()


async def test_beats_stay_on_the_node(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    heard = await start(node_run, "beats", tmp_path)
    await asyncio.wait_for(heard.exit.wait(), 20)
    assert [report["kind"] for report in heard.reports] == ["after", "exit"]
    await node_run.end()


async def test_two_ranks_of_a_node_are_told_apart_in_everything(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    heard: dict[int, list[dict[str, Any]]] = {3: [], 4: []}
    ended = {seat: asyncio.Event() for seat in heard}

    async def hear(seat: int, report: dict[str, Any]) -> None:
        heard[seat].append(report)
        if report["kind"] == "exit":
            ended[seat].set()

    devices = ("cuda:1", "cpu")
    for seat, mode in ((3, "told"), (4, "told")):
        message = StartRank(
            run="run-1", seat=seat, names=("a", "b", "c", "d", "e"), devices=devices, place=seat - 3,
            script="train.py", args=(mode,), settings={},
        )  # fmt: skip
        await node_run.start(
            message, address="10.0.0.2", folder=tmp_path, threads=4, slowdown=1.0, nic="eth0", report=hear
        )
    for event in ended.values():
        await asyncio.wait_for(event.wait(), 20)
    tasks = {seat: reports[0]["task"] for seat, reports in heard.items()}
    gpus = {seat: reports[0]["gpus"] for seat, reports in heard.items()}
    assert gpus == {3: ["PCI_BUS_ID", "1"], 4: ["PCI_BUS_ID", ""]}
    assert {seat: (task["rank"], task["device"], task["threads"]) for seat, task in tasks.items()} == {
        3: (3, "cuda:0", 1), 4: (4, "cpu", 3)
    }  # fmt: skip
    for what, folder in (("output", node_run.folder / ".output"), ("checkpoints", tmp_path / "checkpoints")):
        assert [tasks[seat][what] for seat in (3, 4)] == [str(folder), f"{folder}-1"]
    assert all((tmp_path / f"rank-{seat}.log").exists() for seat in (3, 4))
    await node_run.end()


async def test_an_order_reaches_its_own_rank_and_the_end_kills_all(node_run: NodeRun, tmp_path: Path) -> None:
    await node_run.prepare(order(), {}, None, shipped)
    obeyed: list[tuple[int, str]] = []
    waiting: dict[int, asyncio.Event] = {0: asyncio.Event(), 1: asyncio.Event()}

    async def hear(seat: int, report: dict[str, Any]) -> None:
        if report["kind"] == "obeyed":
            obeyed.append((seat, report["order"]["kind"]))
        waiting[seat].set()

    for seat in waiting:
        message = StartRank(
            run="run-1", seat=seat, names=("a", "b"), devices=("cpu", "cpu"), place=seat,
            script="train.py", args=("echo",), settings={},
        )  # fmt: skip
        await node_run.start(
            message, address="10.0.0.2", folder=tmp_path, threads=2, slowdown=1.0, nic="eth0", report=hear
        )
    for event in waiting.values():
        await asyncio.wait_for(event.wait(), 20)
        event.clear()
    assert node_run.alive == (0, 1)
    await node_run.order(1, {"kind": "form", "formation": {"generation": 2}})
    await asyncio.wait_for(waiting[1].wait(), 20)
    assert obeyed == [(1, "form")]
    assert (node_run.rank(0).generation, node_run.rank(1).generation) == (0, 2)
    assert node_run.rank(0).waits is not None
    await node_run.end()
    assert node_run.alive == ()


# --- getting ready ------------------------------------------------------------------------------------------


async def test_files_of_this_machine_are_laid_out_without_fetching(node_run: NodeRun, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"code")
    file = blob(b"code", "pkg/train.py")
    assert await node_run.prepare(order(file), {file.sha256: tmp_path / "source"}, None, shipped) == Done()
    assert (node_run.folder / "pkg" / "train.py").read_bytes() == b"code"
    await node_run.end()


def server(contents: dict[str, bytes], asked: list[int]) -> Callable[..., Any]:
    async def fetch(file: File, offset: int, sink: Callable[[bytes], None]) -> None:
        asked.append(offset)
        for at in range(offset, file.size, 2):
            sink(contents[file.sha256][at : at + 2])

    return fetch


async def test_missing_files_are_fetched_once_and_a_part_is_gone_on_with(node_run: NodeRun, paths: Paths) -> None:
    one, two, empty = b"hello world", b"two", b""
    files = [blob(one, "a"), blob(one, "copy-of-a"), blob(two, "b"), blob(empty, "empty")]
    contents = {hashlib.sha256(c).hexdigest(): c for c in (one, two, empty)}
    paths.blobs.mkdir(parents=True)
    (paths.blobs / f"{files[0].sha256}.part").write_bytes(b"hello ")
    asked: list[int] = []
    told: list[tuple[int, int]] = []

    async def progress(have: int, total: int) -> None:
        told.append((have, total))

    await node_run.prepare(order(*files), {}, server(contents, asked), progress)
    assert asked == [6, 0, 0]
    assert told[-1] == (14, 14)
    laid = {p.name: p.read_bytes() for p in node_run.folder.iterdir() if p.is_file()}
    assert laid == {"a": one, "copy-of-a": one, "b": two, "empty": b""}
    await node_run.end()
    again = NodeRun(paths, "run-1", {})
    await again.prepare(order(*files), {}, server({}, asked), progress)
    assert len(asked) == 3
    await again.end()


async def test_content_that_is_another_is_refused(node_run: NodeRun) -> None:
    file = blob(b"hello")
    with pytest.raises(DataError, match="arrived damaged"):
        await node_run.prepare(order(file), {}, server({file.sha256: b"jello"}, []), shipped)
    await node_run.end()


async def test_a_disk_that_fills_up_meanwhile_is_said(node_run: NodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BlobStore, "append", full)
    with pytest.raises(DaisyError, match="disk is full"):
        await node_run.prepare(order(blob(b"x")), {}, server({blob(b"x").sha256: b"x"}, []), shipped)
    await node_run.end()


async def test_an_end_during_shipping_ends_the_fetching_and_leaves_nothing(node_run: NodeRun) -> None:
    fetching = asyncio.Event()
    cut = asyncio.Event()

    async def fetch(*_: object) -> None:
        fetching.set()
        try:
            await asyncio.sleep(60)
        finally:
            cut.set()

    preparing = asyncio.ensure_future(node_run.prepare(order(blob(b"x")), {}, fetch, shipped))
    await asyncio.wait_for(fetching.wait(), 5)
    await node_run.end()
    with pytest.raises(DaisyError, match="ended meanwhile"):
        await asyncio.wait_for(preparing, 5)
    assert cut.is_set()
    assert not node_run.folder.exists()


async def test_an_end_while_files_are_laid_out_waits_for_it_and_leaves_nothing(
    node_run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def slow(_: object, folder: Path, __: Path) -> None:
        begun.set()
        go.wait(5)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "late").touch()
        done.set()

    monkeypatch.setattr(ranks, "lay_out", slow)
    preparing = asyncio.ensure_future(node_run.prepare(order(), {}, None, shipped))
    assert await asyncio.to_thread(begun.wait, 5)
    preparing.cancel()
    ending = asyncio.ensure_future(node_run.end())
    await asyncio.wait({ending}, timeout=0.05)
    go.set()
    await asyncio.wait_for(ending, 5)
    assert await asyncio.to_thread(done.wait, 5)
    assert not node_run.folder.exists()
    with pytest.raises(asyncio.CancelledError):
        await preparing


# --- children that prepare data ---------------------------------------------------------------------------------


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(body: str) -> str:
        head = "import json, os, sys, time\norder = json.loads(sys.stdin.readline())\n"
        (tmp_path / "fake_child.py").write_text(head + body, encoding="utf-8")
        return "fake_child"

    return write


async def test_a_child_gets_its_order_and_its_last_line_is_the_answer(child: Callable[[str], str]) -> None:
    body = """
print(json.dumps({"kind": "progress", "rows": 3}), flush=True)
print("a library's own words")
print("[1]")
print(json.dumps({"kind": "done", "files": [order["out"]]}))
"""
    told: list[dict[str, Any]] = []
    done = await run_child(child(body), {"out": "x"}, told.append)
    assert done == {"kind": "done", "files": ["x"]}
    assert told == [{"kind": "progress", "rows": 3}, done]


@pytest.mark.parametrize(("exit_code", "kind"), [(2, DataError), (1, DaisyError)])
async def test_a_childs_error_line_is_the_error(
    child: Callable[[str], str], exit_code: int, kind: type[DaisyError]
) -> None:
    body = f"""
print(json.dumps({{"kind": "error", "what": "x.csv: no column 'y'", "remedy": "Look", "exit": {exit_code}}}))
sys.exit({exit_code})
"""
    with pytest.raises(DaisyError) as caught:
        await run_child(child(body), {}, lambda _: None)
    assert type(caught.value) is kind
    assert (caught.value.what, caught.value.remedy) == ("x.csv: no column 'y'", "Look")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("sys.exit(3)", "exit code 3"),
        ("print(json.dumps({'kind': 'progress'}))", "exit code 0"),
        ("print(json.dumps({'kind': 'done'})); sys.exit(4)", "exit code 4"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
async def test_a_child_without_an_answer_fails_with_its_last_words(
    child: Callable[[str], str], body: str, words: str
) -> None:
    with pytest.raises(DaisyError, match=words):
        await run_child(child(body), {}, lambda _: None)


async def test_a_child_is_killed_when_nobody_waits_for_it_any_more(child: Callable[[str], str]) -> None:
    pids: list[int] = []
    running = asyncio.ensure_future(
        run_child(
            child("print(json.dumps({'kind': 'pid', 'pid': os.getpid()}), flush=True); time.sleep(120)"), {},
            lambda line: pids.append(line["pid"]),
        )
    )  # fmt: skip
    while not pids:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await gone(pids[0])
    assert pids[0] != os.getpid()
