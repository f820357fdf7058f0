"""What each rank of a node computes on: pure. A rank per usable GPU; the CPU where there is none, or when asked for."""

import re
from collections.abc import Sequence

from daisychain.facts import Device, Node

CPU = "cpu"


def devices(device: Device, ranks: int = 0) -> tuple[str, ...]:
    """A device for each rank of a node, as torch names them, in the order of the node's seats; never empty.

    ranks: CPU ranks that were asked for, beside those on GPUs; 0: one, and only where no GPU can be used.
    A GPU is numbered by its place in `device.gpus`; those that torch can't use are left out.
    """
    gpus = [f"cuda:{index}" for index, gpu in enumerate(device.gpus) if gpu.verdict.level == "ok"]
    return (*gpus, *[CPU] * (ranks or int(not gpus)))


def seat_names(node: str, on: Sequence[str]) -> tuple[str, ...]:
    """What people call a node's seats: its own name, or NAME:cuda0, NAME:cpu, NAME:0 where it has several.

    on: its devices in order, as `devices` gives them.
    """
    if len(on) == 1:
        return (node,)
    numbered = on.count(CPU) > 1
    cpus = iter(range(len(on)))
    return tuple(
        f"{node}:{(next(cpus) if numbered else CPU) if device == CPU else device.replace(':', '')}" for device in on
    )


def threads(on: Sequence[str], place: int, total: int) -> int:
    """CPU threads of a node's rank, of `total` for all of them; at least 1.

    CPU ranks divide what is there, after a thread for each GPU rank; without a CPU rank the GPU ranks divide it.
    place: the rank's, in `on`.
    """
    cpus = on.count(CPU)
    gpus = len(on) - cpus
    if not cpus:
        return max(1, total // gpus)
    if on[place] != CPU:
        return 1
    each, more = divmod(max(0, total - gpus), cpus)
    return max(1, each + (on[:place].count(CPU) < more))


def speed(node: Node, on: Sequence[str], place: int) -> tuple[float, float] | None:
    """(fixed_s, per_sample_s) of a rank: its GPU's, or its part of its node's CPU; None where that is unknown."""
    index = _index(on[place])
    capacity, parts = (node.capacity, on.count(CPU)) if index is None else (node.device.gpus[index].capacity, 1)
    return (capacity.fixed_s, capacity.per_sample_s * parts) if capacity is not None else None


def visible(device: str) -> str:
    """CUDA_VISIBLE_DEVICES of a rank on this device: its own GPU or none, whatever the script asks torch for."""
    index = _index(device)
    return "" if index is None else str(index)


def _index(device: str) -> int | None:
    """A GPU's; None for the CPU."""
    found = re.fullmatch(r"cuda:(\d+)", device)
    return int(found[1]) if found else None
