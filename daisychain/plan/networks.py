"""Whether the chosen NICs of a chain lie in one network: pure. Each node has its own name for its NIC.

A path that has been tried counts more than what the addresses look like: what seems not to fit is then accepted with
a warning. `check` is "network" in every verdict.
"""

import ipaddress
from collections import Counter
from collections.abc import Collection, Sequence

from daisychain.facts import Level, Nic, NicKind, Node, Verdict

IPv4 = ipaddress.IPv4Address
IPv4Net = ipaddress.IPv4Network

_OVERLAYS: dict[NicKind, str] = {"tailscale": "Tailscale", "wireguard": "WireGuard", "tun": "a VPN"}
_CARRIER_GRADE = IPv4Net("100.64.0.0/10")
"""Tailscale's addresses; counts where nothing else is known of the NIC."""


def judge_networks(nodes: Sequence[Node], reached: Collection[tuple[int, int]] = ()) -> tuple[Verdict, ...]:
    """Verdicts of level warn or refuse about nodes whose NIC isn't in the network of the others. Never raises.

    reached: (from, to), positions in `nodes`, of the paths that have been tried and work. The network of the chain is
    the one that most nodes are in, the first node's where that doesn't decide.
    """
    if len(nodes) < 2:
        return ()
    twins = _twins(nodes)
    base = _base(nodes)
    others = [at for at in range(len(nodes)) if at != base and at not in twins]
    found = [verdict for at in others if (verdict := _beside(nodes[base], nodes[at], _joined(base, at, reached)))]
    return (*(_twin(nodes[first], nodes[at]) for at, first in twins.items()), *found)


def _twins(nodes: Sequence[Node]) -> dict[int, int]:
    """{position: an earlier one} of nodes with the same address and port: at most one of them can be meant by it."""
    seen: dict[tuple[str, int], int] = {}
    twins = {}
    for at, node in enumerate(nodes):
        first = seen.setdefault((node.address, node.port), at)
        ip = _ip(node)
        if first != at and nodes[first].id != node.id and ip is not None and not ip.is_loopback:
            twins[at] = first
    return twins


def _base(nodes: Sequence[Node]) -> int:
    """The position of the node that the others are compared with: the first one in the largest network."""
    mates = [sum(_fits(one, other) for other in nodes) for one in nodes]
    overlays = Counter(_overlay(node) for node in nodes)
    return max(range(len(nodes)), key=lambda at: (mates[at], overlays[_overlay(nodes[at])], -at))


def _fits(one: Node, other: Node) -> bool:
    return _beside(one, other, False) is None


def _joined(base: int, at: int, reached: Collection[tuple[int, int]]) -> bool:
    return (base, at) in reached and (at, base) in reached


# --- one node beside the base --------------------------------------------------------------------


def _beside(base: Node, node: Node, joined: bool) -> Verdict | None:
    """joined: a path each way has been tried and works."""
    mine, theirs = _ip(base), _ip(node)
    if mine is None or theirs is None:
        return None
    return (
        _inside(base, node, mine, theirs)
        or _one_sided(base, node, joined)
        or _self_given(base, node, mine, theirs, joined)
        or _elsewhere(base, node, mine, theirs, joined)
    )


def _inside(base: Node, node: Node, mine: IPv4, theirs: IPv4) -> Verdict | None:
    if mine.is_loopback == theirs.is_loopback:
        return None
    inner, other = (node, base) if theirs.is_loopback else (base, node)
    reason = f"{_named(inner)} reaches {inner.name} only, and {other.name} uses {_named(other)}"
    return _verdict("refuse", inner, reason, _other_nic(inner, other))


def _one_sided(base: Node, node: Node, joined: bool) -> Verdict | None:
    mine, theirs = _overlay(base), _overlay(node)
    if mine == theirs:
        return None
    inner, other = (node, base) if theirs else (base, node)
    reason = f"{node.name} uses {_named(node)} and {base.name} {_named(base)}: {_overlay(inner)} is on one side only"
    if theirs and mine:
        reason = f"{node.name} uses {_named(node)}, {theirs}, and {base.name} {_named(base)}, {mine}"
        return _unless(joined, node, reason, f"Use the same network on both: {_other_nic(node, base)}")
    remedy = f"{_other_nic(inner, other)}, or put {other.name} in {_overlay(inner)} as well and name that NIC there"
    return _unless(joined, node, reason, remedy)


