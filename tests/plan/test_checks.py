"""What a machine must be like for a run, on recorded facts."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.facts import Capacity, Condition, Device, Node, Verdict, Versions
from daisychain.plan.checks import Needs, install_torch, judge_all, judge_chaining, judge_condition, judge_machine

GB = 10**9
NODE = Node(
    id="id-old", name="old", role="worker", state="ready", address="10.0.0.2", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="wired"),
    device=Device(cpu="Core 2 Duo", cores_physical=2, cores_logical=2, memory_bytes=4 * GB),
    versions=Versions(
        daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux", machine="x86_64", glibc=(2, 36)
    ),
)  # fmt: skip
WELL = Condition(
    clock_s=1e9, skew_s=0.4, disk_free_bytes=20 * GB, memory_free_bytes=2 * GB, busy=0.1, battery_percent=80.0,
    plugged=True, hot_c=55.0, limit_c=100.0, kept_awake=True,
)  # fmt: skip


def judged(needs: Needs | None = None, node: Node = NODE, **facts: Any) -> list[Verdict]:
    """What isn't well about a node that is well but for these facts."""
    now = msgspec.structs.replace(WELL, **facts)
    return [v for v in judge_condition(node, now, needs or Needs()) if v.level != "ok"]


def test_a_node_that_is_well_says_so_with_numbers() -> None:
    found = judge_condition(NODE, WELL, Needs())
    assert {v.level for v in found} == {"ok"}
    assert [v.check for v in found] == ["disk", "memory", "load", "battery", "heat", "clock"]
    assert {v.node for v in found} == {"old"}
    assert "20.0 GB" in found[0].reason


def test_what_is_unknown_is_not_judged() -> None:
    assert judge_condition(NODE, Condition(clock_s=0.0), Needs(disk_bytes=10**15, state_bytes=10**15)) == []


