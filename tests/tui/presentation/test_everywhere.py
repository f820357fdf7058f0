"""What must hold for everything that a screen says."""

from types import SimpleNamespace

import msgspec

from daisychain.tui import presentation as say
from daisychain.tui.text import plain


def test_every_state_has_a_sign_a_word_and_a_colour(make: SimpleNamespace) -> None:
    for state in ("measuring", "ready", "running", "lost"):
        ((words, role),) = say.node_state(make.node(state=state))
        sign, word = words.split()
        assert word == state
        assert role
        assert len(sign) == 1
    ((words, role),) = say.node_state(make.node(state="running", lent=True))
    assert (words, role) == ("‖ in use", "warn")
    assert say.node_state(make.node(state="running", hot=True)) == (("▲ hot", "warn"),)
    assert say.node_state(make.node(state="lost", lent=True)) == (("✗ lost", "bad"),)
    assert say.phase_text(make.run(paused=True)) == (("‖ paused", "warn"),)
    signs = {phase: sign for phase, (sign, _) in say.PHASE.items()}
    assert len({signs["running"], signs["finished"], signs["failed"], signs["stopped"]}) == 4
    assert len({sign for sign, _ in say.LEVEL.values()}) == 3


def test_unknown_is_shown_as_unknown(make: SimpleNamespace) -> None:
    run = make.run(0, steps=None, epochs=None, eta_s=None, samples_per_second=None, step_ms=None, loss=None, batch=None)
    shown = say.lines_text([say.progress_line(run, 40), say.counters_line(run), say.rates_line(run)])
    assert "None" not in shown
    assert "–" in shown  # noqa: RUF001
    assert say.capacity_text(make.node(capacity=None, state="ready")) == "–"  # noqa: RUF001
    assert say.capacity_text(make.node(capacity=None, state="measuring")) == "measuring"


def test_names_from_elsewhere_are_cleaned_everywhere(make: SimpleNamespace) -> None:
    bad = "\x1b[2Jevil\u202e\r\n"
    world = make.world(nodes=(make.node(bad, nic=bad, detail=bad),), advice=bad, joined=bad)
    run = make.run(name=bad, phase="failed", error=bad, log_path=bad, folder=bad)
    world = msgspec.structs.replace(world, run=run)
    node = world.nodes[0]
    lines = [
        say.node_row(node, world, 100), *say.node_detail(node), say.advice_line(world), *say.membership(world),
        say.request_row(make.request(bad, digits=bad, address=bad, device=bad), 100), say.head_row(make.head(bad), 100),
        *say.head_question(make.head(bad), 1), *say.request_question(make.request(bad), 1), say.run_title(run),
        *say.ending(run), *say.own_run(world, 60),
    ]  # fmt: skip
    shown = "".join(plain(line) for line in lines)
    assert shown.isprintable() or all(character.isprintable() or character == "\u202f" for character in shown)
