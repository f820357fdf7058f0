from types import SimpleNamespace

import pytest

from daisychain.facts import Verdict
from daisychain.tui import presentation as say
from daisychain.tui.text import line_width


@pytest.mark.parametrize("cells", [54, 74, 114])
def test_rows_of_requests_and_heads_fit(make: SimpleNamespace, cells: int) -> None:
    assert line_width(say.request_row(make.request("n" * 99), cells)) <= max(cells, 66)
    assert line_width(say.head_row(make.head("n" * 99, state="confirmed"), cells)) <= max(cells, 66)


def test_a_join_says_that_the_head_may_run_programs_here(make: SimpleNamespace) -> None:
    assert "may then run programs on this machine" in say.lines_text(say.head_question(make.head(), 1))
    assert "arrow keys" in say.lines_text(say.head_question(None, 2))
    assert say.head_question(None, 0) == ()
    refused = make.head(state="refused", reason="the person there pressed x")
    assert "pressed x" in say.lines_text(say.head_question(refused, 1))


def test_no_heads_explains_after_a_while_or_when_it_is_known_why() -> None:
    blocked = Verdict(level="warn", check="mdns", reason="port 5353 is taken", remedy="Type the address")
    assert "Looking" in say.lines_text(say.no_heads(None, waited=False))
    assert "multicast" in say.lines_text(say.no_heads(None, waited=True))
    assert "5353" in say.lines_text(say.no_heads(blocked, waited=False))
