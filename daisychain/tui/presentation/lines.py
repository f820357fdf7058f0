"""Whole lines: fitted to a width, without their colours, as a title."""

from collections.abc import Sequence

from daisychain.tui.text import ColourRole, Line, clean, cut, fit, plain, width


def fit_line(line: Line, cells: int, right: bool = False) -> Line:
    """A line padded or cut to `cells` cells, roles kept."""
    out: list[tuple[str, ColourRole]] = []
    left = cells
    for index, (text, role) in enumerate(line):
        piece = fit(text, left, right) if index == len(line) - 1 else cut(text, left)
        out.append((piece, role))
        left -= width(piece)
    return tuple(out)


def lines_text(lines: Sequence[Line]) -> str:
    """Lines without colours, for copying and for tests."""
    return "\n".join(plain(line) for line in lines)


def border_name(name: str) -> str:
    """A name for a border title, which Textual parses as markup: brackets escaped."""
    return clean(name, 60).replace("\\", "\\\\").replace("[", "\\[")
