"""The nodes of a run: each one's share, and where its time goes."""

from collections.abc import Sequence

from daisychain.facts import NodeStep, RunState
from daisychain.tui.text import Line, apportion, bar, clean, fit, milliseconds


def slowest(nodes: Sequence[NodeStep]) -> NodeStep | None:
    """The node whose compute the others wait for."""
    known = [node for node in nodes if node.compute_ms is not None]
    return max(known, key=lambda node: node.compute_ms or 0.0) if known else None


def split_line(run: RunState) -> Line:
    """Where a step's time goes, on the node that sets the pace; nothing while unknown."""
    node = slowest(run.nodes)
    if node is None:
        return ()
    return (
        ("█ ", "compute"), ("compute ", "dim"), (milliseconds(node.compute_ms), ""), (" + ", "dim"),
        ("▓ ", "sync"), ("sync ", "dim"), (milliseconds(node.sync_ms), ""), (" + ", "dim"),
        ("░ ", "wait"), ("wait ", "dim"), (milliseconds(node.wait_ms), ""), (" ms", "dim"),
        (f"   on {clean(node.node, 20)}, the slowest" if len(run.nodes) > 1 else "", "dim"),
    )  # fmt: skip


def split_bar(node: NodeStep, longest_ms: float, cells: int) -> Line:
    """Compute, sync and wait of one node as a stacked bar on a scale of `longest_ms`; other glyphs, other colours."""
    parts = (node.compute_ms or 0.0, node.sync_ms or 0.0, node.wait_ms or 0.0)
    rest = max(0.0, longest_ms - sum(parts))
    compute, sync, wait, empty = apportion((*parts, rest), cells)
    if not any(parts):
        empty = cells
    return (("█" * compute, "compute"), ("▓" * sync, "sync"), ("░" * wait, "wait"), (" " * empty, ""))


class RankColumns:
    """Widths of the run screen's node table in `cells` cells."""

    def __init__(self, cells: int) -> None:
        self.number = 7
        bars = cells - 3 * self.number - 11 - 3
        self.name = min(24, max(8, bars // 3))
        left = bars - self.name - 2
        self.share_bar = max(0, min(24, left * 2 // 5))
        self.split_bar = max(0, left - self.share_bar)


def rank_header(cells: int) -> Line:
    columns = RankColumns(cells)
    return (
        (fit("node", columns.name), "dim"), (fit("share", 5, True), "dim"), (" " * 6, ""),
        (" " * columns.share_bar, ""), ("  ", ""), (fit("a step's time", columns.split_bar), "dim"),
        (fit("compute", 8, True), "dim"), (fit("sync", 8, True), "dim"), (fit("wait ms", 8, True), "dim"),
    )  # fmt: skip


def rank_rows(run: RunState, cells: int) -> list[Line]:
    """The table of a run's nodes: those that take part, then those that their owners use."""
    rows = [rank_row(node, run, cells) for node in run.nodes if node.node not in run.lent]
    name_cells = RankColumns(cells).name
    used: list[Line] = [
        ((fit(clean(name), name_cells), "bold"), (" ‖ in use", "warn"), (" by its owner", "dim")) for name in run.lent
    ]
    return [rank_header(cells), *rows, *used]


def rank_row(node: NodeStep, run: RunState, cells: int) -> Line:
    """One node's part of the run: its share of the batch, and where its time goes."""
    columns = RankColumns(cells)
    total = sum(each.share for each in run.nodes)
    part = node.share / total if total else 0.0
    longest = max((_step_ms(each) for each in run.nodes), default=0.0)
    return (
        (fit(clean(node.node), columns.name), "bold"), (fit(str(node.share), 5, True), ""),
        (f"{part:5.0%} ", "dim"), (bar(part, columns.share_bar), "accent"), ("  ", ""),
        *split_bar(node, longest, columns.split_bar),
        (fit(milliseconds(node.compute_ms), 8, True), ""), (fit(milliseconds(node.sync_ms), 8, True), ""),
        (fit(milliseconds(node.wait_ms), 8, True), ""),
    )  # fmt: skip


def _step_ms(node: NodeStep) -> float:
    return (node.compute_ms or 0.0) + (node.sync_ms or 0.0) + (node.wait_ms or 0.0)
