"""The fit on lines and noise, the file whole and torn, the measurement with scripted children."""

import asyncio
import math
import os
import signal
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.errors import DaisyError
from daisychain.facts import Capacity, Device
from daisychain.machine import capacity

SIZES = st.integers(1, 1_000_000)
SECONDS = st.floats(1e-7, 1e4)
ONE = Capacity(fixed_s=0.01, per_sample_s=1e-5, threads=2, torch="2.13.0")


@given(st.floats(0, 10), st.floats(1e-7, 1), st.lists(SIZES, min_size=2, max_size=8, unique=True))
def test_an_exact_line_is_found(fixed: float, each: float, sizes: list[int]) -> None:
    a, k = capacity.fit([(n, fixed + each * n) for n in sizes])
    for n in sizes:
        assert math.isclose(a + k * n, fixed + each * n, rel_tol=1e-6)


@given(st.lists(st.tuples(SIZES, SECONDS), min_size=2, max_size=12))
def test_any_measurement_gives_a_usable_line(points: list[tuple[int, float]]) -> None:
    if len({n for n, _ in points}) < 2:
        with pytest.raises(ValueError, match="two sizes"):
            capacity.fit(points)
        return
    a, k = capacity.fit(points)
    assert a >= 0
    assert k > 0
    assert math.isfinite(a)
    assert math.isfinite(k)


def test_errors_are_relative() -> None:
    """10% off at the large size must not drown the small ones, as plain least squares would let it."""
    exact = [(16, 0.0026), (64, 0.0074), (256, 0.0266), (4096, 0.4106)]  # 1 ms + 0.1 ms * n
    a, k = capacity.fit([*exact[:3], (4096, 0.4106 * 1.1)])
    assert a == pytest.approx(0.001, rel=0.35)
    assert k == pytest.approx(1e-4, rel=0.1)


@pytest.mark.parametrize("points", [[(64, 0.2), (256, 0.1)], [(64, 0.1), (256, 0.1)], [(64, 0.1), (256, 0.9)]])
def test_times_that_make_no_sense_promise_nothing(points: list[tuple[int, float]]) -> None:
    a, k = capacity.fit(points)
    assert a == 0
    assert min(t / n for n, t in points) <= k <= max(t / n for n, t in points)


