from types import SimpleNamespace

import pytest

from daisychain.facts import Verdict
from daisychain.tui import presentation as say
from daisychain.tui.presentation.checklist import by_node, check_rows, first_to_see, selected_lines
from daisychain.tui.text import line_width, plain

WELL = Verdict(level="ok", check="disk", reason="anna has 41 GB free", node="anna")
BUSY = Verdict(level="warn", check="load", reason="63% of mini-pc is in use", remedy="End them", node="mini-pc")
NONE = Verdict(level="refuse", check="torch", reason="no torch on mini-pc", remedy="pip install torch", node="mini-pc")
CHAIN = Verdict(level="ok", check="network", reason="each node gets 92 MB/s through")


def test_verdicts_stand_by_node_the_worst_first() -> None:
    assert by_node((CHAIN, BUSY, WELL, NONE), ("anna", "mini-pc")) == {"anna": [2], "mini-pc": [3, 1], "": [0]}
    rows = check_rows((CHAIN, BUSY, WELL, NONE), ("anna", "mini-pc"), 60)
    assert [row for row, _ in rows] == ["of anna", "2", "of mini-pc", "3", "1", "of ", "0"]
    assert plain(rows[2][1]) == "mini-pc  ✗ 1 refuse   ! 1 warn"
    assert plain(rows[3][1]) == "  ✗ refuse torch      no torch on mini-pc"
    assert plain(rows[5][1]) == "the chain  ✓ 1 ok"


def test_a_level_has_a_sign_a_word_and_a_colour() -> None:
    signs = {}
    for verdict in (WELL, BUSY, NONE):
        ((_, row),) = check_rows((verdict,), (), 60)[1:]
        text, role = row[0]
        signs[verdict.level] = (text.split()[0], role)
        assert text.split()[1] == verdict.level
    assert len(set(signs.values())) == len({sign for sign, _ in signs.values()}) == 3


def test_the_first_refused_one_is_seen_first_else_a_warning() -> None:
    order = ("anna", "mini-pc")
    assert first_to_see((WELL, BUSY, NONE), order) == 2
    assert first_to_see((WELL, BUSY), order) == 1
    assert first_to_see((CHAIN, WELL), order) == 1
    assert first_to_see(()) is None


def test_how_many_there_are_of_each() -> None:
    assert plain(say.tally((WELL, BUSY, NONE, CHAIN))) == "✗ 1 refuse   ! 1 warn   ✓ 2 ok"
    assert plain(say.tally(())) == ""


@pytest.mark.parametrize("cells", [53, 73, 113])
def test_no_row_is_wider_than_its_room(make: SimpleNamespace, cells: int) -> None:
    names = ("日本語のとても長い名前のコンピューター" * 3, "n" * 99)
    long = [
        make.verdict(name, "daisychain", f"{name} " * 9, "do it", level) for name in names for level in ("", "refuse")
    ]
    assert all(line_width(line) <= cells for _, line in check_rows(long, names, cells))


def test_the_selected_one_is_said_in_full() -> None:
    said = say.lines_text(selected_lines(NONE, "leave out mini-pc"))
    assert said == "✗ no torch on mini-pc\n→ pip install torch\nf leave out mini-pc"
    assert "nothing to do" in say.lines_text(selected_lines(WELL))
    assert "arrow keys" in say.lines_text(selected_lines(None))
