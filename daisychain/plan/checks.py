"""What a machine must be like for a run: pure rules over a node and its condition.

Each rule gives one verdict, ok too, with the numbers it was judged by; what is unknown gives none. Reasons name their
node, for they are also read without it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from daisychain.facts import Condition, Level, Node, Verdict
from daisychain.plan.devices import devices

RANK_BYTES = 310_000_000
"""Memory of a rank with torch and an optimizer loaded, before any model (measured; see LIMITS.md)."""
SPARE_DISK_BYTES = 64 * 1024**2
"""For logs, metrics and what else a run writes."""
BUSY = 0.5
HOT_WITHIN_C = 5.0
COOL_WITHIN_C = 15.0
SKEW_S = 120.0
OLDEST_GLIBC = (2, 28)
LAST_TORCH = {"x86_64": "2.6.0", "aarch64": "2.5.1"}
"""The last torch on PyPI with wheels for an older glibc."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes on every node."""

    disk_bytes: int = 0
    """Its files, once."""
    state_bytes: int | None = None
    """A model with its gradients and the optimizer's state, of each rank; None where unknown."""
    ranks: int = 0
    """As in RunSpec."""


def judge_machine(node: Node) -> list[Verdict]:
    """Whether torch is there and can run, and on what: what doesn't change from one moment to the next."""
    return [*_torch(node), *_cpu(node), *_apple(node)]


def judge_chaining(node: Node) -> list[Verdict]:
    """A refusal for a system that can be in no chain, whatever the others are."""
    if node.versions.os_family != "windows":
        return []
    reason = f"{node.name} runs Windows, which can train alone but not in a chain"
    return [_verdict("refuse", node, "os", reason, "Use WSL with mirrored networking, or Docker")]


def install_torch(node: Node, version: str = "") -> str:
    """The command for a node; version: what the others have, empty for any.

    Where the node's C library is too old for it, all nodes need the last torch that works there.
    """
    glibc, last = node.versions.glibc, LAST_TORCH.get(node.versions.machine, "2.5.1")
    if glibc is not None and glibc < OLDEST_GLIBC and (not version or _numbers(version) > _numbers(last)):
        old = f"{node.name}'s glibc {glibc[0]}.{glibc[1]} is too old for a torch after {last}"
        return f"Run on every node, for {old}: python -m pip install 'torch=={last}'"
    return f"Run on {node.name}: python -m pip install " + (f"'torch=={version}'" if version else "torch")


def judge_condition(node: Node, condition: Condition, needs: Needs) -> list[Verdict]:
    """What the node is like now, beside what a run needs."""
    found = [_disk(node, condition, needs), _memory(node, condition, needs)]
    found += [rule(node, condition) for rule in (_load, _battery, _heat, _sleep, _clock)]
    return [verdict for verdict in found if verdict is not None]


def is_hot(hot_c: float | None, limit_c: float | None, was_hot: bool = False) -> bool:
    """Whether a processor is so hot that it slows down. One that was is so until it has cooled well below that."""
    if hot_c is None or limit_c is None:
        return False
    return hot_c >= limit_c - (COOL_WITHIN_C if was_hot else HOT_WITHIN_C)


def judge_all(nodes: Sequence[Node], conditions: Mapping[str, Condition], needs: Needs) -> list[Verdict]:
    """The same for several nodes. conditions: by the node's id; a warning for one that isn't there."""
    found = []
    for node in nodes:
        condition = conditions.get(node.id)
        if condition is None:
            reason = f"{node.name} didn't say what it is like now: disk, memory and the rest are unknown"
            found.append(
                _verdict("warn", node, "condition", reason, f"Look at its agent: on {node.name} daisychain status")
            )
        else:
            found += judge_condition(node, condition, needs)
    return found


# --- what doesn't change ---------------------------------------------------------------------------


def _torch(node: Node) -> list[Verdict]:
    if node.versions.torch is not None:
        return [_verdict("ok", node, "torch", f"{node.name} has torch {node.versions.torch}")]
    return [_verdict("refuse", node, "torch", f"torch is not installed on {node.name}", install_torch(node))]


def _cpu(node: Node) -> list[Verdict]:
    """A processor on which torch has measured its speed can run it, whatever it lacks."""
    if not node.device.cpu_lacks or node.versions.torch is None:
        return []
    lacks = ", ".join(flag.upper() for flag in node.device.cpu_lacks)
    reason = f"the processor of {node.name} ({node.device.cpu}) has no {lacks}"
    if node.capacity is not None:
        return [_verdict("ok", node, "cpu", f"{reason}, but torch runs there all the same")]
    remedy = f"Leave {node.name} out with --nodes, or install an older torch on every node"
    if node.state == "measuring":
        return [_verdict("warn", node, "cpu", f"{reason}: torch may end with 'Illegal instruction'", remedy)]
    return [_verdict("refuse", node, "cpu", f"{reason}, and torch {node.versions.torch} doesn't run there", remedy)]


