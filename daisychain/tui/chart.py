"""A line chart drawn in braille: two by four dots a cell, about a millisecond a chart."""

import math
from collections.abc import Callable, Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from daisychain.tui.text import ColourRole, Line, fit, number, width
from daisychain.tui.widgets import content

Point = tuple[float, float]
# bit of the dot at (column, row) of a braille cell
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def heights(points: Sequence[Point], columns: int) -> list[float | None]:
    """The curve's value at each of `columns` even places between the first and the last point, interpolated."""
    if not points or columns < 1:
        return [None] * max(0, columns)
    first, last = points[0][0], points[-1][0]
    out: list[float | None] = []
    index = 0
    for column in range(columns):
        x = first + (last - first) * column / max(1, columns - 1)
        while index < len(points) - 2 and points[index + 1][0] < x:
            index += 1
        left, right = points[index], points[min(index + 1, len(points) - 1)]
        span = right[0] - left[0]
        weight = (x - left[0]) / span if span > 0 else 0.0
        out.append(left[1] + (right[1] - left[1]) * weight)
    return out


def braille(points: Sequence[Point], cells: int, rows: int, low: float, high: float) -> list[str]:
    """`rows` strings of `cells` braille characters with the curve of `points` between `low` and `high`."""
    grid = [[0] * cells for _ in range(rows)]
    span = (high - low) or 1.0
    previous: int | None = None
    for x, value in enumerate(heights(points, cells * 2)):
        if value is None:
            continue
        y = round((1 - min(1.0, max(0.0, (value - low) / span))) * (rows * 4 - 1))
        start = y if previous is None else previous
        for dot in range(min(start, y), max(start, y) + 1) if abs(y - start) > 1 else (y,):
            grid[dot // 4][x // 2] |= DOTS[x % 2][dot % 4]
        previous = y
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in grid]


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds `values` and starts at 0 where that costs little of its height."""
    low, high = min(values), max(values)
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    return low, high


def chart_lines(
    points: Sequence[Point], cells: int, rows: int, role: ColourRole, label: Callable[[float], str] = number
) -> list[Line]:
    """A chart of exactly `rows` lines of `cells` cells: y labels left, the first and last x below."""
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) < 2 or rows < 3 or cells < 30:
        text = "waiting for the first steps" if rows > 0 else ""
        blank: Line = ((" " * cells, ""),)
        return [((fit(text.center(cells), cells), "dim"),) if row == rows // 2 else blank for row in range(rows)]
    low, high = bounds([value for _, value in finite])
    plot_rows = rows - 1
    labels = {0: label(high), plot_rows - 1: label(low)}
    if plot_rows >= 7 and plot_rows % 2:
        labels[plot_rows // 2] = label((high + low) / 2)
    margin = max(width(text) for text in labels.values())
    plot = braille(finite, cells - margin - 2, plot_rows, low, high)
    lines: list[Line] = [
        ((fit(labels.get(row, ""), margin, True), "dim"), (" ┤" if row in labels else " │", "dim"), (drawn, role))
        for row, drawn in enumerate(plot)
    ]
    ends = (f"step {finite[0][0]:.0f}", f"{finite[-1][0]:.0f}")
    gap = cells - margin - 2 - len(ends[0]) - len(ends[1])
    lines.append(((" " * (margin + 2) + ends[0] + " " * max(1, gap) + ends[1], "dim"),))
    return lines


class Chart(Widget):
    """A line chart of (step, value) points; draws itself again only when they change."""

    points: reactive[tuple[tuple[int, float], ...]] = reactive(())

    def __init__(
        self, role: ColourRole, label: Callable[[float], str] = number, *, id: str | None = None, title: str = ""
    ) -> None:
        super().__init__(id=id)
        self.role: ColourRole = role
        self.label = label
        self.border_title = title

    def render(self) -> Content:
        lines = chart_lines(self.points, self.size.width, self.size.height, self.role, self.label)
        return Content("\n").join(content(line) for line in lines)
