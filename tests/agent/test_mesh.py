"""Ranks that gloo can't connect: which nodes, which NICs, which way."""

import asyncio
from typing import Any

from daisychain.agent.mesh import Explained, explain
from daisychain.agent.seats import Seat
from daisychain.errors import LinkError
from daisychain.facts import Device, Node, Verdict, Versions
from daisychain.link.messages import AnyMessage, Listen, Listening, Message, PathsTried, TryPaths


class FakeSide:
    """A node; `blocked`: why it can't reach others, by name."""

    def __init__(self, blocked: dict[str, str] | None = None, gone: bool = False) -> None:
        self.blocked, self.gone = blocked or {}, gone

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage:
        if self.gone:
            raise LinkError("the connection was lost")
        match message:
            case Listen(run="run-1"):
                return Listening(port=5000)
            case TryPaths(peers=peers):
                return PathsTried(reasons=tuple(self.blocked.get(peer.name, "") for peer in peers))
        raise AssertionError(message)


def seat(name: str, last: int, side: FakeSide, nic: str = "eth0") -> Seat:
    node = Node(
        id=f"id-{name}", name=name, role="worker", state="ready", address=f"10.0.0.{last}", port=1, nic=nic,
        nic_verdict=Verdict(level="ok", check="nic", reason="x"),
        device=Device(cpu="x", cores_physical=2, cores_logical=2, memory_bytes=1),
        versions=Versions(daisychain="1", python="3.11", torch="2.9.0", os="Debian", os_family="linux"),
    )  # fmt: skip
    return Seat(name, node, side, ("cpu",), 0)


async def together(parts: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*parts))


async def explained(*seats: Seat) -> Explained:
    return await explain(seats, "run-1", together)


async def test_the_pair_that_can_not_connect_is_named_with_both_nics_and_what_opens_the_way() -> None:
    old = FakeSide({"head": "no answer"})
    found = await explained(seat("head", 1, FakeSide()), seat("mid", 2, FakeSide()), seat("old", 3, old, "enp3s0"))
    assert found.node == "head"
    assert found.message == (
        "gloo can't connect the ranks: old (enp3s0, 10.0.0.3) can't reach head (eth0, 10.0.0.1): no answer"
    )
    assert "On head let old in: sudo ufw allow from 10.0.0.3" in found.remedy


async def test_a_closed_way_that_gloo_does_not_take_is_not_to_blame() -> None:
    # the higher address dials the lower one
    found = await explained(seat("head", 1, FakeSide({"old": "no answer"})), seat("old", 3, FakeSide()))
    assert found.message == (
        "gloo can't connect the ranks of head (eth0, 10.0.0.1), old (eth0, 10.0.0.3), "
        "though each reaches the others now"
    )
    assert "logs" in found.remedy


async def test_a_node_that_is_gone_meanwhile_is_named() -> None:
    found = await explained(seat("head", 1, FakeSide()), seat("old", 3, FakeSide(gone=True)))
    assert found.message.endswith(": old: the connection was lost")
    assert found.text == f"{found.message}. {found.remedy}"
    assert found.remedy


async def test_a_way_on_which_only_large_packets_are_slow_is_told_but_not_closed() -> None:
    stuck = FakeSide({"head": "small packets pass, large ones don't"})
    found = await explained(seat("head", 1, FakeSide()), seat("old", 3, stuck))
    assert "small packets pass" in found.message
    assert found.apart is None
    closed = await explained(seat("head", 1, FakeSide()), seat("old", 3, FakeSide({"head": "refused"})))
    assert closed.apart is not None
    assert closed.apart.name == "old"
