"""What this program may do by itself about a verdict, without root and on this machine: pure decisions.

Everything else is for a person to do; then the answer says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from daisychain.facts import Node, Verdict
from daisychain.link.messages import Nics

NIC_CHECKS = ("nic", "network")
PAIR_CHECKS = ("path", "peer")
"""Which aren't about one node of the chain alone."""
BETTER_WITHOUT = ("helps", "load", "battery", "heat", "sleep", "disk", "memory", "cpu", "condition")
"""Warnings that a run escapes by doing without the node; of other warnings a person decides."""
SLOW_NOW = ("load", "battery", "heat")
"""Under which a node's speed may be another one than what was measured."""


@dataclass(frozen=True)
class LeaveOut:
    """Launch with these nodes alone."""

    nodes: tuple[str, ...]
    without: tuple[str, ...]


@dataclass(frozen=True)
class OtherNic:
    """Choose another NIC of this machine."""


@dataclass(frozen=True)
class MeasureAgain:
    """Measure this node's speed again."""

    node: str


@dataclass(frozen=True)
class Nothing:
    """Nothing is ours to apply."""

    why: str
    """One sentence for people, without a final full stop."""


Fix = LeaveOut | OtherNic | MeasureAgain | Nothing


def fix_for(
    verdict: Verdict | None, verdicts: Sequence[Verdict], nodes: Sequence[Node], own: str, nics: Nics | None = None
) -> Fix:
    """verdicts: all that were found. nodes: those that a run would take. own: this machine's id.

    nics: this machine's; None where unknown, then another one may be there.
    """
    if verdict is None:
        return Nothing("Choose a line first")
    if verdict.level == "ok":
        return Nothing("Nothing to fix here: this is fine")
    names = {node.name for node in nodes}
    mine = next((node.name for node in nodes if node.id == own), "")
    if verdict.check in NIC_CHECKS and verdict.node == mine and has_other_nic(nics):
        return OtherNic()
    if verdict.node not in names:
        if verdict.node and verdict.check == "node":
            return Nothing(f"{verdict.node} isn't there, so the next launch does without it by itself")
        return Nothing("Nothing here is for this program to do by itself: do what the remedy says")
    without = bad_nodes(verdicts, nodes, own) if verdict.level == "refuse" else {verdict.node}
    good = tuple(node.name for node in nodes if node.name not in without)
    if good and without and (verdict.level == "refuse" or verdict.check in BETTER_WITHOUT):
        return LeaveOut(good, tuple(node.name for node in nodes if node.name in without))
    if verdict.check in SLOW_NOW:
        return MeasureAgain(verdict.node)
    where = "here" if verdict.node == mine else f"on {verdict.node}"
    return Nothing(f"Nothing here is for this program to do by itself: do what the remedy says {where}")


def words(fix: Fix) -> str:
    """What applying it does, as the end of 'f …'; empty for Nothing."""
    if isinstance(fix, LeaveOut):
        others = f"the other {len(fix.nodes)} nodes" if len(fix.nodes) > 1 else fix.nodes[0]
        return f"leave out {', '.join(fix.without)} and launch with {others}"
    if isinstance(fix, MeasureAgain):
        return f"measure the speed of {fix.node} again, as it is now"
    return "choose another network interface of this machine" if isinstance(fix, OtherNic) else ""


def has_other_nic(nics: Nics | None) -> bool:
    """Whether this machine has another NIC that a chain can use, or may have."""
    if nics is None:
        return True
    pairs = zip(nics.nics, nics.verdicts, strict=True)
    return any(verdict.level != "refuse" and nic.name != nics.chosen for nic, verdict in pairs)


def bad_nodes(verdicts: Sequence[Verdict], nodes: Sequence[Node], own: str) -> set[str]:
    """Names of nodes without which nothing would be refused, as few as can be told simply.

    Each node that is refused for itself; of two that don't reach each other the one with more such pairs, this machine
    only where nothing else helps.
    """
    refused = [v for v in verdicts if v.level == "refuse" and v.node]
    bad = {v.node for v in refused if v.check not in PAIR_CHECKS} & {node.name for node in nodes}
    pairs = [pair for v in refused if v.check == "path" and (pair := pair_of(v, nodes))]
    mine = {node.name for node in nodes if node.id == own}
    while left := [pair for pair in pairs if not bad & set(pair)]:
        counts = {name: sum(name in pair for pair in left) for pair in left for name in pair}
        bad.add(max(counts, key=lambda name: (name not in mine, counts[name], name)))
    return bad


def pair_of(verdict: Verdict, nodes: Sequence[Node]) -> tuple[str, str] | None:
    """(from, to) of a verdict about a way between two nodes; None for any other."""
    for start in nodes:
        if verdict.reason.startswith(f"{start.name} ({start.address}) can't reach {verdict.node} ("):
            return start.name, verdict.node
    return None
