"""The forecast before a run: measured around a ring, told for a dense model, unknown where anything is missing."""

import asyncio
from typing import Any

import msgspec
import pytest

from daisychain.agent.outlook import BUCKETS, describe, foretell, measure, question
from daisychain.agent.seats import Seat
from daisychain.errors import LinkError
from daisychain.facts import Capacity, Device, Nic, Node, RunSpec, Verdict, Versions
from daisychain.link.messages import AnyMessage, Done, FlowSent, Message, Peer, SendFlow
from daisychain.plan.forecast import Network

SPEC = RunSpec(job="script")
NAMES = ("head", "mid", "old")
PEERS = [Peer(name, f"10.0.0.{at}", 5000 + at) for at, name in enumerate(NAMES)]
OPEN = {(a, b): "" for a in range(3) for b in range(3) if a != b}


class FakeSide:
    def __init__(self, answer: AnyMessage | Exception) -> None:
        self.answer = answer
        self.asked: list[Message] = []

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        self.asked.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def seat(name: str, answer: AnyMessage | Exception, per_sample_s: float | None = 0.001, kind: Any = "wifi") -> Seat:
    capacity = per_sample_s and Capacity(fixed_s=0.0, per_sample_s=per_sample_s, threads=1, torch="2.9.0")
    node = Node(
        id=f"id-{name}", name=name, role="worker", state="ready", address="10.0.0.1", port=1, nic="eth0",
        nic_verdict=Verdict(level="ok", check="nic", reason="wired"), capacity=capacity or None,
        interface=Nic(name="eth0", kind=kind),
        device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
        versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    )  # fmt: skip
    return Seat(name, node, FakeSide(answer), ("cpu",), 0)


def three(**more: Any) -> list[Seat]:
    speeds = zip(NAMES, (1e6, 2e6, 3e6), (0.001, 0.002, 0.004), strict=True)
    return [
        seat(name, FlowSent(bytes_per_s=rate, latency_s=rate / 1e9), each_s, **more) for name, rate, each_s in speeds
    ]


async def together(parts: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*parts))


async def test_each_node_sends_to_the_next_and_the_last_to_the_first() -> None:
    seats = three()
    network = await measure(seats, PEERS, OPEN, "run-1", together)
    assert network == Network({"head": 1e6, "mid": 2e6, "old": 3e6}, 0.003, shared=True)
    asked = [side.asked for side in (each.side for each in seats) if isinstance(side, FakeSide)]
    assert asked == [[SendFlow(run="run-1", peer=PEERS[to])] for to in (1, 2, 0)]


async def test_a_medium_is_shared_only_where_all_are_on_wifi() -> None:
    seats = [*three()[:2], seat("old", FlowSent(bytes_per_s=1.0), kind="ethernet")]
    network = await measure(seats, PEERS, OPEN, "run-1", together)
    assert network is not None
    assert not network.shared


@pytest.mark.parametrize("answer", [FlowSent(), Done(), LinkError("mid is gone")])
async def test_one_flow_that_is_unknown_makes_the_network_unknown(answer: AnyMessage | Exception) -> None:
    seats = [seat("head", FlowSent(bytes_per_s=1e6)), seat("mid", answer), seat("old", FlowSent(bytes_per_s=1e6))]
    assert await measure(seats, PEERS, OPEN, "run-1", together) is None


async def test_a_ring_with_a_closed_way_and_a_node_alone_are_not_measured() -> None:
    seats = three()
    assert await measure(seats, PEERS, {**OPEN, (2, 0): "refused"}, "run-1", together) is None
    assert await measure(seats[:1], PEERS[:1], {}, "run-1", together) is None
    assert not any(each.side.asked for each in seats if isinstance(each.side, FakeSide))


def test_the_network_in_words() -> None:
    told = describe(Network({"head": 12.5e6, "old": 2.5e6}, 0.0004))
    assert told.text == "network, with all sending at once: 20 Mbit/s from old, the slowest; 0.4 ms a message"
    assert told.facts == {"bytes_per_s": {"head": 12_500_000, "old": 2_500_000}, "latency_s": 0.0004, "shared": False}


def test_the_forecast_of_a_chain_that_gains() -> None:
    asked = question(three(), Network(dict.fromkeys(NAMES, 1e12)), SPEC, 700)
    assert asked is not None
    told = foretell(asked)
    assert told.text == (
        "forecast for a dense model, batch 700, this one's own times being unknown yet: "
        "these three machines are 1.7x as fast as head alone; convolutions need the network less"
    )
    assert told.facts["nodes"]["head"]["share"] == 400
    assert told.facts["model"] == "reference"
    assert told.facts["speedup"] == told.facts["best_speedup"] == pytest.approx(1.75, rel=1e-3)
    msgspec.json.encode(told.facts)


def test_the_forecast_of_a_chain_that_loses_names_the_node_to_use() -> None:
    asked = question(three(), Network(dict.fromkeys(NAMES, 1e6)), SPEC, 64)
    assert asked is not None
    told = foretell(asked)
    assert "slower than head alone" in told.text
    assert told.facts["best"] == ["head"]
    assert [node["level"] for node in told.facts["nodes"].values()] == ["ok", "warn", "warn"]


def test_what_is_unknown_has_no_forecast() -> None:
    network = Network(dict.fromkeys(NAMES, 1e9))
    unmeasured = [*three()[:2], seat("old", Done(), None)]
    gpu = three()[0]._replace(devices=("cuda:0",))
    lent = [each._replace(node=msgspec.structs.replace(each.node, lent=True)) for each in three()[1:]]
    assert question(unmeasured, network, SPEC, 100) is None
    assert question([gpu, *three()[1:]], network, SPEC, 100) is None
    assert question([three()[0], *lent], network, SPEC, 100) is None, "a node alone"
    assert question(three(), Network({"head": 1e9}), SPEC, 100) is None
    assert question(three(), network, SPEC, 0) is None
    assert question(three(), network, msgspec.structs.replace(SPEC, equal=True), 100) is None


def test_the_reference_model_has_399370_parameters() -> None:
    assert sum(BUCKETS) == 4 * 399_370
