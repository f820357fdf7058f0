"""How fast this machine computes: measured in a child process, fitted to t(n) = a + k*n, remembered in a file."""

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from daisychain.config import write_atomically
from daisychain.errors import DaisyError
from daisychain.facts import Capacity, Device
from daisychain.machine.allocator import keeping

LIMIT_S = 120.0
FORMAT = 1
KEPT = 32
"""Measurements that the file remembers, the newest."""


# --- the fit -------------------------------------------------------------------------------------


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(a, k) of t(n) = a + k*n with a >= 0 and k > 0, from (samples, seconds).

    Weighted least squares on relative errors: a timer's noise grows with what it times. Where the times don't grow
    with the sizes, or grow faster than in proportion, the line through the origin is taken: it promises least.
    Raises ValueError below two distinct sizes, and for a size or time that isn't positive and finite.
    """
    if len({n for n, _ in points}) < 2:
        raise ValueError("a fit needs times for at least two sizes")
    if not all(n > 0 and t > 0 and math.isfinite(t) for n, t in points):
        raise ValueError("sizes and times must be positive and finite")
    unit = max(t for _, t in points)  # so that no weight overflows
    rows = [(float(n), t / unit, (unit / t) ** 2) for n, t in points]
    total = math.fsum(w for _, _, w in rows)
    n_mean = math.fsum(w * n for n, _, w in rows) / total
    t_mean = math.fsum(w * t for _, t, w in rows) / total
    spread = math.fsum(w * (n - n_mean) ** 2 for n, _, w in rows)
    together = math.fsum(w * (n - n_mean) * (t - t_mean) for n, t, w in rows)
    k = together / spread if spread > 0 else 0.0
    a = t_mean - k * n_mean
    if k <= 0 or a < 0:
        a = 0.0
        k = math.fsum(w * n * t for n, t, w in rows) / math.fsum(w * n * n for n, _, w in rows)
    if not (math.isfinite(a) and math.isfinite(k) and k * unit > 0):
        raise ValueError("times differ too much to be of one machine")
    return a * unit, k * unit


# --- the file ------------------------------------------------------------------------------------


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    capacities: dict[str, Capacity]


def key(device: Device, torch: str, threads: int, slowdown: float = 1.0) -> str:
    """What a measurement holds for: another processor, torch, number of threads or slowdown needs another one."""
    cores = f"{device.cores_physical or '?'}/{device.cores_logical} cores"
    slowed = "" if slowdown == 1 else f", slowed {slowdown:g} times"
    return f"{device.cpu}, {cores}, torch {torch}, {threads} threads{slowed}"


def load(file: Path, key: str) -> Capacity | None:
    """What was measured before; None when nothing was, or the file is torn, of another format or unreadable."""
    found = _load_all(file).get(key)
    return found if found is not None and _sound(found) else None


def store(file: Path, key: str, capacity: Capacity) -> None:
    """Remember a measurement next to those for other keys. Raises DaisyError when the file can't be written."""
    others = {name: old for name, old in _load_all(file).items() if name != key}
    kept = dict([*others.items(), (key, capacity)][-KEPT:])
    try:
        write_atomically(file, msgspec.json.encode(_File(format=FORMAT, capacities=kept)))
    except OSError as error:
        what = f"this machine's measured speed couldn't be saved to {file}: {error.strerror or error}"
        raise DaisyError(what, "Make room, or make the folder writable; the run goes on without it") from error


def _load_all(file: Path) -> Mapping[str, Capacity]:
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return content.capacities if content.format == FORMAT else {}


def _sound(capacity: Capacity) -> bool:
    times = (capacity.fixed_s, capacity.per_sample_s)
    return all(map(math.isfinite, times)) and times[0] >= 0 and times[1] > 0 and capacity.threads > 0


# --- the measurement -----------------------------------------------------------------------------


