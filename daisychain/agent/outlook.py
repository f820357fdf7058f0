"""The forecast of a run: what its network carries, measured between its nodes, and what its ranks found out by a trial.

Without a run (doctor) the reference model stands for a dense one, whose time every node has measured: there computing
and exchange both grow with the number of parameters, so that what a chain gains hardly depends on it. Convolutions
compute more for each parameter, and gain more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from daisychain.agent.seats import Seat, Together, ask
from daisychain.errors import DaisyError
from daisychain.facts import Foretold
from daisychain.link.messages import FlowSent, Peer, SendFlow
from daisychain.plan.advice import Decision, advise, decide, judge
from daisychain.plan.devices import CPU, speed
from daisychain.plan.forecast import Machine, Network, Question, best, forecast
from daisychain.plan.shares import Cost, fitting
from daisychain.plan.sync import Sync, parse

FIRST, SECOND, THIRD = 256 * 512, 512 * 512, 512 * 10
"""Weights of the reference model's layers (train/bench.py); a product with a layer is so many multiplications."""
BUCKETS = 4 * (THIRD + 10 + SECOND + 512), 4 * (FIRST + 512)
"""Bytes of its gradients as they leave: of the last two layers, then of the first."""
BACKWARD = (FIRST + 2 * (SECOND + THIRD)) / (2 * FIRST + 3 * (SECOND + THIRD))
"""Part of its step that is backward: two products a layer, but one for the first; forward has one each."""
GAMMA = 2 * (SECOND + THIRD) / (FIRST + 2 * (SECOND + THIRD))
"""Part of that before the first bucket leaves."""

SHARED = 1.5
"""How many times as much a node must get through alone as beside the others for the medium to be shared."""
FASTEST_MEDIUM_BYTES_PER_S = 60e6
"""More than all stations of a Wi-Fi get through together. Beyond it a processor may be what is shared."""
MOST_STRETCH = 3.0
"""Beyond this, the steps that were made together were disturbed by something else."""


class Told(NamedTuple):
    """Something measured, for people and for events.jsonl."""

    text: str
    facts: Mapping[str, Any]


async def measure(
    seats: Sequence[Seat], peers: Sequence[Peer], reasons: Mapping[tuple[int, int], str], run: str, together: Together
) -> Network | None:
    """What the network between these seats' nodes carries, with each sending to the next; None: unknown.

    Then one of them sends alone: where it gets through much more, and does so again, they share one medium, as all on
    Wi-Fi do. reasons: for (from, to), empty where the one can reach the other, as seats.try_paths found. Takes under
    6 s, where it is done again 12.
    """
    number = len(seats)
    ring = [(at, (at + 1) % number) for at in range(number)]
    if number < 2 or any(reasons.get(pair, "unknown") for pair in ring):
        return None

    async def flows(pairs: Sequence[tuple[int, int]]) -> dict[str, FlowSent]:
        sent = await together([_flow(seats[at], peers[to], run) for at, to in pairs])
        return {seats[at].node.name: flow for (at, _), flow in zip(pairs, sent, strict=True)}

    around = await flows(ring)
    rates = {name: flow.bytes_per_s for name, flow in around.items() if flow.bytes_per_s}
    if len(rates) < number:
        return None
    network = Network(rates, max((flow.latency_s or 0.0) for flow in around.values()))
    nics = [seat.node.interface for seat in seats]
    if all(nic is not None and nic.kind == "wifi" for nic in nics):
        return replace(network, shared=True, wifi=True)
    if sum(rates.values()) > FASTEST_MEDIUM_BYTES_PER_S:
        return network
    slowest = min(range(number), key=lambda at: rates[seats[at].node.name])
    name = seats[slowest].node.name
    alone = [(await flows([ring[slowest]]))[name].bytes_per_s or 0.0]
    if alone[0] <= SHARED * rates[name]:
        return network
    # a machine that was busy for a moment looks the same: once more
    rates = {node: max(rates[node], flow.bytes_per_s or 0.0) for node, flow in (await flows(ring)).items()}
    alone.append((await flows([ring[slowest]]))[name].bytes_per_s or 0.0)
    return replace(network, bytes_per_s=rates, shared=min(alone) > SHARED * rates[name])


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


def reference(seats: Sequence[Seat], network: Network, batch: int) -> Question | None:
    """What the reference model would gain on these nodes; None where that is unknown.

    A node with several ranks or a GPU has no forecast yet.
    """
    machines = []
    for seat in seats:
        cost = speed(seat.node, seat.devices, seat.place) if seat.devices == (CPU,) else None
        if cost is None or cost[1] <= 0 or seat.node.name not in network.bytes_per_s:
            return None
        machines.append(Machine(seat.node.name, Cost(*cost), BACKWARD, GAMMA))
    return Question(tuple(machines), network, BUCKETS, batch) if len(machines) > 1 else None


