"""A node: its row in the table, and what is known of it."""

from collections.abc import Sequence

from daisychain.facts import Device, Node, Snapshot
from daisychain.tui.presentation.lines import fit_line
from daisychain.tui.presentation.verdicts import LEVEL, verdict_lines
from daisychain.tui.text import UNKNOWN, ColourRole, Line, bar, clean, cut, memory, number

NODE_STATE: dict[str, tuple[str, ColourRole]] = {
    "measuring": ("◌", "accent"),
    "ready": ("●", "ok"),
    "running": ("▶", "ok"),
    "lost": ("✗", "bad"),
}


def node_state(node: Node) -> Line:
    """Sign and word, such as '● ready'."""
    if node.lent and node.state != "lost":
        return (("‖ in use", "warn"),)
    if node.hot and node.state != "lost":
        return (("▲ hot", "warn"),)
    sign, role = NODE_STATE[node.state]
    return ((f"{sign} {node.state}", role),)


def device_text(device: Device) -> str:
    """'8 cores, 16 GB', or the first usable GPU with its memory."""
    for gpu in device.gpus:
        if gpu.verdict.level == "ok":
            return f"{clean(gpu.name)}" + (f", {memory(gpu.memory_bytes)}" if gpu.memory_bytes else "")
    cores = device.cores_physical or device.cores_logical
    return f"{cores} core{'' if cores == 1 else 's'}, {memory(device.memory_bytes)}"


def capacity_text(node: Node) -> str:
    """Samples a second alone at the reference model, 'measuring', or unknown."""
    if node.capacity is not None:
        return number(node.capacity.samples_per_second())
    return "measuring" if node.state == "measuring" else UNKNOWN


def nic_text(node: Node) -> Line:
    """The chosen NIC with the sign of its verdict."""
    sign, role = LEVEL[node.nic_verdict.level]
    return ((f"{sign} ", role), (clean(node.nic) or UNKNOWN, ""))


def shares_total(snapshot: Snapshot) -> int:
    return sum(node.share or 0 for node in snapshot.nodes)


class NodeColumns:
    """Widths of the node table's columns in `cells` cells; narrow terminals lose the bar, then the device."""

    def __init__(self, cells: int) -> None:
        self.state, self.nic, self.capacity, self.share, self.gap = 11, 11, 9, 5, 2
        left = cells - (self.state + self.nic + self.capacity + self.share + 4 * self.gap)
        self.bar = 16 if left >= 64 else 0
        left -= self.bar + self.gap if self.bar else 0
        self.device = min(30, left // 2 - 1) if left >= 30 else 0
        left -= self.device + self.gap if self.device else 0
        self.name = max(8, min(32, left))

    def lay(self, cells: Sequence[tuple[Line, int, bool]]) -> Line:
        """Pieces laid in columns: (line, width, right-aligned)."""
        out: list[tuple[str, ColourRole]] = []
        for line, space, right in cells:
            if not space:
                continue
            if out:
                out.append((" " * self.gap, ""))
            out.extend(fit_line(line, space, right))
        return tuple(out)


def node_header(cells: int) -> Line:
    columns = NodeColumns(cells)
    titles = (
        ("node", columns.name, False), ("device", columns.device, False), ("samples/s", columns.capacity, True),
        ("share", columns.share, True), ("", columns.bar, False), ("nic", columns.nic, False),
        ("state", columns.state, False),
    )  # fmt: skip
    return columns.lay([(((text, "dim"),), space, right) for text, space, right in titles])


def node_row(node: Node, snapshot: Snapshot, cells: int) -> Line:
    """One row of the node table, exactly as wide as `node_header`."""
    columns = NodeColumns(cells)
    total = shares_total(snapshot)
    here: ColourRole = "bold" if node.id == snapshot.self_id else ""
    share = UNKNOWN if node.share is None else str(node.share)
    drawn = bar((node.share or 0) / total, columns.bar) if total else ""
    rank = " (head)" if node.role == "head" else ""
    name = cut(clean(node.name), columns.name - len(rank))
    capacity: ColourRole = "" if node.capacity else "dim"
    return columns.lay([
        (((name, here), (rank, "dim")), columns.name, False),
        (((device_text(node.device), "dim"),), columns.device, False),
        (((capacity_text(node), capacity),), columns.capacity, True),
        (((share, "" if node.share else "dim"),), columns.share, True),
        (((drawn, "compute"),), columns.bar, False),
        (nic_text(node), columns.nic, False),
        (node_state(node), columns.state, False),
    ])  # fmt: skip


def node_detail(node: Node) -> tuple[Line, ...]:
    """What is known of one node, for the panel below the table."""
    versions, device = node.versions, node.device
    torch = f"torch {versions.torch}" if versions.torch else "torch is not installed"
    lines: list[Line] = [
        (
            (f"{clean(node.address)}:{node.port}", "accent"),
            (f"  {clean(versions.os)} · Python {clean(versions.python)} · {clean(torch)}", ""),
        ),
        ((f"{clean(device.cpu)} · {device.cores_logical} threads · {memory(device.memory_bytes)}", "dim"),),
    ]
    if node.lent:
        lines.append((*node_state(node), (" · its owner uses it: runs go on without it until it is given back", "")))
    if node.detail:
        lines.append((*node_state(node), (f" · {clean(node.detail)}", "")))
    if node.slowdown > 1:
        lines.append(((f"slowed on purpose to 1/{number(node.slowdown)}", "warn"),))
    lines.extend(verdict_lines(node.nic_verdict))
    for gpu in device.gpus:
        if gpu.verdict.level != "ok":
            lines.extend(verdict_lines(gpu.verdict))
    return tuple(lines)
