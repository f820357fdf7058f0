"""Asking every node what it is like now, and judging it by what a run needs."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from daisychain.agent.seats import Side
from daisychain.config import Paths
from daisychain.errors import DaisyError
from daisychain.facts import Condition, Node, Verdict
from daisychain.link.messages import Inspect, Inspected
from daisychain.machine.condition import read_condition
from daisychain.plan.checks import Needs, judge_all

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0


def inspect(paths: Paths) -> Inspected:
    """On a node: what it is like. Takes a quarter of a second."""
    return Inspected(condition=read_condition((paths.blobs, paths.work, paths.runs)))


async def conditions(
    parts: Sequence[tuple[Node, Side]], wall_clock: Callable[[], float] = time.time
) -> dict[str, Condition]:
    """Of all nodes, by their ids, asked at once; without those that don't answer within TIMEOUT_S.

    wall_clock: the head's, for how far the others' are off; nothing is decided by it.
    """
    asked = await asyncio.gather(*(_ask(node, side, wall_clock) for node, side in parts))
    return {node.id: found for (node, _), found in zip(parts, asked, strict=True) if found is not None}


async def _ask(node: Node, side: Side, wall_clock: Callable[[], float]) -> Condition | None:
    try:
        answer = await side.ask(Inspect(), TIMEOUT_S)
    except DaisyError as error:
        log.warning("%s didn't say what it is like: %s", node.name, error)
        return None
    if not isinstance(answer, Inspected):
        return None
    # it reads its clock last, so what has passed since is the way back
    return msgspec.structs.replace(answer.condition, skew_s=answer.condition.clock_s - wall_clock())


async def judge(parts: Sequence[tuple[Node, Side]], needs: Needs) -> tuple[Verdict, ...]:
    """Verdicts of level warn or refuse about what the nodes are like now."""
    found = judge_all([node for node, _ in parts], await conditions(parts), needs)
    return tuple(verdict for verdict in found if verdict.level != "ok")
