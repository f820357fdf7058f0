"""Whether a GPU can be used, from versions alone and from a try."""

import pytest

from daisychain.machine.gpus import Try, is_hidden, judge_gpu, judge_try, serves

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


# --- from a try ---------------------------------------------------------------------------------------------------

ARCHS = {
    # as torch.cuda.get_arch_list() gives them for PyTorch's own wheels (pytorch/pytorch issues 95648 and 182250)
    "1.13+cu117": ("sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86"),
    "2.11+cu126": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "2.10+cu128": ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    "2.11+cu128": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}
GPUS = {
    "K80": (3, 7), "GTX 970": (5, 2), "GTX 1080": (6, 1), "V100": (7, 0), "RTX 2080": (7, 5), "A100": (8, 0),
    "RTX 3060": (8, 6), "RTX 4090": (8, 9), "H200": (9, 0), "B200": (10, 0), "B300": (10, 3), "RTX 5090": (12, 0),
}  # fmt: skip
SERVED = {
    "1.13+cu117": "K80, GTX 970, GTX 1080, V100, RTX 2080, A100, RTX 3060, RTX 4090",
    "2.11+cu126": "GTX 970, GTX 1080, V100, RTX 2080, A100, RTX 3060, RTX 4090, H200",
    "2.10+cu128": "V100, RTX 2080, A100, RTX 3060, RTX 4090, H200, B200, B300, RTX 5090",
    "2.11+cu128": "RTX 2080, A100, RTX 3060, RTX 4090, H200, B200, B300, RTX 5090",
}


@pytest.mark.parametrize("wheel", ARCHS)
def test_which_gpus_a_wheels_kernels_serve(wheel: str) -> None:
    assert ", ".join(name for name, capability in GPUS.items() if serves(ARCHS[wheel], capability)) == SERVED[wheel]


@pytest.mark.parametrize(
    ("arch_list", "capability", "expected"),
    [
        (("compute_90",), (9, 0), True),
        (("compute_90",), (12, 0), True),
        (("compute_90",), (8, 9), False),
        (("sm_86",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_100f",), (10, 3), True),
        (("gfx942", "sm_x"), (9, 0), False),
        ((), (9, 0), False),
    ],
)
def test_machine_code_serves_its_major_version_and_what_can_be_compiled_all_newer_ones(
    arch_list: tuple[str, ...], capability: tuple[int, int], expected: bool
) -> None:
    assert serves(arch_list, capability) is expected


NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
OLD_TORCH = "Install a cu126 build of torch, up to 2.13: the last with kernels for this GPU"
NEW_TORCH = "Install a build of torch for CUDA 12.8 or newer"


@pytest.mark.parametrize(
    ("gpu", "wheel", "remedy"),
    [
        ("GTX 1080", "2.11+cu128", OLD_TORCH),
        ("GTX 970", "2.10+cu128", OLD_TORCH),
        ("V100", "2.11+cu128", OLD_TORCH),
        ("K80", "2.11+cu126", "No current torch supports this GPU; leave it to the CPU"),
        ("RTX 5090", "2.11+cu126", NEW_TORCH),
        ("B200", "2.11+cu126", NEW_TORCH),
        ("H200", "1.13+cu117", NEW_TORCH),
    ],
)
def test_a_gpu_without_kernels_is_left_out_with_the_torch_that_would_work(gpu: str, wheel: str, remedy: str) -> None:
    cuda = f"{wheel[-3:-1]}.{wheel[-1]}"
    verdict = judge_try(gpu, GPUS[gpu], Try(wheel, cuda, ARCHS[wheel], NO_KERNEL))
    assert (verdict.level, verdict.check, verdict.remedy) == ("warn", "gpu", remedy)
    shown = ".".join(map(str, GPUS[gpu]))
    assert verdict.reason.startswith(f"{gpu} is there but not used: torch {wheel} (CUDA {cuda}) has kernels for sm_")
    assert verdict.reason.endswith(f"and none for {shown}")


def test_a_convolution_that_worked_has_the_last_word() -> None:
    assert judge_try("GTX 1080", (6, 1), Try("2.11", "12.8", ARCHS["2.11+cu128"], "")).level == "ok"
    assert judge_gpu("V100", (7, 0), "2.10.0+cu128", "570.1", "12.8").level == "warn"
    assert judge_try("V100", (7, 0), Try("2.10.0+cu128", "12.8", ARCHS["2.10+cu128"], "")).level == "ok"


def test_a_convolution_that_failed_for_another_reason_says_which() -> None:
    verdict = judge_try("A100", (8, 0), Try("2.11", "12.6", ARCHS["2.11+cu126"], "CUDA out of memory"))
    assert verdict.level == "warn"
    assert "failed: CUDA out of memory" in verdict.reason
    assert "driver" in verdict.remedy


def test_a_torch_without_cuda_is_named() -> None:
    verdict = judge_try("GTX 1080", (6, 1), Try("2.13.0+cpu", "", (), "Torch not compiled with CUDA enabled"))
    assert verdict.reason == "GTX 1080 is there but not used: torch 2.13.0+cpu has no CUDA"
    assert verdict.remedy == OLD_TORCH


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [(None, ""), ("", "012"), ("0", "12"), ("2, 0", "1"), ("-1", "012"), ("10", "012"), ("GPU-5a1c", "012")],
)
def test_a_gpu_that_the_machines_owner_hides_is_hidden(visible: str | None, hidden: str) -> None:
    assert "".join(str(index) for index in range(3) if is_hidden(index, visible)) == hidden
