"""A checklist: every verdict under its node, and all that is said of the selected one."""

from collections.abc import Sequence

from daisychain.facts import Level, Verdict
from daisychain.tui.presentation.verdicts import LEVEL
from daisychain.tui.text import ColourRole, Line, clean, cut, fit, width

WORST_FIRST: tuple[Level, ...] = ("refuse", "warn", "ok")
NOBODY = "the chain"
"""What a verdict is about that names no node."""


def by_node(verdicts: Sequence[Verdict], order: Sequence[str] = ()) -> dict[str, list[int]]:
    """Positions in `verdicts` by the node's name, of each node the worst first.

    The nodes of `order` come first, then others as they come, and at the end "", what is about no single node.
    """
    found: dict[str, list[int]] = {name: [] for name in order}
    for at, verdict in enumerate(verdicts):
        found.setdefault(verdict.node, []).append(at)
    if "" in found:
        found[""] = found.pop("")
    worst = {name: sorted(places, key=lambda at: _rank(verdicts[at])) for name, places in found.items()}
    return {name: places for name, places in worst.items() if places}


def _rank(verdict: Verdict) -> int:
    return WORST_FIRST.index(verdict.level)


def tally(verdicts: Sequence[Verdict]) -> Line:
    """How many there are of each level, the worst first: '✗ 1 refuse   ! 2 warn   ✓ 9 ok'."""
    pieces: list[tuple[str, ColourRole]] = []
    for level in WORST_FIRST:
        count = sum(verdict.level == level for verdict in verdicts)
        if count:
            sign, role = LEVEL[level]
            pieces += [("   " if pieces else "", ""), (f"{sign} {count} {level}", role)]
    return tuple(pieces)


def check_rows(verdicts: Sequence[Verdict], order: Sequence[str], cells: int) -> list[tuple[str, Line]]:
    """(id, row) of each line in at most `cells` cells.

    A heading's id is 'of ' and the node's name, a verdict's is its position in `verdicts`.
    """
    rows: list[tuple[str, Line]] = []
    for name, places in by_node(verdicts, order).items():
        own = [verdicts[at] for at in places]
        counts = tally(own)
        space = cells - sum(width(text) for text, _ in counts) - 2
        rows.append((f"of {name}", ((cut(clean(name) or NOBODY, space), "bold"), ("  ", ""), *counts)))
        rows += [(str(at), check_row(verdicts[at], cells)) for at in places]
    return rows


def check_row(verdict: Verdict, cells: int) -> Line:
    """Sign and word of the level, what was judged, why."""
    sign, role = LEVEL[verdict.level]
    reason = cut(clean(verdict.reason, 400), cells - 2 - 8 - 1 - 10 - 1)
    return (
        (f"  {fit(f'{sign} {verdict.level}', 8)} ", role), (f"{fit(clean(verdict.check), 10)} ", "dim"),
        (reason, "dim" if verdict.level == "ok" else ""),
    )  # fmt: skip


def first_to_see(verdicts: Sequence[Verdict], order: Sequence[str] = ()) -> int | None:
    """The position of the first one that is refused, as the rows have them; else warned of, else the first."""
    shown = [at for places in by_node(verdicts, order).values() for at in places]
    return min(shown, key=lambda at: _rank(verdicts[at]), default=None)


def selected_lines(verdict: Verdict | None, fix: str = "") -> tuple[Line, ...]:
    """Reason and remedy of the selected one in full; fix: what `f` would do about it."""
    if verdict is None:
        return ((("Choose a line with the arrow keys.", "dim"),),)
    sign, role = LEVEL[verdict.level]
    lines: list[Line] = [((f"{sign} ", role), (clean(verdict.reason, 400), ""))]
    if verdict.remedy:
        lines.append((("→ ", "accent"), (clean(verdict.remedy, 400), "bold")))
    elif verdict.level == "ok":
        lines.append((("  nothing to do", "dim"),))
    if fix:
        lines.append((("f ", "accent"), (clean(fix, 400), "")))
    return tuple(lines)