def _self_given(base: Node, node: Node, mine: IPv4, theirs: IPv4, joined: bool) -> Verdict | None:
    if mine.is_link_local == theirs.is_link_local:
        return None
    bare, other = (node, base) if theirs.is_link_local else (base, node)
    reason = f"{_named(bare)} of {bare.name} has only an address that it gave itself, and {other.name} {_named(other)}"
    return _unless(joined, node, reason, f"Check the cable and the router (DHCP) of {bare.name}")


def _elsewhere(base: Node, node: Node, mine: IPv4, theirs: IPv4, joined: bool) -> Verdict | None:
    if _overlay(base) or _same_network(base, node, mine, theirs):
        return None
    reason = f"{node.name} uses {_named(node)}, which isn't in the network of {base.name}'s {_named(base)}"
    for one, other in ((node, base), (base, node)):
        if (better := _second(one, other)) is not None:
            why = f"{one.name}'s {one.nic} has {better} as well, but gloo uses the first address, {one.address}"
            return _unless(joined, node, f"{reason}: {why}", f"On {one.name} make {better} the first IPv4 address")
    remedy = f"Fine if a router joins both networks; otherwise {_other_nic(node, base, 'name')}"
    return _verdict("warn", node, reason, remedy)


def _same_network(base: Node, node: Node, mine: IPv4, theirs: IPv4) -> bool:
    """Whether either sees the other as its neighbour; unknown networks are given the benefit of the doubt."""
    nets = [_net(one.interface, ip) for one, ip in ((base, mine), (node, theirs))]
    # a /32 has no neighbours: its router, or the tunnel, knows the way
    known = [net for net in nets if net is not None and net.prefixlen < 32]
    return len(known) < 2 or mine in known[1] or theirs in known[0]


def _second(one: Node, other: Node) -> IPv4 | None:
    """An address of the same NIC that is in the other node's network."""
    ip = _ip(other)
    net = _net(other.interface, ip) if ip else None
    mine = [_parse(address.ip) for address in one.interface.addresses] if one.interface else []
    return next((found for found in mine if found and net and found in net), None)


# --- small words ---------------------------------------------------------------------------------


def _parse(ip: str) -> IPv4 | None:
    try:
        return IPv4(ip)
    except ValueError:
        return None


def _ip(node: Node) -> IPv4 | None:
    return _parse(node.address)


def _net(nic: Nic | None, ip: IPv4) -> IPv4Net | None:
    """The network of this address of the NIC; None where the NIC doesn't have it or isn't known."""
    prefix = next((a.prefix for a in nic.addresses if a.ip == str(ip)), None) if nic else None
    try:
        return None if prefix is None else IPv4Net(f"{ip}/{prefix}", strict=False)
    except ValueError:
        return None


def _overlay(node: Node) -> str:
    """The overlay's name; empty for an ordinary network."""
    ip = _ip(node)
    if node.interface is None:
        return _OVERLAYS["tailscale"] if ip is not None and ip in _CARRIER_GRADE else ""
    return _OVERLAYS.get(node.interface.kind, "")


def _named(node: Node) -> str:
    return f"{node.nic or 'a NIC'} ({node.address})"


def _other_nic(node: Node, like: Node, verb: str = "Name") -> str:
    return f"{verb} the NIC of {node.name} that is in {like.name}'s network (daisychain doctor lists them): --nic NAME"


def _twin(first: Node, node: Node) -> Verdict:
    reason = f"{first.name} and {node.name} have the same address {node.address}: behind address translation, or twice"
    return _verdict(
        "refuse", node, reason, "Give the virtual machine a bridged adapter, the container the host's network"
    )


def _unless(joined: bool, node: Node, reason: str, remedy: str) -> Verdict:
    """A refusal, or a warning where the nodes have answered each other all the same."""
    if joined:
        return _verdict("warn", node, f"{reason}; they answer each other all the same", remedy)
    return _verdict("refuse", node, reason, remedy)


def _verdict(level: Level, node: Node, reason: str, remedy: str) -> Verdict:
    return Verdict(level=level, check="network", reason=reason, remedy=remedy, node=node.name)
