"""Why gloo can't connect the ranks of a generation, or gets nothing through any more. Its own words name no node, if it
says any before its timeout, so the paths are tried once more.

The words themselves are in the ranks' logs and in events.jsonl.
"""

from collections.abc import Sequence
from typing import NamedTuple

from daisychain.agent.preflight import judge_paths
from daisychain.agent.reach import STUCK
from daisychain.agent.seats import Seat, Together, listen, try_paths
from daisychain.errors import DaisyError
from daisychain.facts import Node


class Explained(NamedTuple):
    """Which node, what, and what to do."""

    node: str
    message: str
    remedy: str
    apart: Seat | None = None
    """Of the two that can't connect, the one without which the others may go on; None: no way is closed."""

    @property
    def text(self) -> str:
        return f"{self.message}. {self.remedy}"


async def explain(seats: Sequence[Seat], run: str, together: Together) -> Explained:
    """Names the first pair that can't connect, by node, NIC and address. seats: one of each node, rank 0's first."""
    nodes = [seat.node for seat in seats]
    among = ", ".join(_named(node) for node in nodes)
    try:
        reasons = await try_paths(seats, await listen(seats, run, together), run, together)
    except DaisyError as error:
        remedy = error.remedy or "Its log may say more"
        return Explained("", f"gloo can't connect the ranks of {among}: {error.what}", remedy)
    for pair in sorted(reasons):
        for verdict in judge_paths(nodes, {pair: reasons[pair]}):
            start, end = (nodes[at] for at in pair)
            message = f"gloo can't connect the ranks: {_named(start)} can't reach {_named(end)}: {reasons[pair]}"
            # large packets may only be slow beside the run's own
            apart = seats[max(pair)] if reasons[pair] != STUCK else None
            return Explained(verdict.node, message, verdict.remedy, apart)
    message = f"gloo can't connect the ranks of {among}, though each reaches the others now"
    return Explained("", message, "Launch again; if it stays so, the ranks' logs have gloo's own words")


def _named(node: Node) -> str:
    return f"{node.name} ({node.nic or 'a NIC'}, {node.address})"