def _apple(node: Node) -> list[Verdict]:
    if node.versions.os_family != "macos" or node.versions.machine != "arm64":
        return []
    reason = f"{node.name} trains on its CPU, not on Apple's GPU: gloo, which carries the gradients, knows no MPS"
    return [_verdict("warn", node, "gpu", reason, f"Nothing to do: {node.name}'s measured speed is that of its CPU")]


# --- what does -------------------------------------------------------------------------------------


def _disk(node: Node, now: Condition, needs: Needs) -> Verdict | None:
    if now.disk_free_bytes is None:
        return None
    free, least = now.disk_free_bytes, needs.disk_bytes + SPARE_DISK_BYTES
    remedy = f"Free some space on {node.name}, or leave it out with --nodes"
    if free < needs.disk_bytes:
        alone = f"the run's files alone take {_size(needs.disk_bytes)}"
        reason = f"{node.name} has {_size(free)} of disk space free, and {alone}"
        return _verdict("refuse", node, "disk", reason, remedy)
    if free < least + needs.disk_bytes:
        most = _size(least + needs.disk_bytes)
        reason = f"{node.name} has only {_size(free)} of disk space free, and a run may take {most}"
        return _verdict("warn", node, "disk", reason, remedy)
    return _verdict("ok", node, "disk", f"{node.name} has {_size(free)} of disk space free")


def _memory(node: Node, now: Condition, needs: Needs) -> Verdict | None:
    if now.memory_free_bytes is None:
        return None
    free, ranks = now.memory_free_bytes, len(devices(node.device, needs.ranks or node.ranks))
    need = ranks * (RANK_BYTES + (needs.state_bytes or 0))
    remedy = f"End other programs on {node.name}, or leave it out with --nodes"
    if free >= need:
        return _verdict("ok", node, "memory", f"{node.name} has {_size(free)} of memory free")
    if needs.state_bytes is None:
        reason = f"{node.name} has only {_size(free)} of memory free, and torch takes {_size(need)} before any model"
        return _verdict("warn", node, "memory", reason, remedy)
    whole = f"the run needs about {_size(need)}: torch, model, gradients, optimizer"
    reason = f"{node.name} has {_size(free)} of memory free, and {whole}"
    return _verdict("refuse", node, "memory", reason, remedy)


def _load(node: Node, now: Condition) -> Verdict | None:
    # what a node measures its speed with is no other program
    if now.busy is None or node.state == "measuring":
        return None
    reason = f"{now.busy:.0%} of {node.name}'s processor is in use"
    if now.busy < BUSY:
        return _verdict("ok", node, "load", reason)
    return _verdict(
        "warn", node, "load", f"{reason} by other programs", f"End them on {node.name}: every step waits for it"
    )


def _battery(node: Node, now: Condition) -> Verdict | None:
    if now.battery_percent is None or now.plugged is None:
        return None
    if now.plugged:
        return _verdict("ok", node, "battery", f"{node.name} is plugged in")
    reason = f"{node.name} runs on its battery, {now.battery_percent:.0f}% full"
    return _verdict(
        "warn", node, "battery", reason, f"Plug {node.name} in: on battery it is slower and may fall asleep"
    )


def _heat(node: Node, now: Condition) -> Verdict | None:
    if now.hot_c is None or now.limit_c is None:
        return None
    reason = f"{node.name}'s processor is at {now.hot_c:.0f} °C, of {now.limit_c:.0f} °C at most"
    if not is_hot(now.hot_c, now.limit_c):
        return _verdict("ok", node, "heat", reason)
    return _verdict("warn", node, "heat", reason, f"Let air to {node.name}; its share follows the speed that is left")


def _sleep(node: Node, now: Condition) -> Verdict | None:
    """Of laptops only: others rarely fall asleep by themselves, and nothing here would know."""
    if now.battery_percent is None or now.kept_awake is not False:
        return None
    reason = f"nothing on {node.name} lets a run keep it awake"
    return _verdict("warn", node, "sleep", reason, f"Turn sleep off in {node.name}'s settings, and keep its lid open")


def _clock(node: Node, now: Condition) -> Verdict | None:
    if now.skew_s is None:
        return None
    if abs(now.skew_s) < SKEW_S:
        return _verdict(
            "ok", node, "clock", f"{node.name}'s clock is within {max(1, round(abs(now.skew_s)))} s of the head's"
        )
    way = "ahead of" if now.skew_s > 0 else "behind"
    reason = f"{node.name}'s clock is {_span(abs(now.skew_s))} {way} the head's: times in logs won't fit"
    return _verdict(
        "warn", node, "clock", reason, f"Set it, on Linux with: sudo timedatectl set-ntp true, on {node.name}"
    )


# --- words -----------------------------------------------------------------------------------------


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _span(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _verdict(level: Level, node: Node, check: str, reason: str, remedy: str = "") -> Verdict:
    return Verdict(level=level, check=check, reason=reason, remedy=remedy, node=node.name)
