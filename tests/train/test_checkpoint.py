"""Checkpoints: whole or not there, whatever happens to the writer, the disk or the file."""

import errno
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from daisychain.train import checkpoint
from daisychain.train.checkpoint import Keeper, newest, save

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


def record(step: int, size: int = 1000) -> dict[str, Any]:
    training = {"models": [{"parameters": {"weight": torch.full((size,), float(step))}}]}
    return {"v": 1, "step": step, "epoch": 2, "index": 3, "training": training, "ledger": {"digest": 2**64 - 1}}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def step_of(folder: Path, told: list[str]) -> int | None:
    found = newest(folder, told.append)
    if found is None:
        return None
    weight = found["training"]["models"][0]["parameters"]["weight"]
    assert torch.equal(weight, torch.full_like(weight, float(found["step"])))
    return int(found["step"])


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Holds a write at its fsync until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.reached.set()
            assert self.opened.wait(30)
            real(descriptor)

        monkeypatch.setattr(checkpoint.os, "fsync", fsync)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def keep(tmp_path: Path, told: list[str]) -> Iterator[Callable[..., Keeper]]:
    made: list[Keeper] = []

    def build(clock: Callable[[], float] = time.monotonic, every_s: float = 30.0) -> Keeper:
        made.append(Keeper(tmp_path, clock, every_s, tell=told.append))
        return made[-1]

    yield build
    for keeper in made:
        keeper.close(10)


def test_what_is_written_comes_back(keep: Callable[..., Keeper], tmp_path: Path, told: list[str]) -> None:
    keeper = keep()
    wanted = record(1234)
    keeper.write(wanted)
    assert keeper.close(10)
    assert names(tmp_path) == ["step-00001234.pt"]
    found = newest(tmp_path, told.append)
    assert found is not None
    weight = found["training"]["models"][0]["parameters"].pop("weight")
    assert torch.equal(weight, wanted["training"]["models"][0]["parameters"].pop("weight"))
    assert found == wanted
    assert told == []


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 99_999_999, 100_000_000):
        save(tmp_path, record(step))
    assert names(tmp_path) == ["step-100000000.pt", "step-99999999.pt"]
    assert step_of(tmp_path, []) == 100_000_000


def test_a_run_that_went_on_from_an_older_one_replaces_the_later(tmp_path: Path) -> None:
    """Else a torn step 200 would push out step 100 when 150 comes, and stay the newest for ever."""
    save(tmp_path, record(100))
    (tmp_path / "step-00000200.pt").write_bytes(b"torn")
    save(tmp_path, record(150))
    assert names(tmp_path) == ["step-00000100.pt", "step-00000150.pt"]


