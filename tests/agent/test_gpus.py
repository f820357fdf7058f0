"""Trying GPUs in children, which stand in for torch's."""

from pathlib import Path

import pytest

from daisychain.agent import gpus
from daisychain.agent.gpus import tried
from daisychain.facts import Gpu, Verdict

FAKE = """
import json, os, sys, time
sys.stdin.readline()
index = os.environ["CUDA_VISIBLE_DEVICES"]
assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
say = lambda **line: print(json.dumps(line), flush=True)
facts = {"kind": "gpu", "torch": "2.11.0", "cuda": "12.8", "arch_list": ["sm_75", "sm_80"]}
if index == "0":
    say(**facts, capability=[8, 6], error="", points=[[10, 0.5], [20, 0.75]])
elif index == "1":
    say(**facts, capability=[6, 1], error="no kernel image")
elif index == "2":
    os.abort()
elif index == "3":
    time.sleep(60)
elif index == "4":
    say(kind="gpu", torch=5)
say(kind="done")
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_probe.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpus, "PROBE_MODULE", "fake_probe")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def card(name: str) -> Gpu:
    return Gpu(name=name, verdict=Verdict(level="ok", check="gpu", reason="from versions"))


async def test_each_gpu_is_tried_alone_and_whatever_happens_to_one_is_its_own_reason(probe: None) -> None:
    found = await tried(tuple(card(name) for name in ("works", "old", "crashes", "hangs", "babbles")), 2.0, limit_s=3)
    assert [gpu.name for gpu in found] == ["works", "old", "crashes", "hangs", "babbles"]
    assert [gpu.verdict.level for gpu in found] == ["ok", "warn", "warn", "warn", "warn"]
    assert [gpu.capability for gpu in found[:2]] == [(8, 6), (6, 1)]
    reasons = [gpu.verdict.reason for gpu in found[1:]]
    for said, reason in zip(("none for 6.1", "exit code -6", "longer than 3 s", "said nothing"), reasons, strict=True):
        assert said in reason
        assert "is there but not used" in reason
    speed = found[0].capacity
    assert speed is not None
    # slowed twice
    assert (speed.fixed_s, speed.per_sample_s) == (pytest.approx(0.5), pytest.approx(0.05))
    assert all(gpu.capacity is None for gpu in found[1:])
    assert all(gpu.verdict.remedy for gpu in found[1:])


async def test_a_machine_without_gpus_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "run_child", None)
    assert await tried(()) == ()


async def test_a_gpu_that_the_machines_owner_hides_is_not_tried(probe: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = await tried((card("shown"), card("hidden")))
    assert [gpu.verdict.level for gpu in found] == ["ok", "warn"]
    assert found[1].verdict.reason == "hidden is there but not used: CUDA_VISIBLE_DEVICES hides it"
