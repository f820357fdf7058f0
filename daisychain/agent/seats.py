"""The places in a run: which ranks there are, on which nodes, and how to speak with them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from daisychain.errors import DaisyError, PreflightError
from daisychain.facts import Node
from daisychain.link.messages import AnyMessage, Listen, Message, Peer, TryPaths
from daisychain.plan.devices import speed

PATHS_TIMEOUT_S = 20.0


class Side(Protocol):
    """One node's side of the run: the head's own, or a worker's over the link."""

    async def ask(self, message: Message, timeout_s: float) -> AnyMessage: ...


class Seat(NamedTuple):
    """A rank's fixed place in the run: a node, and one of the devices there."""

    name: str
    """What people call it: its node's name where the node has one seat only."""
    node: Node
    side: Side
    devices: tuple[str, ...]
    """What each of its node's ranks computes on."""
    place: int
    """Its own among them; the first also stands for its node."""


class named:
    """Errors inside say which node they are about."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PreflightError):
            if all(verdict.node for verdict in error.verdicts):
                return
            named = [v if v.node else msgspec.structs.replace(v, node=self._node) for v in error.verdicts]
            raise PreflightError(named) from error
        if isinstance(error, DaisyError) and not error.what.startswith(f"{self._node}:"):
            raise type(error)(f"{self._node}: {error.what}", error.remedy) from error


Together = Callable[[list[Any]], Awaitable[list[Any]]]
"""Awaits all, or raises what ends the run."""


async def listen(seats: Sequence[Seat], run: str, together: Together) -> list[Peer]:
    """Let each seat's node listen for the others for a short while; where."""
    ports = await together([ask(seat, Listen(run=run)) for seat in seats])
    return [Peer(seat.node.name, seat.node.address, answer.port) for seat, answer in zip(seats, ports, strict=True)]


async def try_paths(
    seats: Sequence[Seat], peers: Sequence[Peer], run: str, together: Together
) -> dict[tuple[int, int], str]:
    """For (from, to), positions in `seats`, why one's node can't reach the other's; empty when it can.

    Each tries all others at once. peers: where they listen.
    """
    others = [[to for to in range(len(seats)) if to != at] for at in range(len(seats))]
    orders = [
        ask(seat, TryPaths(run=run, peers=tuple(peers[to] for to in others[at]))) for at, seat in enumerate(seats)
    ]
    tried = await together(orders)
    return {
        (at, to): reason
        for at, answer in enumerate(tried)
        for to, reason in zip(others[at], answer.reasons, strict=True)
    }


async def ask(seat: Seat, message: Message) -> AnyMessage:
    """What a seat's node answers; errors say which node they are about."""
    with named(seat.node.name):
        return await seat.side.ask(message, PATHS_TIMEOUT_S)


def speeds(seats: Sequence[Seat]) -> tuple[tuple[float, float], ...]:
    """(fixed_s, per_sample_s) of every seat, its slowdown included; where unmeasured, the mean of the others."""
    measured = [speed(seat.node, seat.devices, seat.place) for seat in seats]
    known = [one for one in measured if one is not None]
    if not known:
        return tuple((0.0, 0.001) for _ in seats)
    mean = sum(fixed for fixed, _ in known) / len(known), sum(each for _, each in known) / len(known)
    return tuple(one or mean for one in measured)
