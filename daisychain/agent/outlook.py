"""The forecast of a run that is about to start: what its network carries, and what that would mean for a dense model.

How long the run's own model takes is known only once it trains. Until then the reference model stands for it, whose
time every node has measured. For exact sync of dense models that says much: computing and exchange both grow with the
number of parameters, so that what a chain gains doesn't depend on it. Convolutions compute more for each parameter,
and gain more.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from daisychain.agent.seats import Seat, Together, ask
from daisychain.errors import DaisyError
from daisychain.facts import RunSpec
from daisychain.link.messages import FlowSent, Peer, SendFlow
from daisychain.plan.advice import advise, judge
from daisychain.plan.devices import CPU, speed
from daisychain.plan.forecast import Machine, Network, Question, best, forecast
from daisychain.plan.shares import Cost
from daisychain.plan.sync import parse

FIRST, SECOND, THIRD = 256 * 512, 512 * 512, 512 * 10
"""Weights of the reference model's layers (train/bench.py); a product with a layer is so many multiplications."""
BUCKETS = 4 * (THIRD + 10 + SECOND + 512), 4 * (FIRST + 512)
"""Bytes of its gradients as they leave: of the last two layers, then of the first."""
BACKWARD = (FIRST + 2 * (SECOND + THIRD)) / (2 * FIRST + 3 * (SECOND + THIRD))
"""Part of its step that is backward: two products a layer, but one for the first; forward has one each."""
GAMMA = 2 * (SECOND + THIRD) / (FIRST + 2 * (SECOND + THIRD))
"""Part of that before the first bucket leaves."""


class Told(NamedTuple):
    """A forecast, for people and for events.jsonl."""

    text: str
    facts: Mapping[str, Any]


async def measure(
    seats: Sequence[Seat], peers: Sequence[Peer], reasons: Mapping[tuple[int, int], str], run: str, together: Together
) -> Network | None:
    """What the network between these seats' nodes carries, with each sending to the next; None: unknown.

    reasons: for (from, to), empty where the one can reach the other, as seats.try_paths found. Takes under 3 s.
    """
    number = len(seats)
    ring = [(at, (at + 1) % number) for at in range(number)]
    if number < 2 or any(reasons.get(pair, "unknown") for pair in ring):
        return None
    flows = await together([_flow(seats[at], peers[to], run) for at, to in ring])
    rates = {seat.node.name: flow.bytes_per_s for seat, flow in zip(seats, flows, strict=True) if flow.bytes_per_s}
    if len(rates) < number:
        return None
    nics = [seat.node.interface for seat in seats]
    return Network(
        rates,
        max((flow.latency_s or 0.0) for flow in flows),
        shared=all(nic is not None and nic.kind == "wifi" for nic in nics),
    )


async def _flow(seat: Seat, peer: Peer, run: str) -> FlowSent:
    """A node that can't say leaves it unknown: no run fails for want of a forecast."""
    try:
        answer = await ask(seat, SendFlow(run=run, peer=peer))
    except DaisyError:
        return FlowSent()
    return answer if isinstance(answer, FlowSent) else FlowSent()


def describe(network: Network) -> Told:
    """What was measured."""
    slowest = min(network.bytes_per_s, key=lambda name: network.bytes_per_s[name])
    megabits = network.bytes_per_s[slowest] * 8 / 1e6
    text = f"network, with all sending at once: {megabits:,.0f} Mbit/s from {slowest}, the slowest"
    facts = {"bytes_per_s": {name: round(rate) for name, rate in network.bytes_per_s.items()}}
    return Told(
        f"{text}; {network.latency_s * 1000:.1f} ms a message",
        {**facts, "latency_s": round(network.latency_s, 6), "shared": network.shared},
    )


def question(seats: Sequence[Seat], network: Network, spec: RunSpec, batch: int) -> Question | None:
    """What the reference model would gain on the nodes that take part; None where that is unknown.

    A node with several ranks or a GPU has no forecast yet.
    """
    taking_part = [seat for seat in seats if not seat.node.lent]
    machines = []
    for seat in taking_part:
        cost = speed(seat.node, seat.devices, seat.place) if seat.devices == (CPU,) else None
        if cost is None or cost[1] <= 0 or seat.node.name not in network.bytes_per_s:
            return None
        machines.append(Machine(seat.node.name, Cost(*cost), BACKWARD, GAMMA))
    if len(machines) < 2 or batch < 1 or spec.equal:
        return None
    return Question(tuple(machines), network, BUCKETS, batch, parse(spec.sync))


def foretell(asked: Question) -> Told:
    """The forecast; a second of computing for twelve nodes, a twentieth of that for eight."""
    whole, top = forecast(asked), best(asked)
    text = (
        f"forecast for a dense model, batch {asked.batch}, this one's own times being unknown yet: {advise(asked)}; "
        "convolutions need the network less"
    )
    nodes = {
        verdict.node: {"share": share, "level": verdict.level, "reason": verdict.reason}
        for verdict, share in zip(judge(asked), whole.shares, strict=True)
    }
    facts = {"model": "reference", "batch": asked.batch, "sync": asked.sync.kind, "nodes": nodes}
    return Told(text, {**facts, "speedup": whole.speedup, "best": list(top.names), "best_speedup": top.speedup})
