"""What this machine is like at the moment, and folders that stand in for /proc and /sys."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from daisychain.machine.condition import Sensor, count_oom_kills, hottest, read_condition


def test_this_machine_makes_sense(tmp_path: Path) -> None:
    now = read_condition([tmp_path / "not" / "there" / "yet"])
    assert now.disk_free_bytes is not None
    assert now.disk_free_bytes > 0
    assert now.memory_free_bytes is not None
    assert 0 < now.memory_free_bytes <= psutil.virtual_memory().total
    assert now.busy is None or 0 <= now.busy <= 1
    assert abs(now.clock_s - time.time()) < 60
    assert now.skew_s is None


def test_what_the_system_does_not_tell_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no such file")

    for name in ("sensors_battery", "sensors_temperatures", "getloadavg"):
        monkeypatch.setattr(psutil, name, fail, raising=False)
    now = read_condition([], root=tmp_path)
    assert (now.disk_free_bytes, now.busy, now.battery_percent, now.plugged, now.hot_c) == (None,) * 5


def test_a_battery_and_a_sensor_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = [SimpleNamespace(current=88.0, high=80.0, critical=100.0)]
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: {"coretemp": chip}, raising=False)
    battery = SimpleNamespace(percent=41, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    now = read_condition([], root=tmp_path)
    assert (now.battery_percent, now.plugged, now.hot_c, now.limit_c) == (41.0, False, 88.0, 100.0)


@pytest.mark.parametrize(
    ("sensors", "expected"),
    [
        ([], (None, None)),
        ([Sensor("nvme", 70.0, 80.0, 85.0)], (None, None)),
        ([Sensor("coretemp", 55.0, 80.0, 100.0), Sensor("coretemp", 71.0, 80.0, 100.0)], (71.0, 100.0)),
        ([Sensor("k10temp", 60.0, None, None)], (60.0, 95.0)),
        ([Sensor("cpu_thermal", 81.0, None, 85.0)], (81.0, 85.0)),
        ([Sensor("coretemp", 60.0, 0.0, 255.0)], (60.0, 95.0)),
        ([Sensor("coretemp", None, 80.0, 100.0), Sensor("coretemp", -128.0, 80.0, 100.0)], (None, None)),
        # the one that is nearest to its own limit, not the hottest
        ([Sensor("coretemp", 80.0, None, 105.0), Sensor("coretemp", 78.0, None, 80.0)], (78.0, 80.0)),
    ],
)
def test_the_sensor_nearest_to_its_limit_counts(
    sensors: list[Sensor], expected: tuple[float | None, float | None]
) -> None:
    assert hottest(sensors) == expected


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/a", {"a/memory.max": "500000000", "a/memory.current": "450000000",
                  "a/memory.stat": "anon 1\ninactive_file 50000000"}),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "500000000", "memory/a/memory.usage_in_bytes": "450000000",
                         "memory/a/memory.stat": "total_inactive_file 50000000"}),
        ("0::/a", {"memory.max": "150000000", "memory.current": "50000000", "a/memory.max": "max"}),
    ],
)  # fmt: skip
def test_a_memory_limit_counts_and_page_cache_is_free(tmp_path: Path, group: str, files: dict[str, str]) -> None:
    write(tmp_path / "proc/self/cgroup", group)
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert read_condition([], root=tmp_path).memory_free_bytes == 100_000_000


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_what_the_kernel_killed_for_want_of_memory_is_counted(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 5\noom_kill 17\nnr_unstable 0\n")
    assert count_oom_kills(tmp_path) == 17
