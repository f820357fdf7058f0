"""Checking this machine, and the chain it leads, without a run: every check of a launch, with what is well too."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from daisychain.agent import outlook, relays
from daisychain.agent.inspection import conditions
from daisychain.agent.peer import judge_peer, reach
from daisychain.agent.preflight import check, judge_paths
from daisychain.agent.seats import Seat, Side, listen, try_paths
from daisychain.errors import DaisyError
from daisychain.facts import Condition, Node, Verdict
from daisychain.link.messages import DOCTOR, Examined
from daisychain.plan.advice import advise, decide
from daisychain.plan.checks import Needs, judge_all, judge_machine
from daisychain.plan.forecast import Question
from daisychain.plan.networks import judge_networks

BATCH = 512
"""Of the reference model, for which a forecast is given."""
Parts = Sequence[tuple[Node, Side]]
Paths = Mapping[tuple[int, int], str]


async def examine(parts: Parts, lost: Sequence[Node], peer: tuple[str, int] | None) -> Examined:
    """parts: every node that is there, this machine first. lost: those that aren't. peer: another one to reach."""
    nodes = [node for node, _ in parts]
    now, (paths, network), reached = await asyncio.gather(conditions(parts), _paths(parts), _peer(nodes[0], peer))
    found = [*judge(nodes, now, paths), *network, *reached, *map(_lost, lost)]
    return Examined(
        verdicts=tuple(dict.fromkeys(found)),
        nodes=tuple(nodes),
        conditions=tuple(now.get(node.id) for node in nodes),
        paths=tuple((nodes[start].name, nodes[end].name, reason) for (start, end), reason in sorted(paths.items())),
    )


def judge(nodes: Sequence[Node], now: Mapping[str, Condition], paths: Paths) -> list[Verdict]:
    """Every verdict about these nodes, by node; those about pairs at the end."""
    found: list[Verdict] = []
    for node in nodes:
        found.append(_of(node, node.nic_verdict))
        found += judge_machine(node)
        found += [_of(node, gpu.verdict) for gpu in node.device.gpus]
        if node.device.gpus and all(gpu.verdict.level != "ok" for gpu in node.device.gpus):
            reason = f"{node.name} trains on its CPU: torch can use no GPU there"
            found.append(_warn(node, "gpu", reason, "Do what is said of the GPU, or leave it so"))
        found += judge_all([node], now, Needs())
    found += check(nodes)
    working = {pair for pair, reason in paths.items() if not reason}
    return [*found, *judge_networks(nodes, working), *judge_paths(nodes, paths)]


async def _paths(parts: Parts) -> tuple[Paths, list[Verdict]]:
    """What came of trying all pairs; and what the network carries, or why it wasn't tried."""
    if len(parts) < 2:
        return {}, []
    seats = [Seat(node.name, node, side, ("cpu",), 0) for node, side in parts]

    async def together(asked: list[Any]) -> list[Any]:
        return list(await asyncio.gather(*asked))

    stands_for = f"{DOCTOR}{secrets.token_hex(8)}"
    try:
        peers = await listen(seats, stands_for, together)
        paths = await try_paths(seats, peers, stands_for, together)
        network = await outlook.measure(seats, peers, paths, stands_for, together)
        relayed = await relays.judge(seats, network.bytes_per_s if network is not None else {}, together)
    except DaisyError as error:
        remedy = error.remedy or "Try again when no run goes on"
        return {}, [Verdict(level="warn", check="path", reason=f"the paths weren't tried: {error.what}", remedy=remedy)]
    if network is None:
        return paths, [*relayed]
    found = [*relayed, Verdict(level="ok", check="network", reason=outlook.describe(network).text)]
    asked = outlook.reference(seats, network, BATCH)
    return paths, [*found, _forecast(asked)] if asked is not None else found


def _forecast(asked: Question) -> Verdict:
    """What a run of these nodes may be, as far as that can be said without its model."""
    reason = f"a dense model at a batch of {asked.batch}: {advise(asked)}"
    slower = decide(asked).refusal is not None
    remedy = "Convolutional models need the network less; a run measures its own model before its first step"
    return Verdict(level="warn" if slower else "ok", check="forecast", reason=reason, remedy=remedy if slower else "")


async def _peer(own: Node, peer: tuple[str, int] | None) -> list[Verdict]:
    if peer is None:
        return []
    return [judge_peer(own, *peer, await reach(*peer, own.address))]


def _lost(node: Node) -> Verdict:
    reason = f"{node.name} ({node.address}) can't be reached: {node.detail or 'its agent is gone'}"
    return _warn(node, "node", reason, f"Start it: on {node.name} daisychain join")


def _warn(node: Node, about: str, reason: str, remedy: str) -> Verdict:
    return Verdict(level="warn", check=about, reason=reason, remedy=remedy, node=node.name)


def _of(node: Node, verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, node=node.name)
