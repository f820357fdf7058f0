"""Who is in the chain, as a head knows it: pure. Time is an argument, on a monotonic clock.

Liveness comes from what is heard on the link, never from mDNS and never from a wall clock.
"""

from collections.abc import Mapping

import msgspec

from daisychain.facts import Node

HEARTBEAT_S = 1.0
MISSED = 5
LOST_AFTER_S = HEARTBEAT_S * MISSED


class Member(msgspec.Struct, frozen=True):
    node: Node
    heard_s: float
    connected: bool = True


class Chain(msgspec.Struct, frozen=True):
    """The workers of a head by id; each change is a new Chain."""

    members: Mapping[str, Member] = {}

    def arrived(self, node: Node, now_s: float) -> "Chain":
        """A worker said hello, or told news of itself."""
        return self._with(Member(node, now_s))

    def heard(self, node_id: str, now_s: float) -> "Chain":
        member = self.members.get(node_id)
        return self if member is None else self._with(Member(member.node, now_s, member.connected))

    def gone(self, node_id: str, now_s: float, why: str) -> "Chain":
        """Its connection ended."""
        member = self.members.get(node_id)
        if member is None:
            return self
        lost = msgspec.structs.replace(member.node, state="lost", detail=why, share=None)
        return self._with(Member(lost, member.heard_s, connected=False))

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Ids of the connected members that missed three heartbeats."""
        return tuple(i for i, m in self.members.items() if m.connected and now_s - m.heard_s > LOST_AFTER_S)

    def forgotten(self, node_id: str) -> "Chain":
        return Chain({i: m for i, m in self.members.items() if i != node_id})

    def nodes(self, own: Node) -> tuple[Node, ...]:
        """The head first, then the workers by name."""
        return (own, *sorted((m.node for m in self.members.values()), key=lambda n: (n.name, n.id)))

    def _with(self, member: Member) -> "Chain":
        return Chain({**self.members, member.node.id: member})


def advice(nodes: tuple[Node, ...], waiting: int) -> str:
    """The one line under the nodes: what to do next, or what to know."""
    own, others = nodes[0], nodes[1:]
    if waiting:
        return "A machine waits to join: compare the six digits on both screens, then press a"
    slowed = [f"{n.name} to 1/{n.slowdown:g}" for n in nodes if n.slowdown > 1]
    if slowed:
        return f"Slowed on purpose: {', '.join(slowed)}"
    if own.nic_verdict.level != "ok":
        return f"{own.nic_verdict.reason}. {own.nic_verdict.remedy}".strip()
    if not others:
        return "Alone so far. On another machine of this network run: daisychain join"
    lost = [n.name for n in others if n.state == "lost"]
    if lost:
        return f"{', '.join(lost)} can't be reached; it comes back by itself once its agent runs and its cable is in"
    used = [n.name for n in nodes if n.lent]
    if used:
        return f"{', '.join(used)}: in use by its owner, who gives it back there with p or: daisychain resume"
    if any(n.state == "measuring" for n in nodes):
        return "Measuring how fast each machine is"
    unknown = [n for n in nodes if n.capacity is None]
    if unknown:
        return f"{unknown[0].name}: {unknown[0].detail or 'its speed is unknown'}"
    measured = [n.capacity.samples_per_second() for n in nodes if n.capacity is not None]
    return f"At best {sum(measured) / max(measured):.2f} times the fastest machine alone, if the network keeps up"
