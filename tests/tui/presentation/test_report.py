from types import SimpleNamespace

from daisychain.tui import presentation as say
from daisychain.tui.text import plain


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