FILES = Needs(disk_bytes=500_000_000)
MODEL = Needs(state_bytes=2 * GB)
CASES: dict[str, tuple[Needs | None, dict[str, Any], str, str, str, str]] = {
    "a disk that the files alone fill": (
        FILES, {"disk_free_bytes": 400_000_000}, "refuse", "disk", "has 400 MB of disk space free", "space on old"),
    "a disk that the files nearly fill": (
        FILES, {"disk_free_bytes": 600_000_000}, "warn", "disk", "may take 1.1 GB", "leave it out with --nodes"),
    "a full disk and nothing to ship": (
        None, {"disk_free_bytes": 10**6}, "warn", "disk", "only 1 MB", "Free some space"),
    "no memory for torch": (
        None, {"memory_free_bytes": 200_000_000}, "warn", "memory", "only 200 MB of memory", "programs on old"),
    "a model that does not fit": (
        MODEL, {"memory_free_bytes": 2 * GB}, "refuse", "memory", "needs about 2.3 GB", "leave it out with --nodes"),
    "memory for one rank but not for three": (
        Needs(ranks=3), {"memory_free_bytes": 900_000_000}, "warn", "memory", "930 MB before any model", "End other"),
    "a busy machine": (None, {"busy": 0.83}, "warn", "load", "83% of old's processor", "every step waits"),
    "on battery": (
        None, {"plugged": False, "battery_percent": 41.0}, "warn", "battery", "battery, 41% full", "Plug old in"),
    "hot": (None, {"hot_c": 97.0}, "warn", "heat", "at 97 °C, of 100 °C", "Let air to old"),
    "a laptop that may fall asleep": (
        None, {"kept_awake": False}, "warn", "sleep", "keep it awake", "keep its lid open"),
    "a clock 15 minutes ahead": (None, {"skew_s": 900.0}, "warn", "clock", "15 minutes ahead of", "timedatectl"),
    "a dead clock battery": (None, {"skew_s": -7e8}, "warn", "clock", "8102 days behind", "timedatectl"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_names_the_node_the_cause_and_the_remedy(case: str) -> None:
    needs, facts, level, check, reason, remedy = CASES[case]
    (verdict,) = judged(needs, **facts)
    assert (verdict.level, verdict.check, verdict.node) == (level, check, "old")
    assert reason in verdict.reason
    assert "old" in verdict.reason
    assert remedy in verdict.remedy


def test_what_does_no_harm_is_not_mentioned() -> None:
    assert judged(FILES, disk_free_bytes=2 * GB) == []
    assert judged(MODEL, memory_free_bytes=3 * GB) == []
    assert judged(skew_s=-100.0, hot_c=90.0, busy=0.49) == []
    # a desktop has no battery, and nobody knows whether it falls asleep
    assert judged(battery_percent=None, plugged=None, kept_awake=False) == []


def test_a_node_that_measures_its_speed_is_not_busy_with_others() -> None:
    assert judged(node=msgspec.structs.replace(NODE, state="measuring"), busy=1.0) == []


def test_a_node_that_does_not_answer_is_named() -> None:
    (verdict,) = [v for v in judge_all([NODE], {}, Needs()) if v.level != "ok"]
    assert (verdict.level, verdict.node) == ("warn", "old")
    assert "unknown" in verdict.reason
    assert verdict.remedy
    assert judge_all([NODE], {NODE.id: WELL}, Needs()) == judge_condition(NODE, WELL, Needs())


# --- what doesn't change -------------------------------------------------------------------------


def machine(*lacks: str, **fields: Any) -> Node:
    versions = {k: fields.pop(k) for k in ("torch", "glibc", "machine") if k in fields}
    device = msgspec.structs.replace(NODE.device, cpu_lacks=lacks)
    return msgspec.structs.replace(
        NODE, device=device, versions=msgspec.structs.replace(NODE.versions, **versions), **fields
    )


def test_an_old_processor_on_which_torch_does_not_run_is_refused_with_what_it_lacks() -> None:
    (_, verdict) = judge_machine(machine("avx", "avx2"))
    assert (verdict.level, verdict.check, verdict.node) == ("refuse", "cpu", "old")
    assert "old (Core 2 Duo) has no AVX, AVX2" in verdict.reason
    assert "--nodes" in verdict.remedy


def test_an_old_processor_on_which_torch_runs_is_welcome() -> None:
    speed = Capacity(fixed_s=0.1, per_sample_s=0.1, threads=1, torch="2.9.0")
    assert {v.level for v in judge_machine(machine("avx2", capacity=speed))} == {"ok"}


def test_an_old_processor_that_is_still_tried_is_warned_of() -> None:
    assert [v.level for v in judge_machine(machine("avx2", state="measuring"))] == ["ok", "warn"]


@pytest.mark.parametrize(
    ("glibc", "kind", "remedy"),
    [
        ((2, 36), "x86_64", "Run on old: python -m pip install torch"),
        (None, "x86_64", "Run on old: python -m pip install torch"),
        ((2, 27), "x86_64", "python -m pip install 'torch==2.6.0'"),
        ((2, 17), "aarch64", "python -m pip install 'torch==2.5.1'"),
    ],
)
def test_a_machine_without_torch_is_told_the_one_that_works_there(
    glibc: tuple[int, int] | None, kind: str, remedy: str
) -> None:
    (verdict,) = judge_machine(machine(torch=None, glibc=glibc, machine=kind))
    assert (verdict.level, verdict.check) == ("refuse", "torch")
    assert verdict.remedy.endswith(remedy)


def test_an_old_glibc_can_not_follow_the_others_so_they_follow_it() -> None:
    old = machine(torch="2.5.1", glibc=(2, 27))
    assert install_torch(old, "2.10.0").startswith("Run on every node, for old's glibc 2.27 is too old")
    assert install_torch(old, "2.4.1") == "Run on old: python -m pip install 'torch==2.4.1'"


def test_a_mac_says_why_its_gpu_is_left_alone() -> None:
    versions = msgspec.structs.replace(NODE.versions, os="macOS 15.1", os_family="macos", machine="arm64")
    (_, verdict) = judge_machine(msgspec.structs.replace(NODE, versions=versions))
    assert (verdict.level, verdict.check, verdict.node) == ("warn", "gpu", "old")
    assert "old trains on its CPU" in verdict.reason
    assert "gloo" in verdict.reason
    assert "MPS" in verdict.reason
    assert verdict.remedy
    # one with an Intel processor has no such GPU
    intel = msgspec.structs.replace(versions, machine="x86_64")
    assert [v.check for v in judge_machine(msgspec.structs.replace(NODE, versions=intel))] == ["torch"]


def test_windows_is_in_no_chain() -> None:
    versions = msgspec.structs.replace(NODE.versions, os="Windows 11", os_family="windows")
    (verdict,) = judge_chaining(msgspec.structs.replace(NODE, versions=versions))
    assert (verdict.level, verdict.check, verdict.node) == ("refuse", "os", "old")
    assert "old runs Windows" in verdict.reason
    assert "WSL" in verdict.remedy
    assert "Docker" in verdict.remedy
    assert judge_chaining(NODE) == []


numbers = st.none() | st.floats(allow_nan=False)
counts = st.none() | st.integers(min_value=0)


@given(
    st.builds(
        Condition, clock_s=st.floats(), skew_s=numbers, disk_free_bytes=counts, memory_free_bytes=counts, busy=numbers,
        battery_percent=numbers, plugged=st.none() | st.booleans(), hot_c=numbers, limit_c=numbers,
        kept_awake=st.none() | st.booleans(),
    ),
    st.builds(Needs, disk_bytes=st.integers(min_value=0), state_bytes=counts, ranks=st.integers(0, 64)),
)  # fmt: skip
def test_any_condition_gets_an_answer(now: Condition, needs: Needs) -> None:
    for verdict in judge_condition(NODE, now, needs):
        assert verdict.reason
        assert bool(verdict.remedy) == (verdict.level != "ok")
