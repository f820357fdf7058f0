"""Checking a chain without a run, with fake nodes."""

import time
from typing import Any

import msgspec

from daisychain.agent.doctor import examine
from daisychain.errors import DaisyError
from daisychain.facts import Capacity, Condition, Device, Gpu, Node, Verdict, Versions
from daisychain.link.messages import (
    AnyMessage,
    FlowSent,
    Inspect,
    Inspected,
    Listen,
    Listening,
    Message,
    PathsTried,
    SendFlow,
    TryPaths,
)

NODE = Node(
    id="id-head", name="head", role="head", state="ready", address="10.0.0.1", port=1, nic="eth0",
    nic_verdict=Verdict(level="ok", check="nic", reason="eth0 (wired, 10.0.0.1)"),
    device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
    versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
)  # fmt: skip


def node(name: str, last: int, **fields: Any) -> Node:
    return msgspec.structs.replace(NODE, id=f"id-{name}", name=name, address=f"10.0.0.{last}", **fields)


class FakeSide:
    """A node; `blocked`: why it can't reach others, by name; `busy`: it is in a run."""

    def __init__(
        self, blocked: dict[str, str] | None = None, busy: bool = False, bytes_per_s: float = 1e7, **facts: Any
    ) -> None:
        self.blocked, self.busy, self.bytes_per_s = blocked or {}, busy, bytes_per_s
        self.condition = Condition(clock_s=time.time(), **facts)

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        match message:
            case Inspect():
                return Inspected(condition=self.condition)
            case Listen() if self.busy:
                raise DaisyError("this node is in run one", "Try again when that run is over")
            case Listen(run=run):
                assert run.startswith(".doctor")
                return Listening(port=5000)
            case TryPaths(peers=peers):
                return PathsTried(reasons=tuple(self.blocked.get(peer.name, "") for peer in peers))
            case SendFlow():
                return FlowSent(bytes_per_s=self.bytes_per_s, latency_s=0.0004)
        raise AssertionError(message)


def unwell(verdicts: tuple[Verdict, ...]) -> list[tuple[str, str, str]]:
    return [(v.level, v.check, v.node) for v in verdicts if v.level != "ok"]


async def test_one_machine_that_is_well() -> None:
    found = await examine([(NODE, FakeSide(disk_free_bytes=10**10))], [], None)
    assert [(v.level, v.check, v.node) for v in found.verdicts] == [
        ("ok", check, "head") for check in ("nic", "torch", "disk", "clock")
    ]
    assert found.paths == ()


async def test_a_chain_has_every_node_and_every_pair_and_who_is_lost() -> None:
    old, mid = node("old", 2), node("mid", 3)
    parts = [(NODE, FakeSide()), (old, FakeSide({"head": "no answer"})), (mid, FakeSide())]
    found = await examine(parts, [node("gone", 4, state="lost", detail="not heard of for 9 s")], None)
    assert len(found.paths) == 6
    assert ("old", "head", "no answer") in found.paths
    assert unwell(found.verdicts) == [("refuse", "path", "head"), ("warn", "node", "gone")]
    (path,) = [v for v in found.verdicts if v.check == "path"]
    assert "old (10.0.0.2) can't reach head (10.0.0.1)" in path.reason
    assert "ufw" in path.remedy


async def test_what_the_network_carries_is_told_with_the_slowest_sender() -> None:
    found = await examine([(NODE, FakeSide()), (node("old", 2), FakeSide(bytes_per_s=2.5e6))], [], None)
    assert [v.reason for v in found.verdicts if v.check == "network"] == [
        "network, with all sending at once: 20 Mbit/s from old, the slowest; 0.4 ms a message"
    ]


async def test_what_a_dense_model_would_gain_is_told_where_all_speeds_are_known() -> None:
    capacity = Capacity(fixed_s=0.0, per_sample_s=0.001, threads=1, torch="2.9.0")
    head, old = (msgspec.structs.replace(each, capacity=capacity) for each in (NODE, node("old", 2)))
    for rate, level, said in (
        (1e9, "ok", "these two machines are 2.0x as fast"),
        (1e6, "warn", "slower than head alone"),
    ):
        found = await examine([(head, FakeSide(bytes_per_s=rate)), (old, FakeSide(bytes_per_s=rate))], [], None)
        (verdict,) = [v for v in found.verdicts if v.check == "forecast"]
        assert (verdict.level, said in verdict.reason) == (level, True), verdict
        assert verdict.reason.startswith("a dense model at a batch of 512: ")


async def test_each_fault_is_told_once() -> None:
    no_nic = Verdict(level="refuse", check="nic", reason="there is no usable NIC", remedy="Plug in a cable")
    versions = msgspec.structs.replace(NODE.versions, torch=None)
    old = node("old", 2, nic_verdict=no_nic, versions=versions)
    found = await examine([(NODE, FakeSide()), (old, FakeSide())], [], None)
    assert unwell(found.verdicts) == [("refuse", "nic", "old"), ("refuse", "torch", "old")]


async def test_during_a_run_everything_but_the_paths_is_checked() -> None:
    found = await examine([(NODE, FakeSide()), (node("old", 2), FakeSide(busy=True))], [], None)
    (warning,) = [v for v in found.verdicts if v.level != "ok"]
    assert "the paths weren't tried: old: this node is in run one" in warning.reason
    assert warning.remedy == "Try again when that run is over"


async def test_a_machine_whose_gpus_can_not_be_used_says_what_it_trains_on() -> None:
    gpu = Gpu(
        name="GTX", verdict=Verdict(level="warn", check="gpu", reason="GTX is there but not used", remedy="Update")
    )
    device = msgspec.structs.replace(NODE.device, gpus=(gpu,))
    found = await examine([(msgspec.structs.replace(NODE, device=device), FakeSide())], [], None)
    assert [v.reason for v in found.verdicts if v.check == "gpu"] == [
        "GTX is there but not used", "head trains on its CPU: torch can use no GPU there"
    ]  # fmt: skip


async def test_another_machine_is_tried_besides() -> None:
    own = msgspec.structs.replace(NODE, address="127.0.0.1")
    found = await examine([(own, FakeSide())], [], ("no such host.invalid", 1))
    assert unwell(found.verdicts) == [("refuse", "peer", "head")]