async def measure(
    threads: int, slowdown: float, command: Sequence[str] | None = None, limit_s: float = LIMIT_S
) -> Capacity:
    """Measure this machine's speed in a child process, which loads torch; takes seconds.

    threads: CPU threads at most; the fastest number is found and in the answer.
    slowdown: stretch each second of compute to this many.
    command: what to start instead of the bench (tests). The child is given a pipe as standard input and must end
    when it closes; it is killed and waited for when this is cancelled or takes longer than limit_s.
    Raises DaisyError saying what went wrong in the child.
    """
    bench = [sys.executable, "-m", "daisychain.train.bench", "--threads", str(threads), "--slowdown", str(slowdown)]
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *(command or bench), stdin=pipe, stdout=pipe, stderr=pipe, env=keeping(os.environ)
        )
    except OSError as error:
        raise _failed(
            f"its process couldn't be started: {error.strerror or error}", "Try again when less runs"
        ) from error
    try:
        stdout, stderr, code = await asyncio.wait_for(_finish(child), limit_s)
    except asyncio.TimeoutError as error:
        raise _failed(f"it took longer than {limit_s:g} s", "Try again when this machine is less busy") from error
    finally:
        await _end(child)
    if code != 0:
        raise explain(code, stderr.decode(errors="replace"))
    return _capacity(stdout, threads)


async def _finish(child: asyncio.subprocess.Process) -> tuple[bytes, bytes, int]:
    """All output and the exit code. Not communicate(): from Python 3.12 on that closes the child's stdin at once."""
    if child.stdout is None or child.stderr is None:
        raise ValueError("the child's output must be piped")
    return await asyncio.gather(child.stdout.read(), child.stderr.read(), child.wait())


async def _end(child: asyncio.subprocess.Process) -> None:
    """Leave no process and no open pipe behind, whether the child has ended or not."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await _finish(child)
    if child.stdin is not None:
        child.stdin.close()


def _capacity(stdout: bytes, threads: int) -> Capacity:
    """The fit of the points in the child's output; lines that aren't its own are passed over."""
    points: list[tuple[int, float]] = []
    torch: str | None = None
    for line in stdout.splitlines():
        match _object(line):
            case {"kind": "point", "samples": int(samples), "seconds": float() | int() as seconds}:
                points.append((samples, float(seconds)))
            case {"kind": "done", "torch": str(version), **more}:
                torch = version
                used = more.get("threads")
                threads = used if isinstance(used, int) else threads
    if torch is None:
        raise _failed("the bench ended before it was done", "Run daisychain bench and read its output")
    try:
        fixed_s, per_sample_s = fit(points)
    except ValueError as error:
        raise _failed(str(error), "Run daisychain bench and read its output") from error
    return Capacity(fixed_s=fixed_s, per_sample_s=per_sample_s, threads=threads, torch=torch)


def _object(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _failed(why: str, remedy: str) -> DaisyError:
    return DaisyError(f"this machine's speed couldn't be measured: {why}", remedy)


_SIGNALS = {
    4: (
        "torch met an illegal instruction (SIGILL): this CPU lacks instructions that torch needs, most likely AVX2",
        "Look for avx2 in /proc/cpuinfo; without it, build torch for this CPU or leave this machine out",
    ),
    9: (
        "the process was killed (SIGKILL), most likely by the system because memory ran out",
        "Close other programs, add swap, or use another machine",
    ),
    15: ("the process was ended (SIGTERM)", "Try again"),
}


def explain(code: int, stderr: str) -> DaisyError:
    """The error for a child that ended with `code`: negative for a signal, or 128 and the signal through a shell."""
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number in _SIGNALS:
        return _failed(*_SIGNALS[number])
    last = _last_line(stderr)
    if code < 0:
        return _failed(f"the process ended by {_signal_name(number)}{f': {last}' if last else ''}", _REMEDY)
    return _failed(last or f"the process ended with exit code {code} and said nothing", _REMEDY)


_REMEDY = 'Try it by hand: python -c "import torch"'


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    """The last line with something in it, without control characters, at most 300 characters."""
    printable = ("".join(c for c in line if unicodedata.category(c)[0] != "C").strip() for line in text.splitlines())
    return next((line[:300] for line in reversed(list(printable)) if line), "")
