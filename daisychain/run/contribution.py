"""What each node adds to a run, computed from what the run itself has measured: pure.

With n_i samples in c_i seconds on node i, balanced shares of a batch B over a set of nodes take

    T = B / sum(n_i / c_i) + s,

where s is the exposed time of the exchange. Without node j the sum lacks its term, and s shrinks as a ring's
all-reduce does from N to N - 1 nodes, (N - 2) / (N - 1) over (N - 1) / N; alone, there is no exchange. What a step
costs beside its samples is taken to grow with them, so without a node the others would need a little less than this
says, and it adds a little less.
"""

from collections.abc import Mapping
from typing import NamedTuple

LEAST = 0.02
"""A loss that is worth a word; less is within what the same run measures twice."""


class Part(NamedTuple):
    """One node's part of a typical step."""

    samples: float
    compute_s: float


def contributions(parts: Mapping[str, Part], sync_s: float) -> dict[str, float]:
    """By how much each node makes the run faster: 0.09 is 9 % more samples a second; negative: it slows it down.

    Empty with fewer than two nodes that compute. sync_s: exposed exchange of a step, of all of them together.
    """
    working = {name: part for name, part in parts.items() if part.samples > 0 and part.compute_s > 0}
    number = len(working)
    if number < 2:
        return {}
    batch = sum(part.samples for part in working.values())
    speeds = {name: part.samples / part.compute_s for name, part in working.items()}
    rest = {name: sum(speed for other, speed in speeds.items() if other != name) for name in speeds}
    shrink = number * (number - 2) / (number - 1) ** 2
    together_s = batch / sum(speeds.values()) + sync_s
    return {name: (batch / speed + sync_s * shrink) / together_s - 1 for name, speed in rest.items()}


def advice(added: Mapping[str, float]) -> str:
    """The node that a run would be fastest without, in words; empty when every node helps, or costs next to nothing."""
    if not added or min(added.values()) > -LEAST:
        return ""
    worst = min(added, key=lambda name: added[name])
    rest = ",".join(name for name in added if name != worst)
    faster = 1 / (1 + added[worst]) - 1
    return f"{worst} slows the run down: without it, it would be {faster:.0%} faster. Next time: --nodes {rest}"
