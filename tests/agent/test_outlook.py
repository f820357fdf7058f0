"""The forecast before a run: measured around a ring, told for a dense model, unknown where anything is missing."""

import asyncio
from typing import Any

import msgspec
import pytest

from daisychain.agent.outlook import BUCKETS, describe, foretell, measure, question, reference, told_of_memory
from daisychain.agent.seats import Seat
from daisychain.errors import LinkError
from daisychain.facts import Capacity, Device, Nic, Node, Verdict, Versions
from daisychain.link.messages import AnyMessage, Done, FlowSent, Message, Peer, SendFlow
from daisychain.plan.advice import Decision
from daisychain.plan.forecast import Network, Question, forecast

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
    assert network == Network({"head": 1e6, "mid": 2e6, "old": 3e6}, 0.003, shared=True, wifi=True)
    asked = [side.asked for side in (each.side for each in seats) if isinstance(side, FakeSide)]
    assert asked == [[SendFlow(run="run-1", peer=PEERS[to])] for to in (1, 2, 0)]


async def test_a_medium_is_shared_only_where_all_are_on_wifi() -> None:
    seats = [*three()[:2], seat("old", FlowSent(bytes_per_s=1.0), kind="ethernet")]
    network = await measure(seats, PEERS, OPEN, "run-1", together)
    assert network is not None
    assert not network.shared


@pytest.mark.parametrize(
    ("sent", "shared"),
    [
        ([1.0e6, 1.4e6], False),
        ([1.0e6, 2.5e6, 1.0e6, 2.4e6], True),
        ([0.3e6, 1.0e6, 1.0e6, 1.0e6], False),  # busy for a moment while all were sending
        ([1.0e6, 2.5e6, 1.0e6, 1.0e6], False),
    ],
    ids=["alike", "shared", "busy", "once"],
)
async def test_a_medium_is_shared_where_one_node_alone_gets_much_more_through_twice(
    sent: list[float], shared: bool
) -> None:
    class Air(FakeSide):
        async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
            await super().ask(message, timeout_s)
            return FlowSent(bytes_per_s=sent[len(self.asked) - 1])

    seats, air = three(kind="ethernet"), Air(FlowSent())
    seats[0] = seats[0]._replace(side=air)
    network = await measure(seats, PEERS, OPEN, "run-1", together)
    assert network is not None
    assert (network.shared, network.wifi) == (shared, False)
    assert network.bytes_per_s["head"] == 1e6
    assert len(air.asked) == len(sent)


async def test_on_fast_links_nobody_sends_alone() -> None:
    seats = [seat(name, FlowSent(bytes_per_s=1e8), kind="ethernet") for name in NAMES]
    network = await measure(seats, PEERS, OPEN, "run-1", together)
    assert network == Network(dict.fromkeys(NAMES, 1e8), 0.0)
    assert all(len(each.side.asked) == 1 for each in seats if isinstance(each.side, FakeSide))


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


TRIAL = {
    "costs": [[0.0, 0.001], [0.0, 0.002], [0.0, 0.004]], "early": [1.0, 1.0, 1.0],
    "buckets": [600_000, 400_000], "exchange_s": 0.001, "latency_s": 0.0001, "alone_s": 0.7, "together": None,
    "caps": [0, 0, 0], "sums": 0, "why": "",
}  # fmt: skip


def asked(network: Network | None = None, *, batch: int = 700, steps: int | None = 10, **trial: Any) -> Question:
    return question({**TRIAL, **trial}, NAMES, network, batch=batch, steps=steps)


def test_the_forecast_of_a_chain_that_gains() -> None:
    foretold, decision = foretell(asked())
    assert foretold.text == "these three machines are 1.7x as fast as head alone"
    assert foretold.shares == {"head": 400, "mid": 200, "old": 100}
    assert foretold.step_ms == pytest.approx(401)
    assert foretold.sync_ms == pytest.approx(1)
    assert foretold.samples_per_second == pytest.approx(700 / 0.401)
    assert foretold.alone_samples_per_second == pytest.approx(1000)
    assert foretold.seconds == pytest.approx(4.01)
    assert foretold.added["old"].startswith("old adds 1")
    assert decision == Decision()
    msgspec.json.encode(foretold)


