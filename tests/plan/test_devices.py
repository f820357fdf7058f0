"""Which ranks a node has, and on what."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.facts import Capacity, Device, Gpu, Level, Node, Verdict, Versions
from daisychain.plan.devices import devices, seat_names, speed, threads, visible


def machine(*levels: Level) -> Device:
    gpus = tuple(Gpu(name="GPU", verdict=Verdict(level=level, check="gpu", reason="")) for level in levels)
    return Device(cpu="x", cores_physical=4, cores_logical=8, memory_bytes=1, gpus=gpus)


@pytest.mark.parametrize(
    ("levels", "ranks", "expected"),
    [
        ((), 0, ("cpu",)),
        ((), 1, ("cpu",)),
        ((), 3, ("cpu", "cpu", "cpu")),
        (("ok",), 0, ("cuda:0",)),
        (("ok",), 1, ("cuda:0", "cpu")),
        (("ok", "ok"), 0, ("cuda:0", "cuda:1")),
        (("ok", "ok"), 2, ("cuda:0", "cuda:1", "cpu", "cpu")),
        (("warn",), 0, ("cpu",)),
        (("warn", "ok"), 0, ("cuda:1",)),
        (("warn", "warn"), 2, ("cpu", "cpu")),
    ],
)
def test_a_rank_for_each_usable_gpu_and_the_cpu_where_there_is_none_or_when_asked_for(
    levels: tuple[Level, ...], ranks: int, expected: tuple[str, ...]
) -> None:
    assert devices(machine(*levels), ranks) == expected


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (("cpu",), ("old",)),
        (("cuda:1",), ("old",)),
        (("cpu", "cpu"), ("old:0", "old:1")),
        (("cuda:0", "cuda:2"), ("old:cuda0", "old:cuda2")),
        (("cuda:0", "cpu"), ("old:cuda0", "old:cpu")),
        (("cuda:0", "cpu", "cpu"), ("old:cuda0", "old:0", "old:1")),
    ],
)
def test_seats_are_told_apart_only_where_a_node_has_several(on: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert seat_names("old", on) == expected


@pytest.mark.parametrize(
    ("on", "total", "expected"),
    [
        (("cpu",), 8, (8,)),
        (("cpu", "cpu"), 8, (4, 4)),
        (("cpu", "cpu", "cpu"), 8, (3, 3, 2)),
        (("cpu", "cpu", "cpu"), 2, (1, 1, 1)),
        (("cuda:0",), 8, (8,)),
        (("cuda:0", "cuda:1"), 8, (4, 4)),
        (("cuda:0", "cpu"), 8, (1, 7)),
        (("cuda:0", "cuda:1", "cpu", "cpu"), 9, (1, 1, 4, 3)),
        (("cuda:0", "cpu"), 1, (1, 1)),
    ],
)
def test_the_threads_of_a_node_are_divided(on: tuple[str, ...], total: int, expected: tuple[int, ...]) -> None:
    assert tuple(threads(on, place, total) for place in range(len(on))) == expected


@given(
    st.integers(0, 4).flatmap(lambda gpus: st.tuples(st.just(gpus), st.integers(0 if gpus else 1, 6))),
    st.integers(1, 64),
)
def test_no_core_gets_two_threads_while_there_is_one_for_each_rank(kinds: tuple[int, int], total: int) -> None:
    on = [f"cuda:{index}" for index in range(kinds[0])] + ["cpu"] * kinds[1]
    each = [threads(on, place, total) for place in range(len(on))]
    assert min(each) >= 1
    assert sum(each) <= max(total, len(on))


def capacity(fixed_s: float, per_sample_s: float) -> Capacity:
    return Capacity(fixed_s=fixed_s, per_sample_s=per_sample_s, threads=1, torch="2")


def test_the_ranks_of_a_cpu_share_its_speed_and_a_gpu_has_its_own() -> None:
    verdict = Verdict(level="ok", check="gpu", reason="")
    gpus = (Gpu(name="a", verdict=verdict), Gpu(name="b", verdict=verdict, capacity=capacity(0.25, 0.001)))
    node = Node(
        id="x", name="old", role="worker", state="ready", address="10.0.0.1", port=1, nic="eth0", nic_verdict=verdict,
        device=msgspec.structs.replace(machine(), gpus=gpus), capacity=capacity(0.5, 0.25),
        versions=Versions(daisychain="1", python="3.11", torch="2", os="Debian", os_family="linux"),
    )  # fmt: skip
    assert speed(node, ("cpu",), 0) == (0.5, 0.25)
    on = ("cuda:0", "cuda:1", "cpu", "cpu")
    assert [speed(node, on, place) for place in range(4)] == [None, (0.25, 0.001), (0.5, 0.5), (0.5, 0.5)]
    assert speed(msgspec.structs.replace(node, capacity=None), on, 2) is None


def test_a_rank_sees_its_own_gpu_or_none() -> None:
    assert [visible(device) for device in ("cuda:0", "cuda:12", "cpu")] == ["0", "12", ""]
