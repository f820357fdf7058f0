from types import SimpleNamespace

import msgspec

from daisychain.tui import presentation as say


def test_it_says_what_is_being_tried_and_for_how_long(make: SimpleNamespace) -> None:
    own, mini, old = make.three()
    lost = msgspec.structs.replace(old, state="lost")
    said = say.lines_text(say.trying(make.world(nodes=(own, mini, lost)), 3.0))
    assert "Checking anna, mini-pc …  3 s" in said
    assert "memory, load, power" in said
    assert "2 ways between them" in said
    assert "old-laptop" not in said
    alone = say.lines_text(say.trying(make.world(nodes=(own,)), 0.0))
    assert "ways" not in alone
    assert "Checking this machine" in say.lines_text(say.trying(None, 0.0))


def test_a_worker_checks_itself_and_the_way_to_its_head(make: SimpleNamespace) -> None:
    said = say.lines_text(say.trying(make.world(role="worker"), 1.0))
    assert "Checking anna …" in said
    assert "whether its head can be reached" in said
