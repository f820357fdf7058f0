"""`daisychain demo`: a whole chain on this one machine. Needs neither root nor a network."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

MARK = "DAISY_TEST_MARK"


def marked(mark: str) -> list[str]:
    """Every process that was started, directly or not, with this mark in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_the_demo_trains_for_real_and_leaves_nothing(tmp_path: Path) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    scratch.mkdir()
    own = {"DAISYCHAIN_HOME": str(home), "TMPDIR": str(scratch), MARK: str(tmp_path)}
    words = [sys.executable, "-m", "daisychain", "demo", "--headless", "--json"]
    done = subprocess.run(
        words, env=os.environ | own, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(event["v"] == 1 for event in events)
    last = events[-1]
    assert last["event"] == "finished"
    assert last["exit"] == 0
    assert last["steps"] > 0
    assert last["samples_per_second"] > 0
    losses = [e["loss"] for e in events if e["event"] == "progress" and e.get("loss") is not None]
    assert losses[-1] < losses[0]
    until = time.monotonic() + 10
    while marked(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not marked(str(tmp_path))
    # torch's compiler makes a cache folder of its own as soon as it is imported
    assert not [file.name for file in scratch.iterdir() if not file.name.startswith("torchinductor_")]