def test_it_is_due_when_the_last_one_is_old_enough_and_over(
    keep: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, gate = Clock(), Gate(monkeypatch)
    keeper = keep(clock)
    assert not keeper.due(129.9)
    assert keeper.due(130.0)
    keeper.write(record(1))
    assert gate.reached.wait(10)
    assert not keeper.due(1000.0)
    assert names(tmp_path) == ["step-00000001.tmp"]
    clock.now = 500.0
    gate.opened.set()
    assert keeper.close(10)
    assert not keeper.due(529.9)
    assert keeper.due(530.0)


def test_of_several_that_wait_the_newest_is_written(
    keep: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate(monkeypatch)
    keeper = keep()
    keeper.write(record(1))
    assert gate.reached.wait(10)
    keeper.write(record(2))
    keeper.write(record(3))
    assert not keeper.close(0)
    gate.opened.set()
    assert keeper.close(10)
    assert names(tmp_path) == ["step-00000001.pt", "step-00000003.pt"]


def test_closing_without_a_write_starts_nothing(keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    assert keeper.close(0)
    assert "checkpoints" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ValueError, match="closed"):
        keeper.write(record(1))


def test_the_thread_ends_with_the_keeper(keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    keeper.write(record(1))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "checkpoints"]
    assert thread.daemon
    assert keeper.close(10)
    assert not thread.is_alive()


def test_a_killed_writers_remains_are_removed(keep: Callable[..., Keeper], tmp_path: Path) -> None:
    save(tmp_path, record(1))
    (tmp_path / "step-00000002.tmp").write_bytes(b"half")
    keep()
    assert names(tmp_path) == ["step-00000001.pt"]


# --- a full disk ------------------------------------------------------------------------------------------------


def wait_until(keeper: Keeper) -> None:
    ending = time.monotonic() + 10
    while not keeper.due(float("inf")):
        assert time.monotonic() < ending
        time.sleep(0.005)


def test_a_full_disk_is_told_once_and_leaves_the_older_ones(
    keep: Callable[..., Keeper], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str]
) -> None:
    save(tmp_path, record(1))
    save(tmp_path, record(2))
    keeper = keep()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        for step in (3, 4):
            keeper.write(record(step))
            wait_until(keeper)
            assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt"]
    assert told == ["the checkpoint of step 3 could not be written: [Errno 28] No space left on device"]
    keeper.write(record(5))
    wait_until(keeper)
    assert names(tmp_path) == ["step-00000002.pt", "step-00000005.pt"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        keeper.write(record(6))
        assert not keeper.close(10)
    assert len(told) == 2


LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from daisychain.train.checkpoint import Keeper
from tests_record import record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
keeper = Keeper(folder, lambda: 0.0, tell=print)
keeper.write(record(1, 1000))
while not keeper.due(1e9): pass
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
keeper.write(record(2, 1_000_000))
assert not keeper.close(60)
"""
ENDLESS = """
import sys
from pathlib import Path
import torch
from daisychain.train.checkpoint import save
from tests_record import record
step = 0
while True:
    step += 1
    save(Path(sys.argv[1]), record(step, 2_000_000))
"""
RECORD = """
import torch
def record(step, size):
    training = {"models": [{"parameters": {"weight": torch.full((size,), float(step))}}]}
    return {"v": 1, "step": step, "epoch": 2, "index": 3, "training": training, "ledger": {}}
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a script with a folder for checkpoints, tmp_path/kept."""
    made: list[subprocess.Popen[str]] = []
    (tmp_path / "tests_record.py").write_text(RECORD)

    def start(text: str) -> subprocess.Popen[str]:
        (tmp_path / "child.py").write_text(text)
        (tmp_path / "kept").mkdir(exist_ok=True)
        words = [sys.executable, "-W", "ignore", str(tmp_path / "child.py"), str(tmp_path / "kept")]
        made.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_write_that_the_system_cuts_off_is_told_and_the_older_one_stays(
    child: Callable[[str], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    """The operating system itself refuses bytes in the middle of torch.save."""
    process = child(LIMITED)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert said == "the checkpoint of step 2 could not be written: [Errno 27] File too large\n"
    assert names(tmp_path / "kept") == ["step-00000001.pt"]
    assert step_of(tmp_path / "kept", []) == 1


def test_a_writer_killed_at_any_moment_leaves_a_newest_that_loads(
    child: Callable[[str], "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    folder, half = tmp_path / "kept", 0
    for attempt in range(5):
        process = child(ENDLESS)
        ending = time.monotonic() + 60
        while not (list(folder.glob("*.pt")) and list(folder.glob("*.tmp"))):
            assert process.poll() is None
            assert time.monotonic() < ending
            time.sleep(0.001 * attempt)
        process.kill()
        process.wait()
        there = names(folder)
        half += any(name.endswith(".tmp") for name in there)
        told: list[str] = []
        steps = [int(name[5:13]) for name in there if name.endswith(".pt")]
        assert step_of(folder, told) == max(steps)
        assert told == []
        Keeper(folder, time.monotonic, tell=told.append)
        assert names(folder) == [name for name in there if name.endswith(".pt")]
        for path in folder.iterdir():
            path.unlink()
    assert half, "no kill hit a write that was going on"


# --- torn and hostile files -------------------------------------------------------------------------------------


class Bomb:
    """Unpickled without care, this makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def halved(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path) -> None:
    """One bit of a tensor; torch loads it without a word."""
    data = bytearray(path.read_bytes())
    at = data.index(b"\x00\x00\x48\x43" * 4)  # 200.0 in little endian
    data[at] ^= 1
    path.write_bytes(data)


def bomb(path: Path) -> None:
    torch.save(record(200) | {"ledger": {"x": Bomb(path.parent / "exploded")}}, path)


def bare_bomb(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(path.parent / "exploded")))


TORN = {
    "cut in half": halved,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "one byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one bit flipped": flipped,
    "a zip of something else": lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)),
    "a pickle bomb": bomb,
    "a bare pickle bomb": bare_bomb,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN)
def test_a_torn_one_is_passed_by_and_said(tear: Callable[[Path], Any], tmp_path: Path, told: list[str]) -> None:
    for step in (100, 200):
        save(tmp_path, record(step))
    tear(tmp_path / "step-00000200.pt")
    assert step_of(tmp_path, told) == 100
    assert told == ["checkpoint step-00000200 is torn; going on from step 100"]
    assert not (tmp_path / "exploded").exists()


def test_the_bomb_of_these_tests_would_explode(tmp_path: Path) -> None:
    bare_bomb(tmp_path / "bomb")
    pickle.loads((tmp_path / "bomb").read_bytes())
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"v": 2}, "is of another version"),
        ({"step": 201}, "lacks what it should have"),
        ({"epoch": None}, "lacks what it should have"),
        ({"training": []}, "lacks what it should have"),
    ],
)
def test_one_that_isnt_ours_is_passed_by(change: dict[str, Any], why: str, tmp_path: Path, told: list[str]) -> None:
    save(tmp_path, record(100))
    torch.save(record(200) | change, tmp_path / "step-00000200.pt")
    assert step_of(tmp_path, told) == 100
    assert told == [f"checkpoint step-00000200 {why}; going on from step 100"]


def test_when_all_are_torn_there_is_none(tmp_path: Path, told: list[str]) -> None:
    for step in (100, 200):
        (tmp_path / f"step-{step:08d}.pt").write_bytes(b"x")
    assert step_of(tmp_path, told) is None
    assert told == [f"checkpoint step-00000{step} is torn; there is no other" for step in (200, 100)]


def test_no_folder_and_other_files_are_no_checkpoint(tmp_path: Path, told: list[str]) -> None:
    assert newest(tmp_path / "nowhere", told.append) is None
    for name in ("step-1.pt", "step-00000001.tmp", "step-0000000x.pt", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert newest(tmp_path, told.append) is None
    assert told == []
