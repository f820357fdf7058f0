"""How many CPU cores this process may use: affinity and control group quota. No torch."""

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable(membership: Path = MEMBERSHIP, root: Path = CGROUPS) -> int:
    """Cores for this process's threads, at least 1.

    A quota of 2.5 cores gives 2: one thread more than the quota pays for stalls all the others.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(membership, root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def _quota(membership: Path, root: Path) -> float | None:
    """The narrowest CPU quota of this process's control groups and their parents, in cores; None: no quota."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            bases = [root / controllers, root / "cpu"]
        else:
            continue
        for base in bases:
            folder = base / path.lstrip("/")
            quotas += [q for f in (folder, *folder.parents) if f.is_relative_to(base) and (q := _read(f)) is not None]
    return min(quotas, default=None)


def _read(folder: Path) -> float | None:
    """Quota over period of one group, in either version's files."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8")
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):
        return None
