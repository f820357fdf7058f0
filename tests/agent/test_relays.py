"""Ways between nodes that Tailscale relays, with fake nodes."""

import asyncio
from typing import Any

import pytest

from daisychain.agent import relays
from daisychain.agent.relays import find, judge
from daisychain.agent.seats import Seat
from daisychain.discovery import tailscale
from daisychain.discovery.tailscale import TailPeer
from daisychain.errors import LinkError
from daisychain.facts import Device, Nic, Node, Verdict, Versions
from daisychain.link.messages import AnyMessage, Done, FindRelays, Message, RelaysFound


class FakeSide:
    """Answers with a relay for each address it knows one of, or with `answer`."""

    def __init__(self, relays: dict[str, str], answer: AnyMessage | Exception | None = None) -> None:
        self.relays, self.answer = relays, answer

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        if isinstance(self.answer, Exception):
            raise self.answer
        assert isinstance(message, FindRelays)
        return self.answer or RelaysFound(relays=tuple(self.relays.get(address, "") for address in message.addresses))


def seat(name: str, last: int, side: FakeSide, kind: Any = "tailscale") -> Seat:
    node = Node(
        id=f"id-{name}", name=name, role="worker", state="ready", address=f"100.64.0.{last}", port=1, nic="tailscale0",
        nic_verdict=Verdict(level="ok", check="nic", reason="x"), interface=Nic(name="tailscale0", kind=kind),
        device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
        versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    )  # fmt: skip
    return Seat(name, node, side, ("cpu",), 0)


async def together(parts: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*parts))


async def test_a_relayed_way_is_warned_of_once_with_the_measured_speed() -> None:
    head, old = FakeSide({"100.64.0.2": "fra"}), FakeSide({"100.64.0.1": "fra"})
    seats = [seat("head", 1, head), seat("old", 2, old), seat("mid", 3, FakeSide({}))]
    (verdict,) = await judge(seats, {"head": 400_000.0, "old": 1e6, "mid": 1e7}, together)
    assert (verdict.level, verdict.check, verdict.node) == ("warn", "relay", "head")
    assert verdict.reason == "Tailscale relays between head and old, through fra: head gets 3.2 Mbit/s through"
    assert "UDP port 41641" in verdict.remedy
    assert "tailscale ping 100.64.0.2" in verdict.remedy


async def test_a_speed_that_was_not_measured_is_unknown() -> None:
    seats = [seat("head", 1, FakeSide({})), seat("old", 2, FakeSide({"100.64.0.1": "fra"}))]
    (verdict,) = await judge(seats, {}, together)
    assert verdict.reason == "Tailscale relays between old and head, through fra: its speed is unknown"


@pytest.mark.parametrize("answer", [Done(), LinkError("old is gone"), RelaysFound(relays=())])
async def test_a_node_that_can_not_say_holds_nothing_up(answer: AnyMessage | Exception) -> None:
    seats = [seat("head", 1, FakeSide({})), seat("old", 2, FakeSide({}, answer))]
    assert await judge(seats, {}, together) == ()


async def test_nodes_elsewhere_are_not_asked() -> None:
    asked = FakeSide({}, AssertionError("asked"))
    assert await judge([seat("head", 1, asked), seat("old", 2, asked, "ethernet")], {}, together) == ()


async def test_a_node_asks_its_own_tailscale(monkeypatch: pytest.MonkeyPatch) -> None:
    async def peers(command: str) -> tuple[TailPeer, ...]:
        return (TailPeer("old", "100.64.0.2", "fra"), TailPeer("mid", "100.64.0.3"))

    addresses = ("100.64.0.3", "100.64.0.2", "10.0.0.1")
    monkeypatch.setattr(tailscale, "program", lambda: "")
    assert await find(FindRelays(addresses=addresses)) == RelaysFound(relays=("", "", ""))
    monkeypatch.setattr(relays.tailscale, "program", lambda: "tailscale")
    monkeypatch.setattr(tailscale, "read_peers", peers)
    assert await find(FindRelays(addresses=addresses)) == RelaysFound(relays=("", "fra", ""))
