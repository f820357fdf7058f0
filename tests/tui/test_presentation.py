from types import SimpleNamespace

import msgspec
import pytest

from daisychain.facts import Device, Gpu, Verdict
from daisychain.tui import presentation as say
from daisychain.tui.text import line_width, plain


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


def test_a_verdict_says_whose_why_and_what_to_do() -> None:
    verdict = Verdict(
        level="refuse", check="torch", reason="torch 2.4 is not 2.13", remedy="Install torch 2.13", node="old"
    )
    assert say.lines_text(say.verdict_lines(verdict)) == "✗ old: torch 2.4 is not 2.13\n  → Install torch 2.13"


@pytest.mark.parametrize("cells", [54, 74, 94, 114, 200])
def test_rows_of_the_node_table_are_as_wide_as_its_header(make: SimpleNamespace, cells: int) -> None:
    nodes = (
        *make.three(),
        make.node("日本語のとても長い名前のコンピューター" * 3, capacity=None, state="measuring", nic="x" * 40),
    )
    world = make.world(nodes=nodes)
    wide = line_width(say.node_header(cells))
    assert wide <= cells
    for node in nodes:
        assert line_width(say.node_row(node, world, cells)) == wide


@pytest.mark.parametrize("cells", [54, 72, 74, 112, 200])
def test_rows_of_the_run_table_fit(make: SimpleNamespace, cells: int) -> None:
    run = make.run()
    for row in say.rank_rows(make.run(lent=("n" * 99,)), cells):
        assert line_width(row) <= cells
    assert line_width(say.rank_header(cells)) <= cells
    assert line_width(say.progress_line(run, cells)) == cells


@pytest.mark.parametrize("cells", [54, 74, 114])
def test_rows_of_requests_and_heads_fit(make: SimpleNamespace, cells: int) -> None:
    assert line_width(say.request_row(make.request("n" * 99), cells)) <= max(cells, 66)
    assert line_width(say.head_row(make.head("n" * 99, state="confirmed"), cells)) <= max(cells, 66)


def test_unknown_is_shown_as_unknown(make: SimpleNamespace) -> None:
    run = make.run(0, steps=None, epochs=None, eta_s=None, samples_per_second=None, step_ms=None, loss=None, batch=None)
    shown = say.lines_text([say.progress_line(run, 40), say.counters_line(run), say.rates_line(run)])
    assert "None" not in shown
    assert "–" in shown  # noqa: RUF001
    assert say.capacity_text(make.node(capacity=None, state="ready")) == "–"  # noqa: RUF001
    assert say.capacity_text(make.node(capacity=None, state="measuring")) == "measuring"


def test_a_gpu_that_is_not_used_is_not_shown_as_the_device_but_explained(make: SimpleNamespace) -> None:
    old = Verdict(
        level="warn", check="gpu", reason="this torch has no kernels for it", remedy="Install the cu126 build"
    )
    gpu = Gpu(name="GeForce GTX 750", memory_bytes=2 * 2**30, capability=(5, 0), verdict=old)
    device = Device(cpu="i5", cores_physical=4, cores_logical=4, memory_bytes=8 * 2**30, gpus=(gpu,))
    node = make.node(device=device)
    assert say.device_text(device) == "4 cores, 8 GB"
    assert "no kernels" in say.lines_text(say.node_detail(node))
    good = msgspec.structs.replace(gpu, verdict=Verdict(level="ok", check="gpu", reason="works"))
    assert say.device_text(msgspec.structs.replace(device, gpus=(good,))) == "GeForce GTX 750, 2 GB"


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


def test_the_ending_of_a_good_run_has_scores_beside_their_baseline(make: SimpleNamespace) -> None:
    scores = {"auc": 0.91, "accuracy": 0.85, "baseline": {"accuracy": 0.61}}
    shown = say.lines_text(say.ending(make.run(1000, phase="finished", scores=scores, speedup_vs_fastest_node=1.61)))
    assert "✓ 1.61 times the fastest node alone" in shown
    accuracy = next(line for line in shown.splitlines() if "accuracy" in line)
    assert accuracy.split() == ["accuracy", "0.85", "baseline", "0.61"]
    assert "runs/2026-11-02-digits" in shown


def test_bad_news_is_shown(make: SimpleNamespace) -> None:
    assert "! 0.83 times" in plain(say.speedup_line(make.run(speedup_vs_fastest_node=0.83)))
    assert "not measured" in plain(say.speedup_line(make.run(speedup_vs_fastest_node=None)))


def test_the_ending_of_a_failed_run_names_error_and_log(make: SimpleNamespace) -> None:
    run = make.run(phase="failed", error="old: exit -9, out of memory", log_path="/r/rank-2.log")
    assert "✗ old: exit -9, out of memory" in say.lines_text(say.ending(run))
    assert say.copy_text(run) == "old: exit -9, out of memory\n/r/rank-2.log"
    assert say.copy_text(make.run(phase="finished")) == make.run().folder
    assert say.ending(make.run()) == ()


def test_the_log_only_grows_by_what_is_new() -> None:
    assert say.new_log_lines((), ("a", "b")) == (False, ("a", "b"))
    assert say.new_log_lines(("a", "b"), ("a", "b", "c")) == (False, ("c",))
    assert say.new_log_lines(("a", "b", "c"), ("b", "c", "d")) == (False, ("d",))
    assert say.new_log_lines(("a", "b"), ("a", "b")) == (False, ())
    assert say.new_log_lines(("a", "b"), ("x", "y")) == (True, ("x", "y"))
    assert say.new_log_lines(("a", "b"), ()) == (True, ())


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
