from types import SimpleNamespace

import msgspec
import pytest

from daisychain.agent.preflight import judge_paths
from daisychain.tui import presentation as say
from daisychain.tui.presentation.matrix import (
    WAYS,
    first_to_see,
    judged,
    legend,
    matrix_lines,
    way,
    way_lines,
)
from daisychain.tui.text import line_width, plain


def test_each_way_has_its_sign(make: SimpleNamespace) -> None:
    found = make.examined(blocked=((2, 0),))
    assert [plain(line).split() for line in matrix_lines(found, (2, 0), 73)] == [
        ["from", "↓", "to", "→", "1", "anna", "2", "mini-pc", "3", "old-laptop"],
        ["1", "anna", "·", "✓", "✓"],
        ["2", "mini-pc", "✓", "·", "✓"],
        ["3", "old-laptop", "[✗]", "✓", "·"],
    ]


def test_signs_and_their_words_are_told_apart_without_colours() -> None:
    assert len({sign for sign, _, _ in WAYS.values()}) == len({word for _, word, _ in WAYS.values()}) == len(WAYS)
    assert all(f"{sign} {word}" in plain(legend()) for sign, word, _ in WAYS.values())
    assert line_width(legend()) <= 73


def test_a_blocked_way_says_why_and_what_to_do(make: SimpleNamespace) -> None:
    found = make.examined(blocked=((2, 0),))
    said = say.lines_text(way_lines(found, (2, 0), "leave out old-laptop"))
    assert "✗ blocked  old-laptop (192.168.1.42) → anna (192.168.1.20)" in said
    assert "no answer within 3 s" in said
    assert "→ On anna let old-laptop in: sudo ufw allow from 192.168.1.42" in said
    assert "f leave out old-laptop" in said


def test_a_way_that_no_run_needs_is_no_refusal(make: SimpleNamespace) -> None:
    """By the words of the agent's own rule, so that the two stay together."""
    nodes = make.three()
    reasons = {(1, 2): "no answer", (2, 1): "no answer", (2, 0): "refused"}
    found = msgspec.structs.replace(
        make.examined(nodes), verdicts=judge_paths(nodes, reasons),
        paths=tuple((nodes[a].name, nodes[b].name, why) for (a, b), why in reasons.items()),
    )  # fmt: skip
    assert way(found, 1, 2) == ("unneeded", "no answer")
    assert way(found, 2, 1) == ("blocked", "no answer")
    assert way(found, 2, 0)[0] == "blocked"
    assert way(found, 0, 1) == ("untried", "")
    assert way(found, 1, 1) == ("itself", "")
    assert "may stay closed" in say.lines_text(way_lines(found, (1, 2)))
    assert judged(found, 2, 1) in found.verdicts


def test_ways_that_were_not_tried_say_why(make: SimpleNamespace) -> None:
    why = make.verdict("", "path", "the paths weren't tried: a run goes on", "Try again later")
    found = msgspec.structs.replace(make.examined(None, why), paths=())
    assert "a run goes on" in say.lines_text(way_lines(found, (0, 1)))
    assert first_to_see(found) == (0, 1)
    assert first_to_see(make.examined(blocked=((1, 0),))) == (1, 0)


@pytest.mark.parametrize("cells", [53, 73, 113])
@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_it_fits_whatever_the_names_and_the_selected_cell_shows(make: SimpleNamespace, cells: int, count: int) -> None:
    nodes = tuple(make.node(f"{at}" + "長" * 30, address=f"10.0.0.{at + 1}") for at in range(count))
    found = make.examined(nodes)
    for at in ((0, 0), (count - 1, count - 1), (0, count // 2)):
        lines = matrix_lines(found, at, cells)
        assert len(lines) == count + 1
        assert all(line_width(line) <= cells for line in lines)
        assert sum("[" in plain(line) for line in lines) == 1
