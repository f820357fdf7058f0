"""What this machine is like at the moment: disk, memory, load, battery, heat, clock.

What the system doesn't tell is None, never an error. `read_condition` blocks for a quarter of a second: call it in a
thread. `root` is the folder that /proc and /sys are looked for in.
"""

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped,unused-ignore]

from daisychain.facts import Condition
from daisychain.machine import awake
from daisychain.machine.files import number, read
from daisychain.machine.probe import ROOT, cgroup_folders

SAMPLE_S = 0.25
USUAL_LIMIT_C = 95.0
_PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "x86_pkg_temp")


class Sensor(NamedTuple):
    """One temperature as its driver tells it, in °C."""

    chip: str
    now_c: float | None
    high_c: float | None
    critical_c: float | None


def read_condition(folders: Iterable[Path], root: Path = ROOT) -> Condition:
    """folders: where a run's files go, whether or not they are there yet."""
    percent, plugged = _battery()
    hot_c, limit_c = read_heat()
    return Condition(
        disk_free_bytes=min((free for free in map(_disk_free, folders) if free is not None), default=None),
        memory_free_bytes=_memory_free(root),
        busy=_busy(),
        battery_percent=percent,
        plugged=plugged,
        hot_c=hot_c,
        limit_c=limit_c,
        kept_awake=None if sys.platform == "win32" else awake.tool(sys.platform, root) is not None,
        # last, so that the time it took is on one side of it only
        clock_s=time.time(),
    )


def count_oom_kills(root: Path = ROOT) -> int | None:
    """How many processes the kernel has killed for want of memory since it was started; None where it doesn't tell."""
    found = re.search(r"^oom_kill (\d+)$", read(root / "proc/vmstat"), re.MULTILINE)
    return int(found[1]) if found else None


def read_heat() -> tuple[float | None, float | None]:
    """As hottest, of this machine."""
    return hottest(_sensors())


def hottest(sensors: Sequence[Sensor]) -> tuple[float | None, float | None]:
    """(°C, its limit) of the processor's sensor that is nearest to its limit; (None, None) without one.

    A driver that tells no plausible limit (0, or 255 as some firmware says) gets the usual one.
    """
    known = []
    for sensor in sensors:
        if sensor.chip.startswith(_PROCESSOR_CHIPS) and sensor.now_c is not None and 0 < sensor.now_c < 150:
            given = [limit for limit in (sensor.critical_c, sensor.high_c) if limit is not None and 50 <= limit <= 125]
            known.append((sensor.now_c, given[0] if given else USUAL_LIMIT_C))
    return max(known, key=lambda pair: pair[0] - pair[1], default=(None, None))


def _disk_free(folder: Path) -> int | None:
    """Bytes free where the folder is, or will be."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def _memory_free(root: Path) -> int | None:
    """Bytes; the narrowest of what the machine and its cgroups leave, whose page cache counts as free."""
    free = [int(psutil.virtual_memory().available)]
    for folder in cgroup_folders(root, "memory"):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, taken = number(read(folder / most)), number(read(folder / used))
            if limit is not None and taken is not None and 0 < limit < sys.maxsize // 2:
                free.append(max(0, limit - taken + _cached(read(folder / "memory.stat"))))
    return min(free)


def _cached(memory_stat: str) -> int:
    facts = dict(line.split(None, 1) for line in memory_stat.splitlines() if " " in line)
    return number(facts.get("inactive_file", "") or facts.get("total_inactive_file", "")) or 0


def _busy() -> float | None:
    """The smaller of the last minute's load and a sample: neither a moment's work nor what has just ended counts."""
    try:
        minute = psutil.getloadavg()[0] / (psutil.cpu_count() or 1)
        return float(min(1.0, minute, psutil.cpu_percent(SAMPLE_S) / 100))
    except (OSError, RuntimeError):
        return None


def _battery() -> tuple[float | None, bool | None]:
    try:
        battery: Any = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return None, None
    return (None, None) if battery is None else (float(battery.percent), battery.power_plugged)


def _sensors() -> list[Sensor]:
    ask = getattr(psutil, "sensors_temperatures", dict)  # not on macOS and Windows
    try:
        chips: Mapping[str, Any] = ask()
    except (OSError, RuntimeError, ValueError):
        return []
    return [Sensor(chip, one.current, one.high, one.critical) for chip, found in chips.items() for one in found]
