"""Whether the torch that is installed can use an NVIDIA GPU: from versions alone, then from a try in a child process.

A wheel carries kernels for some compute capabilities only, and torch.cuda.is_available() says True all the same.
`judge_gpu` is what can be said before torch is loaded; the last word has a small convolution (`judge_try`).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from daisychain.facts import Level, Verdict

Capability = tuple[int, int]

_KERNELS: tuple[tuple[tuple[int, int], Capability, Capability, Capability], ...] = (
    ((13, 0), (7, 5), (7, 5), (99, 9)),
    ((12, 8), (7, 0), (7, 5), (99, 9)),
    ((11, 8), (5, 0), (5, 0), (9, 9)),
)
"""(CUDA from, lowest capability in some wheels, lowest in all, highest), newest first, for PyTorch's own wheels."""

_DRIVERS: dict[int, int] = {11: 450, 12: 525, 13: 580}
"""Lowest driver branch for any release of a CUDA major version (NVIDIA's minor version compatibility)."""


def judge_gpu(
    name: str, capability: Capability | None, torch_version: str | None, driver: str, torch_build: str
) -> Verdict:
    """Whether torch will use this GPU: ok yes, warn no or unknown, with the reason. Never refuses: there is the CPU.

    torch_version: such as '2.13.0+cpu'; None when torch isn't installed.
    driver: the NVIDIA driver's version, such as '535.183.01'; empty when unknown.
    torch_build: what torch was built for: 'cu126' or '12.6', 'cpu', 'rocm6.4'; empty when unknown, then the
    local part of torch_version is taken.
    """
    if torch_version is None:
        return _verdict("warn", f"{name} is there but not used: torch isn't installed", "Install torch with CUDA")
    build = torch_build or torch_version.partition("+")[2]
    cuda = _cuda(build)
    if cuda is None:
        return _without_cuda(name, capability, torch_version, build)
    wheel = f"torch {torch_version} (CUDA {cuda[0]}.{cuda[1]})"
    return (
        _old_driver(name, driver, cuda, wheel)
        or _without_kernels(name, capability, cuda, wheel)
        or _verdict("ok", f"{name}: {wheel} has kernels for it{f', driver {driver}' if driver else ''}")
    )


class Try(NamedTuple):
    """What train/probe_gpu.py found out about one GPU."""

    torch: str
    cuda: str
    """CUDA that torch was built for, '12.6'; empty for a build without."""
    arch_list: tuple[str, ...]
    """Of torch.cuda.get_arch_list: 'sm_86' is machine code, 'compute_90' what newer GPUs can compile."""
    error: str
    """Why a small convolution failed; empty when it worked."""


def judge_try(name: str, capability: Capability | None, found: Try) -> Verdict:
    """ok when the convolution worked, else warn with the reason and, where one is known, the torch that would work."""
    wheel = f"torch {found.torch} (CUDA {found.cuda})" if found.cuda else f"torch {found.torch}"
    if not found.error:
        return _verdict("ok", f"{name}: tried with {wheel}")
    if not found.cuda:
        return _verdict("warn", f"{name} is there but not used: {wheel} has no CUDA", _install(capability))
    if capability is not None and found.arch_list and not serves(found.arch_list, capability):
        kernels = f"kernels for {', '.join(found.arch_list)} and none for {capability[0]}.{capability[1]}"
        reason = f"{name} is there but not used: {wheel} has {kernels}"
        return _verdict("warn", reason, _other_torch(found.arch_list, capability))
    reason = f"{name} is there but not used: a small convolution with {wheel} failed: {found.error}"
    return _verdict("warn", reason, "Update the NVIDIA driver, and see that nothing else fills the GPU's memory")


