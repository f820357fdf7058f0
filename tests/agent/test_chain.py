"""Who is in the chain; time is an argument."""

from typing import Any

import msgspec
import pytest

from daisychain.agent.chain import LOST_AFTER_S, Chain, advice
from daisychain.facts import Capacity, Device, Node, Verdict, Versions

OK = Verdict(level="ok", check="nic", reason="wired")
SPEED = Capacity(fixed_s=0.0, per_sample_s=0.001, threads=1, torch="2.9.0")


def node(name: str, **fields: Any) -> Node:
    base = Node(
        id=name * 2, name=name, role="worker", state="ready", address="10.0.0.2", port=1, nic="eth0", nic_verdict=OK,
        device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
        versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"), capacity=SPEED,
    )  # fmt: skip
    return msgspec.structs.replace(base, **fields)


def test_a_worker_is_silent_once_it_missed_five_heartbeats() -> None:
    chain = Chain().arrived(node("old"), 10.0)
    assert LOST_AFTER_S == 5.0
    assert chain.silent(10.0 + LOST_AFTER_S) == ()
    assert chain.silent(10.1 + LOST_AFTER_S) == ("oldold",)
    assert chain.heard("oldold", 15.0).silent(10.1 + LOST_AFTER_S) == ()


def test_who_is_lost_already_is_not_silent_again() -> None:
    chain = Chain().arrived(node("old", share=3), 10.0).gone("oldold", 20.0, "not heard of for 6 s")
    assert chain.silent(1000.0) == ()
    lost = chain.members["oldold"].node
    assert (lost.state, lost.detail, lost.share) == ("lost", "not heard of for 6 s", None)


def test_a_lost_worker_that_says_hello_is_back() -> None:
    chain = Chain().arrived(node("old"), 10.0).gone("oldold", 20.0, "gone").arrived(node("old"), 30.0)
    assert chain.members["oldold"].node.state == "ready"
    assert chain.silent(31.0) == ()


def test_a_beat_of_a_lost_worker_does_not_make_it_connected() -> None:
    chain = Chain().arrived(node("old"), 10.0).gone("oldold", 20.0, "gone").heard("oldold", 21.0)
    assert not chain.members["oldold"].connected


def test_nothing_happens_for_a_stranger() -> None:
    chain = Chain()
    assert chain.heard("x", 1.0) is chain
    assert chain.gone("x", 1.0, "why") is chain
    assert chain.forgotten("x").members == {}


def test_a_change_is_a_new_chain() -> None:
    first = Chain()
    second = first.arrived(node("old"), 1.0)
    assert (len(first.members), len(second.members), len(second.forgotten("oldold").members)) == (0, 1, 0)
    assert len(second.members) == 1


def test_the_head_comes_first_then_the_workers_by_name() -> None:
    chain = Chain().arrived(node("zoe"), 1.0).arrived(node("abe"), 1.0)
    assert [n.name for n in chain.nodes(node("head", role="head"))] == ["head", "abe", "zoe"]


BAD_NIC = Verdict(level="warn", check="nic", reason="only Wi-Fi here", remedy="Use a cable")


@pytest.mark.parametrize(
    ("nodes", "waiting", "words"),
    [
        ([node("head")], 1, "six digits"),
        ([node("head", nic_verdict=BAD_NIC)], 1, "six digits"),
        ([node("head", nic_verdict=BAD_NIC), node("old")], 0, "only Wi-Fi here. Use a cable"),
        ([node("head")], 0, "daisychain join"),
        ([node("head"), node("old", state="lost"), node("new")], 0, "old can't be reached"),
        ([node("head"), node("old", state="measuring", capacity=None)], 0, "Measuring"),
        ([node("head"), node("old", capacity=None, detail="torch is not installed here")], 0, "old: torch is not"),
        ([node("head", capacity=None), node("old", capacity=None)], 0, "head: its speed is unknown"),
        ([node("head"), node("old", capacity=msgspec.structs.replace(SPEED, per_sample_s=0.002))], 0, "1.50 times"),
    ],
)
def test_the_advice_is_the_most_urgent_thing(nodes: list[Node], waiting: int, words: str) -> None:
    said = advice(tuple(nodes), waiting)
    assert words in said
    assert "\n" not in said
