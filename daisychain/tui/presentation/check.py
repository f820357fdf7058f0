"""Checking the chain: what is being tried, and what is said where there are no findings."""

from daisychain.facts import Snapshot
from daisychain.tui.text import Line, clean, duration

OF_EACH = "torch, processor, GPUs, network interface, disk, memory, load, power, heat, clock"


def trying(snapshot: Snapshot | None, waited_s: float) -> tuple[Line, ...]:
    """What the agent looks at while a check goes on, and for how long it has."""
    nodes = [clean(node.name) for node in snapshot.nodes if node.state != "lost"] if snapshot else []
    worker = snapshot is not None and snapshot.role == "worker"
    here = [clean(node.name) for node in snapshot.nodes if node.id == snapshot.self_id] if snapshot else []
    looked_at = here if worker else nodes
    count = len(looked_at)
    ways = f"{count * (count - 1)} ways between them, each tried by a connection and a large message"
    lines: list[Line] = [
        (
            ("◌ ", "accent"),
            (f"Checking {', '.join(looked_at) or 'this machine'} …", "bold"),
            (f"  {duration(waited_s)}", "dim"),
        ),
        (),
        (("  · of each node: ", "dim"), (OF_EACH, "")),
    ]
    if worker:
        lines.append((("  · ", "dim"), ("whether its head can be reached", "")))
    elif count > 1:
        lines.append((("  · ", "dim"), (ways, "")))
        lines.append((("  · ", "dim"), ("what the network carries while all of them send at once", "")))
    lines += [(), (("A few seconds; longer where a node doesn't answer. Nothing is changed by it.", "dim"),)]
    return tuple(lines)


def nothing_found() -> tuple[Line, ...]:
    """Instead of findings, where the agent's answer was none."""
    return ((("! ", "warn"), ("The agent didn't say what it found. ", ""), ("r", "accent"), (" tries again.", "dim")),)
