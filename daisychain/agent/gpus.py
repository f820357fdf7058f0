"""Trying this machine's GPUs before they take part: each in a child process, which loads torch and sees it alone."""

import asyncio
import os
from typing import Any

import msgspec

from daisychain.agent.ranks import run_child
from daisychain.errors import DaisyError
from daisychain.facts import Capacity, Gpu, Verdict
from daisychain.machine.capacity import fit
from daisychain.machine.gpus import Try, is_hidden, judge_try
from daisychain.plan.devices import visible

PROBE_MODULE = "daisychain.train.probe_gpu"
LIMIT_S = 60.0


async def tried(gpus: tuple[Gpu, ...], slowdown: float = 1.0, limit_s: float = LIMIT_S) -> tuple[Gpu, ...]:
    """The GPUs with the verdict and the speed of their try; takes seconds for each.

    One that hangs or crashes isn't usable. slowdown: stretch each second of its computing to this many.
    """
    visible_ones = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(
        [
            _left_out(gpu, "CUDA_VISIBLE_DEVICES hides it", "Start the agent without that variable")
            if is_hidden(index, visible_ones)
            else await _tried(gpu, index, slowdown, limit_s)
            for index, gpu in enumerate(gpus)
        ]
    )


async def _tried(gpu: Gpu, index: int, slowdown: float, limit_s: float) -> Gpu:
    lines: list[dict[str, Any]] = []
    only = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible(f"cuda:{index}")}
    child = run_child(PROBE_MODULE, {}, lines.append, what=f"trying {gpu.name}", environment=only)
    try:
        await asyncio.wait_for(child, limit_s)
        found = msgspec.convert(next(line for line in lines if line.get("kind") == "gpu"), _Line)
        capability = found.capability or gpu.capability
        verdict = judge_try(gpu.name, capability, Try(found.torch, found.cuda, found.arch_list, found.error))
        speed = _capacity(found, slowdown) if not found.error else None
        return msgspec.structs.replace(gpu, capability=capability, verdict=verdict, capacity=speed)
    except asyncio.TimeoutError:
        return _left_out(gpu, f"trying it took longer than {limit_s:g} s")
    except DaisyError as error:
        return _left_out(gpu, error.what)
    except (StopIteration, msgspec.ValidationError):
        return _left_out(gpu, "its try said nothing")


def _capacity(found: "_Line", slowdown: float) -> Capacity | None:
    try:
        fixed_s, per_sample_s = fit(found.points)
    except ValueError:
        return None
    return Capacity(fixed_s=fixed_s * slowdown, per_sample_s=per_sample_s * slowdown, threads=1, torch=found.torch)


def _left_out(gpu: Gpu, why: str, remedy: str = f"Try it by hand: python -m {PROBE_MODULE}") -> Gpu:
    verdict = Verdict(level="warn", check="gpu", reason=f"{gpu.name} is there but not used: {why}", remedy=remedy)
    return msgspec.structs.replace(gpu, verdict=verdict)


class _Line(msgspec.Struct):
    """The child's line about its GPU."""

    torch: str
    cuda: str = ""
    arch_list: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    error: str = ""
    points: tuple[tuple[int, float], ...] = ()
