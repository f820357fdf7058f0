"""CPU quotas of either control group version, written into a pretended /sys."""

import os

import pytest

from daisychain.train.cores import usable


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("", {}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "250000 100000"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a\n", {"a/cpu.max": "20000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, 8),
        ("4:cpu,cpuacct:/x\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "400000",
                                "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpu:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 8),
        ("4:cpuset:/x\n", {"cpuset/x/cpu.max": "100000 100000"}, 8),
    ],
)  # fmt: skip
def test_quota_and_affinity_bound_the_cores(tmp_path, membership, files, cores):
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert usable(tmp_path / "membership", tmp_path / "root") == cores


def test_no_control_groups_at_all(tmp_path):
    assert usable(tmp_path / "none", tmp_path) == 8
