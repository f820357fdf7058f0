"""Forked ranks against ranks started afresh: a test sees no difference, and nothing of either is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from daisychain_test_nursery import CAN_FORK, PASSING, Forked

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
needs_fork = pytest.mark.skipif(not CAN_FORK, reason="ranks are always started afresh here")

TELLING = """
import io, json, os, random, signal, sys, threading
import __main__
print("to the log")
os.system("echo from a child")
telling = {
    "leader": os.getsid(0) == os.getpgid(0) == os.getpid(), "folder": os.getcwd(), "path": sys.path, "argv": sys.argv,
    "environment": {k: v for k, v in os.environ.items() if k not in sys.argv[2:]}, "main": __main__.__name__,
    "streams": [(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.isatty())
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "handlers": [str(signal.getsignal(n)) for n in signal.valid_signals()], "nice": os.nice(0),
    "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "threads": sorted(t.name for t in threading.enumerate()), "safe": getattr(sys.flags, "safe_path", None),
    "open": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in os.listdir("/proc/self/fd")
                   if os.path.exists(f"/proc/self/fd/{n}")),
}
with open(sys.argv[1], "w") as stream:
    json.dump(telling, stream)
import torch
print("cores", torch.get_num_threads(), torch.get_num_interop_threads())
"""
SLEEPING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("child", child.pid, flush=True)
time.sleep(300)
"""


HOLDER = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from nursery import Nurseries
nurseries = Nurseries(Path())
with open("log", "ab") as log:
    rank = nurseries.start(0, Path.cwd(), log)
rank.stdin.write(json.dumps({"script": "script.py", "threads": 1}).encode() + b"\\n")
rank.stdin.flush()
print(rank.pid, *(nursery.process.pid for nursery, _ in nurseries._there.values()), flush=True)
sys.stdin.read()
"""


def gone(*pids: int, zombies: bool = False) -> bool:
    """Whether all of them end within seconds; one that nobody waited for is a zombie."""
    until = time.monotonic() + 10
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        if zombies and all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in left):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def child_of(log: Path) -> int:
    until = time.monotonic() + 60
    while not log.exists() or "child" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    return int(log.read_text().split("child ")[1].split()[0])


@needs_fork
def test_a_forked_rank_finds_what_one_started_afresh_finds(start, tmp_path):
    found = {}
    for name, afresh in (("forked", False), ("afresh", True)):
        (rank,) = start(TELLING, args=["told.json", *PASSING], afresh=afresh)
        assert isinstance(rank.process, Forked) is not afresh
        assert rank.finish()[0] == 0, rank.log.read_text()
        log = [line for line in rank.log.read_text().splitlines() if line.startswith(("to", "from", "cores"))]
        found[name] = json.loads((tmp_path / "told.json").read_text()), log
        rank.log.unlink()
    assert found["forked"] == found["afresh"]
    assert found["forked"][1][:2] == ["to the log", "from a child"]


@needs_fork
@pytest.mark.skipif("PYTHONHASHSEED" in os.environ, reason="all sets are in the same order")
def test_neighbours_are_of_different_nurseries(start):
    """Otherwise sets would be in the same order on all ranks, and nobody would notice a script that relies on it."""
    ranks = start("print('hash', hash('a'))", 2)
    assert [code for code, _ in ranks.finish()] == [0, 0]
    hashes = [rank.log.read_text().split("hash ")[1] for rank in ranks]
    assert hashes[0] != hashes[1]


@needs_fork
def test_ranks_of_one_nursery_draw_different_numbers(start):
    text = """
    import random, torch
    print("drew", [torch.initial_seed(), torch.rand(1).item(), random.random()])
    """
    drawn = []
    for _ in range(2):
        (rank,) = start(text)
        assert rank.finish()[0] == 0
        drawn.append(json.loads(rank.log.read_text().split("drew ")[-1]))
    assert not set(drawn[0]) & set(drawn[1])


def test_how_a_rank_ends_is_told(start):
    for text, code in (("import os; os._exit(7)", 7), ("import os; os.abort()", -signal.SIGABRT)):
        (rank,) = start(text)
        assert rank.finish()[0] == code
        assert gone(rank.process.pid)
        assert rank.process.wait() == rank.process.wait(0) == code


def test_a_rank_is_waited_for_frozen_and_killed(start):
    (rank,) = start(SLEEPING)
    child = child_of(rank.log)
    os.killpg(rank.process.pid, signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        rank.process.wait(0.1)
    assert psutil.Process(rank.process.pid).status() == psutil.STATUS_STOPPED
    rank.kill()
    assert rank.process.wait(5) == -signal.SIGKILL
    assert gone(rank.process.pid)
    assert gone(child, zombies=True)


def test_another_environment_needs_a_start_afresh(start, monkeypatch):
    monkeypatch.setenv("DAISYCHAIN_ANY", "1")
    (rank,) = start("import os; assert os.environ['DAISYCHAIN_ANY'] == '1'")
    assert isinstance(rank.process, subprocess.Popen)
    assert rank.finish()[0] == 0


@needs_fork
def test_a_nursery_and_its_ranks_end_with_a_session_that_is_killed(tmp_path):
    """Also a rank that can't notice it."""
    (tmp_path / "script.py").write_text(SLEEPING)
    command = [sys.executable, "-c", HOLDER, str(Path(__file__).parent)]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        rank, nursery = map(int, holder.stdout.readline().split())
        child = child_of(tmp_path / "log")
        os.kill(rank, signal.SIGSTOP)
        holder.kill()
        holder.wait(10)
    assert gone(rank)
    assert gone(nursery, child, zombies=True)