def is_hidden(index: int, visible: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES keeps a GPU (counted by PCI bus) away from this machine's runs; None: it isn't set.

    GPUs that it names by UUID count as hidden: which they are isn't known here.
    """
    return visible is not None and str(index) not in [word.strip() for word in visible.split(",")]


def serves(arch_list: Sequence[str], capability: Capability) -> bool:
    """Whether some kernel runs on a GPU of this compute capability.

    Machine code runs on the same major version from its minor on, and on exactly its own where an 'a' ends it; what is
    to be compiled runs on anything newer ("CUDA C++ Programming Guide", compute capabilities).
    """
    for arch in arch_list:
        kind, exact, built_for = _arch(arch)
        if built_for is None or exact:
            if built_for == capability:
                return True
        elif capability >= built_for and (kind == "compute" or capability[0] == built_for[0]):
            return True
    return False


def _arch(text: str) -> tuple[str, bool, Capability | None]:
    """('sm', False, (8, 6)) from 'sm_86'; None for the capability of anything else."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", text)
    return (found[1], found[4] == "a", (int(found[2]), int(found[3]))) if found else ("", False, None)


def _other_torch(arch_list: Sequence[str], capability: Capability) -> str:
    known = [built_for for _, _, built_for in map(_arch, arch_list) if built_for is not None]
    if capability > max(known, default=capability):
        return "Install a build of torch for CUDA 12.8 or newer"
    return _install(capability)


def _verdict(level: Level, reason: str, remedy: str = "") -> Verdict:
    return Verdict(level=level, check="gpu", reason=reason, remedy=remedy)


def _cuda(build: str) -> tuple[int, int] | None:
    """(12, 6) from 'cu126' or '12.6'; None for anything else."""
    if found := re.fullmatch(r"(?:cu)?(\d{2})\.?(\d)(?:\.\d+)?", build.strip()):
        return int(found[1]), int(found[2])
    return None


def _install(capability: Capability | None) -> str:
    if capability is not None and capability < (5, 0):
        return "No current torch supports this GPU; leave it to the CPU"
    if capability is not None and capability < (7, 5):
        return "Install a cu126 build of torch, up to 2.13: the last with kernels for this GPU"
    return "Install a CUDA build of torch: see pytorch.org/get-started"


def _without_cuda(name: str, capability: Capability | None, torch_version: str, build: str) -> Verdict:
    if not build:
        return _verdict(
            "warn",
            f"{name}: unknown whether torch {torch_version} can use it, as its build doesn't say for which CUDA it is",
            "Install torch from download.pytorch.org to be sure",
        )
    return _verdict(
        "warn", f"{name} is there but not used: torch {torch_version} ({build}) has no CUDA", _install(capability)
    )


def _old_driver(name: str, driver: str, cuda: tuple[int, int], wheel: str) -> Verdict | None:
    needed = _DRIVERS.get(cuda[0])
    branch = re.match(r"\d+", driver)
    if needed is None or branch is None or int(branch[0]) >= needed:
        return None
    return _verdict(
        "warn",
        f"{name} is there but not used: driver {driver} is too old for {wheel}, which needs {needed} or newer",
        f"Update the NVIDIA driver to {needed} or newer, or install torch for an older CUDA",
    )


def _without_kernels(name: str, capability: Capability | None, cuda: tuple[int, int], wheel: str) -> Verdict | None:
    row = next((row for row in _KERNELS if cuda >= row[0]), None)
    if capability is None or row is None:
        what = "its compute capability is unknown" if capability is None else "its CUDA is older than any known here"
        return _verdict("warn", f"{name}: unknown whether {wheel} can use it: {what}", "Try it with daisychain bench")
    _, some, every, highest = row
    shown = f"{capability[0]}.{capability[1]}"
    if capability < some or capability > highest:
        reason = f"{name} is there but not used: {wheel} has no kernels for its compute capability {shown}"
        newer = "Install a build of torch for CUDA 12.8 or newer"
        return _verdict("warn", reason, newer if capability > highest else _install(capability))
    if capability < every:
        reason = f"{name}: unknown whether {wheel} has kernels for its compute capability {shown}: some builds don't"
        return _verdict("warn", reason, _install(capability))
    return None