@pytest.mark.parametrize(
    "points", [[(0, 1.0), (2, 2.0)], [(1, 0.0), (2, 2.0)], [(1, math.nan), (2, 1.0)], [(1, math.inf), (2, 1.0)]]
)
def test_impossible_points_are_an_error(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        capacity.fit(points)


# --- the file ---


def test_keys_differ_in_what_matters() -> None:
    one = Device(cpu="A", cores_physical=2, cores_logical=4, memory_bytes=1)
    other = Device(cpu="B", cores_physical=2, cores_logical=4, memory_bytes=1)
    keys = {
        capacity.key(one, "2.13.0", 4),
        capacity.key(other, "2.13.0", 4),
        capacity.key(one, "2.12.0", 4),
        capacity.key(one, "2.13.0", 2),
        capacity.key(one, "2.13.0", 4, 2.0),
    }
    assert len(keys) == 5


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "capacity.json"
    assert capacity.load(file, "a") is None
    capacity.store(file, "a", ONE)
    capacity.store(file, "b", msgspec.structs.replace(ONE, threads=4))
    assert capacity.load(file, "a") == ONE
    assert capacity.load(file, "b") == msgspec.structs.replace(ONE, threads=4)
    assert capacity.load(file, "c") is None


def test_the_file_stays_small(tmp_path: Path) -> None:
    for number in range(capacity.KEPT + 5):
        capacity.store(tmp_path / "c.json", str(number), ONE)
    assert capacity.load(tmp_path / "c.json", "0") is None
    assert capacity.load(tmp_path / "c.json", str(capacity.KEPT + 4)) == ONE


BAD = {
    "empty": b"",
    "torn": b'{"format":1,"capacities":{"a":{"fixed_s":0.0',
    "binary": b"\xff\xfe\x00",
    "a list": b"[]",
    "older": b'{"a":{"fixed_s":0.01,"per_sample_s":1e-05,"threads":2,"torch":"2.13.0"}}',
    "newer": b'{"format":2,"capacities":{"a":{"fixed_s":0.01,"per_sample_s":1e-05,"threads":2,"torch":"2.13.0"}}}',
    "no speed": b'{"format":1,"capacities":{"a":{"fixed_s":0.01,"per_sample_s":0.0,"threads":2,"torch":"2.13.0"}}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_file_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "capacity.json"
    file.write_bytes(content)
    assert capacity.load(file, "a") is None
    capacity.store(file, "a", ONE)
    assert capacity.load(file, "a") == ONE


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(DaisyError, match=r"taken/capacity\.json"):
        capacity.store(tmp_path / "taken" / "capacity.json", "a", ONE)


# --- the measurement ---

GOOD = """
import json, sys
print("a library says hello")
for n in (16, 256, 4096):
    print(json.dumps({"kind": "point", "samples": n, "seconds": 0.002 + 1e-5 * n}))
print(json.dumps({"kind": "done", "torch": "2.13.0"}))
"""
HANGS = """
import os, sys
print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
sys.stderr.write("x" * 1_000_000)
sys.stdin.read()
"""


def script(text: str, *args: str) -> list[str]:
    return [sys.executable, "-S", "-c", text, *args]


async def test_a_child_is_measured() -> None:
    found = await capacity.measure(3, 1.0, script(GOOD))
    assert found.fixed_s == pytest.approx(0.002)
    assert found.per_sample_s == pytest.approx(1e-5)
    assert (found.threads, found.torch) == (3, "2.13.0")


FAILING = {
    "import os; os.kill(os.getpid(), 4)": "AVX2",
    "import os; os.kill(os.getpid(), 9)": "memory ran out",
    "import sys; sys.exit(137)": "memory ran out",
    "import os; os.kill(os.getpid(), 6)": "SIGABRT",
    "import sys; sys.exit('first\\nlast \\x1b[31mwords\\n\\n')": r"last \[31mwords",
    "import sys; sys.exit(3)": "exit code 3",
    "raise ValueError('no such dial')": "ValueError: no such dial",
    "print('{}')": "before it was done",
    """print('{"kind": "done", "torch": "2.13.0"}')""": "two sizes",
    "print('[' * 100000)": "before it was done",
}


@pytest.mark.parametrize("text", FAILING)
async def test_a_failing_child_is_explained(text: str) -> None:
    with pytest.raises(DaisyError, match=FAILING[text]) as caught:
        await capacity.measure(1, 1.0, script(text))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert caught.value.remedy


async def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(DaisyError, match="couldn't be started"):
        await capacity.measure(1, 1.0, ["/no/such/program"])


async def pid_in(file: Path) -> int:
    """The number in a file that another process is about to write."""

    def read() -> str:
        return file.read_text() if file.exists() else ""

    for _ in range(1000):
        if (text := read()).endswith("\n"):
            return int(text)
        await asyncio.sleep(0.01)
    raise AssertionError(f"{file} was never written")


async def test_a_cancelled_measurement_leaves_no_process(tmp_path: Path) -> None:
    task = asyncio.create_task(capacity.measure(1, 1.0, script(HANGS, str(tmp_path / "pid"))))
    pid = await pid_in(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid)


async def test_a_slow_child_is_killed(tmp_path: Path) -> None:
    with pytest.raises(DaisyError, match=r"longer than 0\.5 s"):
        await capacity.measure(1, 1.0, script(HANGS, str(tmp_path / "pid")), limit_s=0.5)
    assert not psutil.pid_exists(await pid_in(tmp_path / "pid"))


def test_signals_without_a_name_are_numbered() -> None:
    assert "signal 99" in str(capacity.explain(-99, ""))
    assert signal.Signals(11).name in str(capacity.explain(-11, ""))


async def test_the_child_ends_when_its_stdin_closes(tmp_path: Path) -> None:
    """The child of a killed parent sees the end of its stdin, since nobody else holds the pipe's other end."""
    command = script(HANGS, str(tmp_path / "pid"))
    parent = f"""
import asyncio
from daisychain.machine import capacity
asyncio.run(capacity.measure(1, 1.0, {command!r}))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent)
    child = psutil.Process(await pid_in(tmp_path / "pid"))
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [child], 10)
    assert gone
