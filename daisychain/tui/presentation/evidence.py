"""What a verdict was judged by: raw values of its node as they came, unknown ones as unknown."""

from collections.abc import Collection

from daisychain.facts import Capacity, Condition, Gpu, Nic, Node, Verdict
from daisychain.link.messages import Examined, Nics
from daisychain.tui.presentation.nics import nic_lines
from daisychain.tui.presentation.verdicts import LEVEL, verdict_lines
from daisychain.tui.text import UNKNOWN, Line, clean, fit, number, size

LABEL = 18


def evidence(
    verdict: Verdict | None, names: Collection[str], found: Examined, nics: Nics | None, own: str
) -> list[Line]:
    """The verdict, then everything known of the nodes with these names; nics: all of the node whose id is `own`."""
    lines: list[Line] = list(verdict_lines(verdict)) if verdict else []
    for node, condition in zip(found.nodes, found.conditions, strict=True):
        if node.name in names:
            lines += [*([()] if lines else []), ((clean(node.name), "bold"), (f"  {clean(node.id)[:12]}", "dim"))]
            lines += of_condition(condition)
            lines += of_nics(node, nics if node.id == own else None)
            lines += of_ways(node.name, found)
            lines += of_software(node)
            lines += of_hardware(node)
    return lines or [(("Nothing is known of this node: it wasn't there to be asked.", "dim"),)]


def of_condition(now: Condition | None) -> list[Line]:
    if now is None:
        return [*_head("now"), (("it didn't say what it is like now", "dim"),)]
    return [
        *_head("now"),
        _bytes("disk free", now.disk_free_bytes),
        _bytes("memory free", now.memory_free_bytes),
        _pair("processor busy", None if now.busy is None else f"{now.busy:.0%}"),
        _pair("battery", None if now.battery_percent is None else f"{now.battery_percent:.0f}%"),
        _pair("plugged in", _yes(now.plugged)),
        _pair("temperature", None if now.hot_c is None else f"{now.hot_c:.1f} °C"),
        _pair("its limit", None if now.limit_c is None else f"{now.limit_c:.1f} °C"),
        _pair("can stay awake", _yes(now.kept_awake)),
        _pair("clock", f"{now.clock_s:.3f} s since 1970"),
        _pair("ahead of head", None if now.skew_s is None else f"{now.skew_s:.3f} s"),
    ]


def of_nics(node: Node, nics: Nics | None) -> list[Line]:
    """All NICs where they are known; else the chosen one, and where to see the others."""
    lines = _head("network interfaces")
    if nics is not None:
        for nic, verdict in zip(nics.nics, nics.verdicts, strict=True):
            lines += nic_lines(nic, verdict, nic.name == nics.chosen)
        return lines
    lines += nic_lines(node.interface or Nic(name=node.nic, kind="unknown"), node.nic_verdict, True)
    return [*lines, ((f"  the others are listed by daisychain doctor on {clean(node.name)}", "dim"),)]


def of_ways(name: str, found: Examined) -> list[Line]:
    """The ways that begin or end at a node."""
    ways = [(start, end, reason) for start, end, reason in found.paths if name in (start, end)]
    lines = _head("ways") if ways else []
    for start, end, reason in ways:
        sign, role = LEVEL["refuse" if reason else "ok"]
        lines.append(
            ((f"  {sign} ", role), (f"{clean(start)} → {clean(end)}  ", ""), (clean(reason, 400) or "works", "dim"))
        )
    return lines


def of_software(node: Node) -> list[Line]:
    versions = node.versions
    glibc = ".".join(map(str, versions.glibc)) if versions.glibc else None
    return [
        *_head("versions"),
        *(_pair(name, getattr(versions, name)) for name in ("daisychain", "python", "torch", "os")),
        _pair("system", versions.os_family),
        _pair("machine", versions.machine),
        _pair("glibc", glibc),
    ]


def of_hardware(node: Node) -> list[Line]:
    device = node.device
    return [
        *_head("hardware"),
        _pair("processor", device.cpu),
        _pair("lacks", ", ".join(device.cpu_lacks) or None),
        _pair("cores", f"{device.cores_physical or UNKNOWN} physical, {device.cores_logical} logical"),
        _bytes("memory", device.memory_bytes),
        *(line for gpu in device.gpus for line in _gpu(gpu)),
        *_speed(node.capacity),
    ]


def _gpu(gpu: Gpu) -> list[Line]:
    sign, role = LEVEL[gpu.verdict.level]
    capability = ".".join(map(str, gpu.capability)) if gpu.capability else UNKNOWN
    facts = f", driver {gpu.driver or UNKNOWN}, compute capability {capability}"
    said: Line = ((" " * LABEL, ""), (f"{sign} {gpu.verdict.level} ", role), (clean(gpu.verdict.reason, 400), ""))
    return [_pair("GPU", f"{gpu.name}, {size(gpu.memory_bytes)}{facts}"), said]


def _speed(known: Capacity | None) -> list[Line]:
    if known is None:
        return [_pair("speed", None)]
    cost = f"{known.fixed_s * 1000:.2f} ms + {known.per_sample_s * 1e6:.1f} µs a sample a step"
    alone = f"{number(known.samples_per_second())} samples/s alone"
    return [_pair("speed", f"{alone}: {cost}"), _pair("", f"{known.threads} threads, torch {known.torch}")]


# --- small words ---------------------------------------------------------------------------------


def _head(title: str) -> list[Line]:
    return [(), ((title, "accent"),)]


def _pair(label: str, value: str | None) -> Line:
    return ((fit(f"  {label}", LABEL), "dim"), (clean(value, 400) if value else UNKNOWN, ""))


def _bytes(label: str, count: int | None) -> Line:
    return _pair(label, None if count is None else f"{size(count)}, {count} bytes")


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"
