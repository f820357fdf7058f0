"""What must hold on every node before anything starts: pure. Each verdict names its node and a remedy."""

import ipaddress
from collections.abc import Mapping, Sequence

from daisychain.errors import NoNodeError
from daisychain.facts import Node, Verdict
from daisychain.plan.checks import install_torch, judge_chaining, judge_machine
from daisychain.plan.networks import judge_networks


def pick(nodes: Sequence[Node], wanted: Sequence[str]) -> tuple[Node, ...]:
    """The nodes that will take part, the head first when it does. Raises NoNodeError naming who is missing."""
    by_name = {node.name: node for node in nodes}
    for name in wanted:
        node = by_name.get(name)
        if node is None:
            raise NoNodeError(f"no node is called {name!r}", f"In this chain: {', '.join(by_name)}")
        if node.state == "lost":
            raise NoNodeError(f"{name} can't be reached", "Start daisychain there, or leave it out of --nodes")
    chosen = [n for n in nodes if n.state != "lost" and (not wanted or n.name in wanted)]
    if not chosen:
        raise NoNodeError("no node is ready", "Start daisychain join on another machine, or leave --nodes away")
    return tuple(chosen)


def check(nodes: Sequence[Node]) -> tuple[Verdict, ...]:
    """Verdicts of level warn or refuse about this set of nodes; the first node is what others are compared with."""
    first = nodes[0]
    found: list[Verdict] = []
    for node in nodes:
        found += _alone(node)
        if node is not first:
            found += _beside(first, node)
    if len(nodes) > 1:
        found += [verdict for node in nodes for verdict in judge_chaining(node)]
    # what no path between them can change; the rest is judged once the paths were tried
    every = {(start, end) for start in range(len(nodes)) for end in range(len(nodes))}
    found += [verdict for verdict in judge_networks(nodes, every) if verdict.level == "refuse"]
    return tuple(found)


def judge_paths(nodes: Sequence[Node], reasons: Mapping[tuple[int, int], str]) -> tuple[Verdict, ...]:
    """Verdicts about the paths between the nodes of a run, nodes[0] being rank 0.

    reasons: for (from, to), positions in `nodes`: empty when the path works, else why not. gloo needs a path from the
    numerically higher address to the lower one, and everybody needs one to rank 0; other ways may be closed.
    """
    found = []
    for (start, end), reason in sorted(reasons.items()):
        if reason and (end == 0 or _number(nodes[start]) > _number(nodes[end])):
            found.append(_blocked(nodes[start], nodes[end], reason))
    return tuple(found)


def _number(node: Node) -> int:
    return int(ipaddress.ip_address(node.address))


def _blocked(start: Node, end: Node, reason: str) -> Verdict:
    what = f"{start.name} ({start.address}) can't reach {end.name} ({end.address}) on a random TCP port: {reason}"
    if "large" in reason:
        remedy = f"Give all NICs the same MTU: on {end.name}, ip link set {end.nic} mtu 1500"
    elif "macos" in (start.versions.os_family, end.versions.os_family):
        # the switch named last stops the side that dials: "No route to host" for every neighbour
        remedy = (
            f"On {end.name} allow python in System Settings, Network, Firewall; "
            f"on {start.name} allow it and the terminal in System Settings, Privacy, Local Network"
        )
    elif end.interface is not None and end.interface.kind == "wsl":
        remedy = f"Set networkingMode=mirrored in .wslconfig on {end.name} and restart WSL, or use native Linux there"
    else:
        firewalld = f"sudo firewall-cmd --zone=trusted --add-source={start.address}"
        remedy = f"On {end.name} let {start.name} in: sudo ufw allow from {start.address}, or {firewalld}"
    return _no(end, "path", what, remedy)


def _alone(node: Node) -> list[Verdict]:
    found = []
    if node.nic_verdict.level == "refuse":
        found.append(_no(node, "nic", node.nic_verdict.reason, node.nic_verdict.remedy))
    return [*found, *(verdict for verdict in judge_machine(node) if verdict.level != "ok")]


def _beside(first: Node, node: Node) -> list[Verdict]:
    found = []
    mine, theirs = first.versions, node.versions
    if mine.os_family != theirs.os_family:
        reason = f"{first.name} runs {mine.os} and {node.name} {theirs.os}: gloo can't connect them"
        found.append(_no(node, "os", reason, "Chain only Linux machines, or only Macs"))
    if mine.torch and theirs.torch and _minor(mine.torch) != _minor(theirs.torch):
        reason = f"{first.name} has torch {mine.torch} and {node.name} {theirs.torch}"
        found.append(_no(node, "torch", reason, install_torch(node, mine.torch.split("+")[0])))
    if mine.daisychain != theirs.daisychain:
        reason = f"{first.name} has daisychain {mine.daisychain} and {node.name} {theirs.daisychain}"
        found.append(_no(node, "daisychain", reason, f"Install daisychain {mine.daisychain} on {node.name}"))
    if _minor(mine.python) != _minor(theirs.python):
        reason = f"{first.name} has Python {mine.python} and {node.name} {theirs.python}: a script may differ on them"
        found.append(_but(node, "python", reason, f"Use Python {_minor(mine.python)} on both if the run fails"))
    return found


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _no(node: Node, check: str, reason: str, remedy: str) -> Verdict:
    return Verdict(level="refuse", check=check, reason=reason, remedy=remedy, node=node.name)


def _but(node: Node, check: str, reason: str, remedy: str) -> Verdict:
    return Verdict(level="warn", check=check, reason=reason, remedy=remedy, node=node.name)