def question(
    trial: Mapping[str, Any],
    names: Sequence[str],
    network: Network | None,
    *,
    batch: int,
    sync: str = "exact",
    steps: int | None = None,
) -> Question:
    """What is to be forecast, from a "trial" report (train/reports.py) of the ranks with these names, in rank order.

    network: as `measure` found it, for how the nodes' links compare; None: taken to be alike.
    Raises ValueError, KeyError or TypeError for a report that isn't one.
    """
    told = zip(trial["costs"], trial["caps"], strict=True)
    costs = fitting(batch, [Cost(float(fixed), float(each), int(cap) or None) for (fixed, each), cap in told])
    machines = tuple(
        # what comes after the first bucket, of the whole step, is all that matters
        Machine(name, cost, backward=min(0.99, max(0.0, 1 - float(early))), gamma=0.0)
        for name, cost, early in zip(names, costs, trial["early"], strict=True)
    )
    buckets = tuple(int(size) for size in trial["buckets"])
    asked = Question(
        machines=machines,
        network=_calibrated(network, names, buckets, float(trial["exchange_s"]), float(trial["latency_s"])),
        buckets=buckets,
        batch=batch,
        sync=parse(sync),
        steps=steps,
        sums=int(trial["sums"]),
        alone_s=float(trial["alone_s"]) or None,
    )
    return replace(asked, stretch=_stretch(asked, trial["together"]))


def told_of_memory(trial: Mapping[str, Any], batch: int) -> str:
    """What to say where the nodes' memory is short, by a "trial" report; empty where it isn't, or is unknown."""
    caps = [int(cap) for cap in trial["caps"]]
    if not all(caps) or sum(caps) >= batch:
        return ""
    held = f"half of the nodes' free memory holds {sum(caps)} samples of a batch of {batch}"
    return f"{held}: a smaller --batch or --micro-batch is safer"


def _stretch(asked: Question, together: Mapping[str, Any] | None) -> float:
    """How many times longer than foretold a step of all these nodes together is; 1.0 where they made none."""
    if together is None:
        return 1.0
    # the trial sums 32-bit gradients whatever the run will do
    foretold = forecast(replace(asked, sync=Sync("exact")), shares=[int(share) for share in together["shares"]])
    return min(MOST_STRETCH, max(1 / MOST_STRETCH, float(together["step_s"]) / foretold.step_s))


def _calibrated(
    network: Network | None, names: Sequence[str], buckets: Sequence[int], exchange_s: float, latency_s: float
) -> Network:
    """The network such that summing all buckets over all nodes takes what the ranks measured.

    How fast the nodes are beside each other is as the agents measured; gloo's own sums say how fast that is for it.
    """
    rates = {name: network.bytes_per_s[name] for name in names} if network else dict.fromkeys(names, 1e9)
    messages = 2 * (len(names) - 1)
    unscaled = replace(network or Network({}), bytes_per_s=rates, latency_s=latency_s / messages)
    sending_s = max(exchange_s - len(buckets) * latency_s, 0.1 * exchange_s, 1e-9)
    expected_s = unscaled.sum_s(names, sum(buckets)) - latency_s
    return replace(unscaled, bytes_per_s={name: rate * expected_s / sending_s for name, rate in rates.items()})


def foretell(asked: Question, *, auto: bool = False, anyway: bool = False) -> tuple[Foretold, Decision]:
    """The forecast and what to do about it; a second of computing for twelve nodes, a twentieth of that for eight.

    auto, anyway: as in RunSpec. With nodes left out the forecast is that of the others.
    """
    decision = decide(asked, auto=auto, anyway=anyway)
    taken = [name for name in asked.names if name not in decision.left_out]
    whole, top = forecast(asked, taken), best(asked)
    text = advise(asked)
    if decision.left_out:
        text = f"{text}; {', '.join(decision.left_out)} left out"
    foretold = Foretold(
        text=text,
        nodes=whole.names,
        step_ms=whole.step_s * 1000,
        sync_ms=whole.exposed_s * 1000,
        samples_per_second=whole.samples_per_s,
        seconds=whole.total_s,
        speedup=whole.speedup,
        alone_samples_per_second=None if whole.speedup is None else whole.samples_per_s / whole.speedup,
        shares=dict(zip(whole.names, whole.shares, strict=True)),
        added={verdict.node: verdict.reason for verdict in judge(asked)},
        best=top.names,
        best_speedup=top.speedup,
    )
    return foretold, decision
