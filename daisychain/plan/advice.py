"""What a forecast means, in words: pure. Says nothing that the forecast doesn't compute."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from daisychain.errors import UsageError
from daisychain.facts import Verdict
from daisychain.plan.forecast import TIE, WAYS, Forecast, Network, Question, best, forecast, without

LOSES = 0.05
"""By what part all nodes together must be slower than the fastest alone for the run to be refused; less is an error."""
WORTH = 1.1
"""Speed-up from which on another batch, network or way to sync is worth telling."""
LARGER = (2, 4, 8, 16)
"""Times the batch that are tried; the first one that is worth it is told."""
CABLE_BYTES_PER_S = 117e6
"""What TCP carries over gigabit Ethernet: 1448 of 1538 bytes of a packet."""
CABLE_LATENCY_S = 0.0002
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def advise(question: Question) -> str:
    """The forecast of all these nodes in one sentence, without a full stop; empty for one node.

    Raises UsageError when the batch doesn't fit into all nodes together.
    """
    if len(question.names) == 1:
        return ""
    whole, top = forecast(question), best(question)
    if len(top.names) == 1:
        return _alone(question, whole, top.names[0])
    if len(top.names) < len(whole.names):
        left_out = _joined([name for name in whole.names if name not in top.names])
        now, then = _speed(whole), _speed(top)
        return f"leave {left_out} out: {then} {f'instead of {now}' if now != then else 'all the same'}"
    if whole.speedup is None:
        return f"these {_number(len(whole.names))} machines make {_speed(whole)}; none of them holds the batch alone"
    return f"these {_number(len(whole.names))} machines are {_speed(whole)} as fast as {_fastest(question)} alone"


class Decision(NamedTuple):
    """What is done about a forecast."""

    left_out: tuple[str, ...] = ()
    """Nodes that take no part."""
    refusal: Verdict | None = None
    """Why the run isn't begun; None: it is."""


def decide(question: Question, *, auto: bool = False, anyway: bool = False) -> Decision:
    """auto: the best set of nodes is taken. anyway: a run that is forecast to lose is begun all the same.

    Raises UsageError when the batch doesn't fit into all nodes together.
    """
    whole, top = forecast(question), best(question)
    if auto:
        return Decision(tuple(name for name in whole.names if name not in top.names))
    if anyway or whole.speedup is None or whole.speedup >= 1 - LOSES:
        return Decision()
    reason = f"forecast: {advise(question)}"
    remedy = "Let --nodes auto choose, or launch it with --anyway"
    if "--nodes" not in reason:
        remedy = f"Use --nodes {','.join(top.names)}, or launch it with --anyway"
    return Decision(refusal=Verdict(level="refuse", check="forecast", reason=reason, remedy=remedy))


def judge(question: Question) -> tuple[Verdict, ...]:
    """For each node whether it helps: ok where it belongs to the best set, else warn, with what it changes.

    Raises UsageError when the batch doesn't fit into all nodes together.
    """
    top = best(question)
    rest = without(question, top.names)
    return tuple(
        _ok(name, top, rest[name]) if name in top.names else _but(name, top, forecast(question, [*top.names, name]))
        for name in question.names
    )


def _ok(name: str, top: Forecast, rest: Forecast | None) -> Verdict:
    if len(top.names) == 1:
        reason = f"{name} alone is as fast as any set of nodes, within {TIE:.0%}"
    elif rest is None:
        reason = f"without {name} the batch doesn't fit into memory"
    else:
        reason = f"{name} adds {top.samples_per_s / rest.samples_per_s - 1:.0%}"
    return Verdict(level="ok", check="helps", reason=reason, node=name)


def _but(name: str, top: Forecast, joined: Forecast) -> Verdict:
    now, then = _speed(joined), _speed(top)
    if joined.samples_per_s >= top.samples_per_s or now == then:
        reason = f"{name} makes next to no difference: {then} without it too"
    else:
        reason = f"{name} slows the run down: {now} with it, {then} without"
    return Verdict(
        level="warn", check="helps", reason=reason, remedy=f"Leave it out: --nodes {','.join(top.names)}", node=name
    )


def _alone(question: Question, whole: Forecast, name: str) -> str:
    """One node alone is best: what the others make of it, and what would make them worth it."""
    share = whole.speedup if whole.speedup is not None else 1.0
    compared = f"slower than {name} alone ({_speed(whole)})" if share < 1 - TIE else f"no faster than {name} alone"
    free = replace(question, network=Network({n: float("inf") for n in question.names}))
    if len(best(free).names) == 1:  # not the network's fault
        return f"these {_number(len(whole.names))} machines are {compared}; use --nodes {name}"
    where = "this Wi-Fi" if question.network.wifi else "this network"
    remedies = _worded(list(_remedies(question)))
    return f"on {where} {question.sync.kind} sync is {compared}; {remedies or f'use --nodes {name}'}"


class _Remedy(NamedTuple):
    what: str
    speed: str
    note: str = ""


def _remedies(question: Question) -> Iterator[_Remedy]:
    """What would make the best set of these nodes WORTH it: a larger batch, a cable, an approximate way to sync."""
    for times in LARGER:
        larger = replace(question, batch=question.batch * times)
        if speed := _worth(larger):
            yield _Remedy(f"batch {larger.batch}", speed)
            break
    network = question.network
    if network.shared or min(network.bytes_per_s[name] for name in question.names) < CABLE_BYTES_PER_S / WORTH:
        cable = Network(dict.fromkeys(question.names, CABLE_BYTES_PER_S), min(network.latency_s, CABLE_LATENCY_S))
        if speed := _worth(replace(question, network=cable)):
            yield _Remedy("a gigabit cable", speed)
    for way in WAYS:
        if way.approximate and way.kind != question.sync.kind and (speed := _worth(replace(question, sync=way))):
            yield _Remedy(f"--sync {way.kind}", speed, " (approximate)")


def _worth(question: Question) -> str:
    """The best speed-up that this makes, empty where it isn't WORTH it or unknown."""
    try:
        top = best(question)
    except UsageError:  # doesn't fit
        return ""
    return _speed(top) if top.speedup is not None and top.speedup >= WORTH else ""


def _worded(remedies: Sequence[_Remedy]) -> str:
    """'batch 2048 or a gigabit cable would make it 1.6x, --sync local 1.7x (approximate)'."""
    parts: list[str] = []
    for speed in dict.fromkeys(remedy.speed for remedy in remedies):
        alike = " or ".join(f"{remedy.what}{remedy.note}" for remedy in remedies if remedy.speed == speed)
        parts.append(f"{alike} {'would make it ' if not parts else ''}{speed}")
    return ", ".join(parts)


def _fastest(question: Question) -> str:
    """The node that is fastest alone, of those that hold the batch."""
    able = [m.cost for m in question.machines if m.cost.cap is None or m.cost.cap >= question.batch]
    least = min(able, key=lambda cost: cost.step_s(question.batch))
    return next(machine.name for machine in question.machines if machine.cost is least)


def _speed(one: Forecast) -> str:
    """The speed-up, or where that is unknown the throughput."""
    if one.speedup is None:
        return f"{one.samples_per_s:,.0f} samples/s"
    return f"{one.speedup:.1f}x" if one.speedup >= 0.1 else f"{one.speedup:.1g}x"


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
