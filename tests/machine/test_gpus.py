"""Whether a GPU can be used, from versions alone."""

import pytest

from daisychain.machine.gpus import judge_gpu

TABLE: dict[str, tuple[tuple[int, int] | None, str | None, str, str, str, str]] = {
    # capability, torch, driver, build -> level, part of the text
    "a current pair": ((8, 6), "2.13.0+cu130", "580.82.07", "13.0", "ok", "has kernels for it, driver 580"),
    "build from the version": ((8, 6), "2.13.0+cu126", "560.35", "", "ok", "CUDA 12.6"),
    "driver unknown": ((8, 6), "2.13.0+cu126", "", "12.6", "ok", "has kernels"),
    "CPU wheel": ((8, 6), "2.13.0+cpu", "560.35", "", "warn", "2.13.0+cpu (cpu) has no CUDA"),
    "CPU wheel, old GPU": ((6, 1), "2.13.0+cpu", "560.35", "cpu", "warn", "Install a cu126 build of torch, up to 2.13"),
    "ROCm wheel": ((8, 6), "2.13.0+rocm6.4", "560.35", "", "warn", "has no CUDA"),
    "build unknown": ((8, 6), "2.13.0", "560.35", "", "warn", "unknown whether"),
    "no torch": ((8, 6), None, "560.35", "", "warn", "torch isn't installed"),
    "Pascal, CUDA 12.8": ((6, 1), "2.13.0+cu128", "570.1", "12.8", "warn", "no kernels for its compute capability 6.1"),
    "Pascal, CUDA 12.6": ((6, 1), "2.13.0+cu126", "570.1", "12.6", "ok", ""),
    "Maxwell, CUDA 13": ((5, 2), "2.13.0+cu130", "580.1", "13.0", "warn", "Install a cu126 build"),
    "Volta, CUDA 12.8": ((7, 0), "2.13.0+cu128", "570.1", "12.8", "warn", "unknown whether"),
    "Volta, CUDA 13": ((7, 0), "2.13.0+cu130", "580.1", "13.0", "warn", "no kernels"),
    "Turing, CUDA 13": ((7, 5), "2.13.0+cu130", "580.1", "13.0", "ok", ""),
    "Kepler": ((3, 5), "2.4.0+cu118", "470.1", "11.8", "warn", "No current torch supports this GPU"),
    "Blackwell, CUDA 12.6": ((12, 0), "2.7.0+cu126", "570.1", "12.6", "warn", "CUDA 12.8 or newer"),
    "old driver": ((8, 6), "2.13.0+cu126", "470.199.02", "12.6", "warn", "driver 470.199.02 is too old"),
    "driver of CUDA 12, CUDA 13": ((8, 6), "2.13.0+cu130", "570.1", "13.0", "warn", "needs 580 or newer"),
    "capability unknown": (None, "2.13.0+cu126", "560.35", "12.6", "warn", "its compute capability is unknown"),
    "ancient CUDA": ((6, 1), "1.9.0+cu102", "470.1", "10.2", "warn", "older than any known"),
    "odd driver text": ((8, 6), "2.13.0+cu126", "n/a", "12.6", "ok", ""),
}


@pytest.mark.parametrize("case", TABLE)
def test_gpu(case: str) -> None:
    capability, torch, driver, build, level, says = TABLE[case]
    verdict = judge_gpu("GeForce", capability, torch, driver, build)
    assert verdict.level == level
    assert says in f"{verdict.reason}. {verdict.remedy}"
    assert "GeForce" in verdict.reason
    assert verdict.check == "gpu"
    assert bool(verdict.remedy) == (level != "ok")