def test_a_chain_that_loses_is_refused_with_the_node_to_use_or_leaves_the_others_out() -> None:
    losing = asked(exchange_s=5.0)
    foretold, decision = foretell(losing)
    assert "slower than head alone" in foretold.text
    assert foretold.best == ("head",)
    assert decision.refusal is not None
    foretold, decision = foretell(losing, auto=True)
    assert decision.left_out == ("mid", "old")
    assert foretold.nodes == ("head",)
    assert foretold.text.endswith("; mid, old left out")
    assert foretold.speedup == pytest.approx(1)


def test_the_fastest_node_alone_is_as_it_was_measured() -> None:
    # beside the others it seemed slower than it is
    foretold, _ = foretell(asked(alone_s=0.35))
    assert foretold.alone_samples_per_second == pytest.approx(2000)
    assert foretold.best == ("head",), "and so a set of it alone is told"
    assert foretold.best_speedup == pytest.approx(1)
    assert asked(alone_s=0).alone_s is None


def test_a_step_that_all_made_together_stretches_what_is_foretold_of_all_and_less_of_some() -> None:
    plain = asked(sums=2)
    whole = forecast(plain)
    stretched = asked(sums=2, together={"shares": list(whole.shares), "step_s": 1.4 * whole.step_s})
    assert stretched.stretch == pytest.approx(1.4)
    assert forecast(stretched).step_s == pytest.approx(1.4 * whole.step_s)
    assert forecast(stretched).compute_s == whole.compute_s
    two = ("head", "mid")
    assert forecast(stretched, two).step_s == pytest.approx(1.2 * forecast(plain, two).step_s)
    assert forecast(stretched, ["head"]) == forecast(plain, ["head"])
    assert asked(together={"shares": [400, 200, 100], "step_s": 100.0}).stretch == 3.0, "something disturbed it"


def test_no_node_is_to_take_more_than_its_memory_holds_unless_all_together_hold_too_little() -> None:
    assert forecast(asked(caps=[0, 50, 0])).shares[1] == 50
    assert forecast(asked(caps=[100, 50, 100])).shares == forecast(asked()).shares
    assert "holds 250 samples of a batch of 700" in told_of_memory({**TRIAL, "caps": [100, 50, 100]}, 700)
    assert told_of_memory({**TRIAL, "caps": [100, 0, 100]}, 700) == ""
    assert told_of_memory({**TRIAL, "caps": [100, 500, 100]}, 700) == ""


def test_the_network_is_as_fast_as_the_ranks_sums_and_as_uneven_as_the_agents_flows() -> None:
    uneven = Network({"head": 4e6, "mid": 2e6, "old": 1e6}, 0.5)
    found = asked(uneven).network
    assert found.bytes_per_s["head"] == pytest.approx(4 * found.bytes_per_s["old"])
    assert found.latency_s == pytest.approx(0.0001 / 4)
    buckets = 2 * found.sum_s(NAMES, 0) + (found.sum_s(NAMES, 1_000_000) - found.sum_s(NAMES, 0))
    assert buckets == pytest.approx(0.001)
    assert asked(exchange_s=0.0, latency_s=0.0).network.sum_s(NAMES, 10) >= 0


def test_a_report_that_is_none_is_an_error() -> None:
    for wrong in ({"costs": [[0.0, 0.001]]}, {"buckets": []}, {"early": ["x"] * 3}, {"together": 3}):
        with pytest.raises((ValueError, TypeError)):
            asked(**wrong)


def test_without_a_run_the_reference_model_stands_for_a_dense_one() -> None:
    found = reference(three(), Network(dict.fromkeys(NAMES, 1e12)), 700)
    assert found is not None
    assert forecast(found).shares == (400, 200, 100)
    network = Network(dict.fromkeys(NAMES, 1e9))
    unmeasured = [*three()[:2], seat("old", Done(), None)]
    gpu = three()[0]._replace(devices=("cuda:0",))
    assert reference(unmeasured, network, 100) is None
    assert reference([gpu, *three()[1:]], network, 100) is None
    assert reference(three()[:1], network, 100) is None, "a node alone"
    assert reference(three(), Network({"head": 1e9}), 100) is None


def test_the_reference_model_has_399370_parameters() -> None:
    assert sum(BUCKETS) == 4 * 399_370
