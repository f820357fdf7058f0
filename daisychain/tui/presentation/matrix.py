"""Who reaches whom: the ways between the nodes as a square, and what is known of one of them."""

from collections.abc import Sequence
from typing import Literal

from daisychain.facts import Verdict
from daisychain.link.messages import Examined
from daisychain.tui.fixes import pair_of
from daisychain.tui.text import ColourRole, Line, clean, fit

Way = Literal["works", "blocked", "unneeded", "untried", "itself"]
WAYS: dict[Way, tuple[str, str, ColourRole]] = {
    "works": ("✓", "works", "ok"),
    "blocked": ("✗", "blocked", "bad"),
    "unneeded": ("!", "closed, not needed", "warn"),
    "untried": ("?", "not tried", "dim"),
    "itself": ("·", "itself", "dim"),
}
HEADING = "from ↓  to →"


def way(found: Examined, start: int, end: int) -> tuple[Way, str]:
    """What came of trying the way between two positions in found.nodes, and why it doesn't work."""
    if start == end:
        return "itself", ""
    names = found.nodes[start].name, found.nodes[end].name
    reason = next((reason for first, last, reason in found.paths if (first, last) == names), None)
    if reason is None:
        return "untried", ""
    if not reason:
        return "works", ""
    return ("unneeded" if judged(found, start, end) is None else "blocked"), reason


def judged(found: Examined, start: int, end: int) -> Verdict | None:
    """The refusal of the way from start to end, positions in found.nodes; None where there is none."""
    pair = found.nodes[start].name, found.nodes[end].name
    refused = (v for v in found.verdicts if v.level == "refuse" and v.check == "path")
    return next((verdict for verdict in refused if pair_of(verdict, found.nodes) == pair), None)


def first_to_see(found: Examined) -> tuple[int, int]:
    """(from, to) of the first blocked way, else of the first that isn't a node's way to itself."""
    size = len(found.nodes)
    pairs = [(start, end) for start in range(size) for end in range(size) if start != end]
    blocked = [pair for pair in pairs if way(found, *pair)[0] == "blocked"]
    return next(iter(blocked or pairs), (0, 0))


def matrix_lines(found: Examined, at: tuple[int, int], cells: int) -> list[Line]:
    """A heading and a row for each node in at most `cells` cells; the cell at (from, to) stands in brackets.

    Nodes have numbers, and where there is room for them their names; of more columns than fit, those around `at` show.
    """
    size = len(found.nodes)
    name_cells = max(len(HEADING), min(24, cells // 3))
    across = max(3, min(14, (cells - name_cells) // max(1, size)))
    fitting = max(1, (cells - name_cells) // across)
    first = max(0, min(at[1] - fitting // 2, size - fitting))
    columns = range(first, min(size, first + fitting))
    titles = [_title(found, end, across) for end in columns]
    lines: list[Line] = [((fit(HEADING, name_cells), "dim"), *((text, "dim") for text in titles))]
    for start, node in enumerate(found.nodes):
        here: ColourRole = "bold" if start == at[0] else ""
        name = fit(f"{start + 1} {clean(node.name)}", name_cells - 1) + " "
        lines.append(((name, here), *(_cell(found, start, end, at, across) for end in columns)))
    return lines


def _title(found: Examined, end: int, across: int) -> str:
    number = str(end + 1)
    return fit(f" {number} {clean(found.nodes[end].name)}" if across >= 7 else f" {number}", across - 1) + " "


def _cell(found: Examined, start: int, end: int, at: tuple[int, int], across: int) -> tuple[str, ColourRole]:
    sign, _, role = WAYS[way(found, start, end)[0]]
    return fit(f"[{sign}]" if (start, end) == at else f" {sign} ", across), role


def legend() -> Line:
    """Every sign with its word."""
    pieces: list[tuple[str, ColourRole]] = []
    for sign, word, role in WAYS.values():
        pieces += [("   " if pieces else "", ""), (f"{sign} ", role), (word, "dim")]
    return tuple(pieces)


def way_lines(found: Examined, at: tuple[int, int], fix: str = "") -> tuple[Line, ...]:
    """What is known of the way from at[0] to at[1], and what to do."""
    if not found.nodes:
        return ()
    start, end = at
    kind, reason = way(found, start, end)
    sign, word, role = WAYS[kind]
    one, other = (f"{clean(node.name)} ({clean(node.address)})" for node in (found.nodes[start], found.nodes[end]))
    lines: list[Line] = [((f"{sign} {word}  ", role), (one if kind == "itself" else f"{one} → {other}", "bold"))]
    if reason:
        lines.append(((clean(reason, 400), ""),))
    verdict = judged(found, start, end)
    if verdict is not None:
        lines.append((("→ ", "accent"), (clean(verdict.remedy, 400), "bold")))
    elif kind == "unneeded":
        lines.append((("A run connects these two the other way round; this way may stay closed.", "dim"),))
    elif kind == "untried":
        lines.append(((clean(_untried(found.verdicts), 400), "dim"),))
    return (*lines, (("f ", "accent"), (clean(fix, 400), ""))) if fix else tuple(lines)


def _untried(verdicts: Sequence[Verdict]) -> str:
    """Why no way was tried, where that was said."""
    return next((v.reason for v in verdicts if v.check == "path" and not v.node), "nobody has tried this way")
