from types import SimpleNamespace

import msgspec
import pytest

from daisychain.tui import presentation as say
from daisychain.tui.text import line_width, plain


@pytest.mark.parametrize("cells", [54, 72, 74, 112, 200])
def test_rows_of_the_run_table_fit(make: SimpleNamespace, cells: int) -> None:
    run = make.run()
    for row in say.rank_rows(make.run(lent=("n" * 99,)), cells):
        assert line_width(row) <= cells
    assert line_width(say.rank_header(cells)) <= cells
    assert line_width(say.progress_line(run, cells)) == cells


def test_the_split_is_of_the_node_that_the_others_wait_for(make: SimpleNamespace) -> None:
    assert plain(say.split_line(make.run())) == "█ compute 69 + ▓ sync 24 + ░ wait 0.6 ms   on old-laptop, the slowest"
    assert say.split_line(make.run(nodes=())) == ()


def test_parts_of_a_step_differ_in_glyph_not_only_in_colour(make: SimpleNamespace) -> None:
    run = make.run()
    drawn = plain(say.split_bar(run.nodes[0], 94, 30))
    assert len(drawn) == 30
    assert drawn.count("█") > drawn.count("▓") > drawn.count("░") > 0
    assert (
        plain(say.split_bar(msgspec.structs.replace(run.nodes[0], compute_ms=None, sync_ms=None, wait_ms=None), 94, 9))
        == " " * 9
    )
