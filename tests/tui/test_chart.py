import math
import time

import pytest

from daisychain.tui.chart import bounds, braille, chart_lines, heights
from daisychain.tui.text import line_width, plain


def test_a_rising_line_goes_from_bottom_left_to_top_right() -> None:
    drawn = braille([(0, 0.0), (100, 1.0)], 8, 4, 0.0, 1.0)
    assert [len(row) for row in drawn] == [8] * 4
    assert drawn[3][0] != " "
    assert drawn[0][7] != " "
    assert drawn[0][0] == drawn[3][7] == " "


def test_a_jump_is_drawn_as_a_connected_line() -> None:
    drawn = braille([(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0)], 6, 5, 0.0, 1.0)
    assert all(row.strip() for row in drawn)


def test_heights_interpolate_between_uneven_steps() -> None:
    assert heights([(0, 0.0), (1, 10.0), (4, 10.0)], 5) == pytest.approx([0.0, 10.0, 10.0, 10.0, 10.0])
    assert heights([(3, 2.0)], 3) == [2.0, 2.0, 2.0]
    assert heights([], 2) == [None, None]


def test_bounds_hold_every_value_even_when_all_are_equal() -> None:
    for values in ([5.0, 5.0], [0.0], [-3.0, 4.0], [0.1, 2.0], [90.0, 100.0]):
        low, high = bounds(values)
        assert low <= min(values)
        assert high >= max(values)
        assert low < high
    assert bounds([0.1, 2.0])[0] == 0


@pytest.mark.parametrize(("cells", "rows"), [(16, 3), (30, 3), (31, 8), (80, 20), (10, 2), (0, 0), (40, 1)])
def test_a_chart_fills_exactly_its_place(cells: int, rows: int) -> None:
    lines = chart_lines([(step, 1000.0 / step) for step in range(1, 200)], cells, rows, "accent")
    assert len(lines) == rows
    assert all(line_width(line) <= cells for line in lines)


def test_a_chart_says_its_ends_and_leaves_out_what_is_not_finite() -> None:
    lines = chart_lines([(1, 2.0), (50, math.nan), (60, math.inf), (400, 1.0)], 40, 8, "accent")
    assert plain(lines[-1]).split() == ["step", "1", "400"]
    assert plain(lines[0]).split()[0] == "2"
    assert "waiting" in plain(chart_lines([(1, math.nan)], 40, 8, "accent")[4])


def test_a_chart_is_cheap() -> None:
    points = [(step, math.sin(step / 9)) for step in range(200)]
    start = time.process_time()
    for _ in range(20):
        chart_lines(points, 58, 13, "accent")
    assert (time.process_time() - start) / 20 < 0.02
