"""The child that tries a GPU, where there is none."""

import json
import subprocess
import sys

import pytest
import torch

from daisychain.train import probe_gpu

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


def test_its_convolution_is_one_that_a_sound_device_gets_right(monkeypatch: pytest.MonkeyPatch) -> None:
    probe_gpu.convolve(torch.device("cpu"))
    right = probe_gpu._gradient
    calls = []

    def wrong_at_second(*args: object) -> torch.Tensor:
        calls.append(args)
        found: torch.Tensor = right(*args)
        return found * (1.0 if len(calls) == 1 else 1.5)

    monkeypatch.setattr(probe_gpu, "_gradient", wrong_at_second)
    with pytest.raises(RuntimeError, match="came out wrong"):
        probe_gpu.convolve(torch.device("cpu"))


def test_without_a_gpu_it_says_why_and_ends_well() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": ""}
    command = [sys.executable, "-m", "daisychain.train.probe_gpu"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    lines = [json.loads(line) for line in process.stdout]
    assert process.wait(60) == 0
    assert [line["kind"] for line in lines] == ["gpu", "done"]
    assert lines[0]["torch"] == torch.__version__
    assert lines[0]["error"]
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()
