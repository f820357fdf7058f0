"""Progress of a run from its ranks' reports; time is an argument throughout."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.facts import RunSpec
from daisychain.run.lifecycle import ADVISE_AT, HISTORY, LOG_LINES, WARMUP_STEPS, Thinned, Tracker


def tracker(*names: str) -> Tracker:
    made = Tracker(run="r", name="train.py", folder="/runs/r", spec=RunSpec(job="script"), now_s=100.0)
    made.seat(names or ("head", "old"))
    return made


def step(number: int, *shares: int, rank: int = 0, **other: Any) -> dict[str, Any]:
    """A rank's report of a step that was cut by `shares`."""
    facts = {"compute_ms": 8.0, "exposed_ms": 2.0, "step_ms": 10.0, "loss": 1.0, "epoch": 0, "generation": 0}
    return {"kind": "step", "step": number, "share": shares[rank], "shares": list(shares), **facts, **other}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_step_is_complete_once_all_ranks_reported_it_in_any_order(order: tuple[int, ...]) -> None:
    made = tracker("a", "b", "c")
    lines = [made.report(rank, step(1, 10, 20, 30, rank=rank), 101.0) for rank in order]
    assert lines[:2] == [None, None]
    line = lines[2]
    assert line is not None
    assert line["batch"] == 60
    assert {name: part["share"] for name, part in line["nodes"].items()} == {"a": 10, "b": 20, "c": 30}
    assert list(line["nodes"]) == ["a", "b", "c"]


def test_a_rank_that_is_a_step_ahead_completes_nothing() -> None:
    made = tracker()
    assert made.report(0, step(1, 5, 3), 101.0) is None
    assert made.report(0, step(2, 5, 3), 102.0) is None
    first, second = (made.report(1, step(number, 5, 3, rank=1), 102.0 + number) for number in (1, 2))
    assert (first or {})["step"] == 1
    assert (second or {})["step"] == 2
    assert made.state(104.0).step == 2


def test_a_rank_that_reports_twice_counts_once() -> None:
    made = tracker()
    made.report(0, step(1, 5, 3), 101.0)
    assert made.report(0, step(1, 5, 3, compute_ms=9.0), 101.0) is None
    line = made.report(1, step(1, 5, 3, rank=1), 101.0)
    assert (line or {})["batch"] == 8
    assert (line or {})["nodes"]["head"]["compute_ms"] == 9.0


def test_the_smallest_exposed_time_is_the_exchange_and_the_rest_is_waiting() -> None:
    made = tracker()
    made.report(0, step(1, 5, 3, exposed_ms=30.0, compute_ms=10.0), 101.0)
    line = made.report(1, step(1, 5, 3, rank=1, exposed_ms=4.5, compute_ms=35.5, step_ms=41.0), 101.0)
    assert line is not None
    assert line["nodes"]["head"] == {"share": 5, "compute_ms": 10.0, "sync_ms": 4.5, "wait_ms": 25.5}
    assert line["nodes"]["old"] == {"share": 3, "compute_ms": 35.5, "sync_ms": 4.5, "wait_ms": 0.0}
    assert line["step_ms"] == 41.0


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1e4), st.floats(0, 1e6)), min_size=1, max_size=5))
def test_a_steps_parts_add_up(parts: list[tuple[int, float, float]]) -> None:
    made = tracker(*(f"n{number}" for number in range(len(parts))))
    line = None
    shares = [share for share, _, _ in parts]
    for rank, (_, loss, exposed) in enumerate(parts):
        line = made.report(rank, step(1, *shares, rank=rank, loss=loss, exposed_ms=exposed), 101.0)
    assert line is not None
    assert line["batch"] == sum(share for share, _, _ in parts)
    if line["batch"]:
        weighted = sum(share * loss for share, loss, _ in parts) / line["batch"]
        assert line["loss"] == pytest.approx(weighted)
    else:
        assert line["loss"] is None
    assert min(part["wait_ms"] for part in line["nodes"].values()) == 0
    for part, (_, _, exposed) in zip(line["nodes"].values(), parts, strict=True):
        assert part["sync_ms"] + part["wait_ms"] == pytest.approx(exposed, abs=0.002)


def test_a_rank_without_samples_has_no_say_in_the_loss_or_the_speeds() -> None:
    made = tracker()
    made.report(0, step(1, 8, 0, loss=2.0), 101.0)
    line = made.report(1, step(1, 8, 0, rank=1, loss=99.0, compute_ms=0.0), 101.0)
    assert (line or {})["loss"] == 2.0
    assert made.node_speeds == {"head": pytest.approx(1000.0)}


def test_a_loss_that_nobody_logged_is_unknown() -> None:
    made = tracker("a")
    line = made.report(0, step(1, 8, loss=None), 101.0)
    assert (line or {})["loss"] is None
    assert made.state(101.0).loss is None
    assert made.state(101.0).loss_history == ()


def test_the_warm_up_is_left_out_of_the_throughput() -> None:
    made = tracker("a")
    times = {1: 190.0, 2: 200.0, 3: 201.0, 4: 202.0}
    for number, now in times.items():
        made.report(0, step(number, 64), now)
        if number <= WARMUP_STEPS:
            assert made.samples_per_second is None
    assert made.samples_per_second == pytest.approx(64.0)


def test_the_speedup_compares_with_the_fastest_nodes_own_computing() -> None:
    made = tracker("fast", "slow")
    for number in range(1, 5):
        for rank in (0, 1):
            made.report(rank, step(number, 80, 40, rank=rank, compute_ms=80.0), 100.0 + number / 10)
    assert made.node_speeds == {"fast": pytest.approx(1000.0), "slow": pytest.approx(500.0)}
    assert made.samples_per_second == pytest.approx(1200.0)
    assert made.speedup == pytest.approx(1.2)


def test_the_ranks_of_a_node_are_one_node_in_the_speedup() -> None:
    made = tracker("a:0", "a:1", "b")
    made.seat(["a:0", "a:1", "b"], ["a", "a", "b"])
    for number in range(1, 5):
        for rank in range(3):
            made.report(rank, step(number, 40, 40, 40, rank=rank, compute_ms=80.0), 100.0 + number / 10)
    assert made.node_speeds == {name: pytest.approx(500.0) for name in ("a:0", "a:1", "b")}
    assert made.speedup == pytest.approx(1.2)


def test_nothing_is_guessed_before_the_first_step() -> None:
    state = tracker().state(103.5)
    assert (state.step, state.steps, state.loss, state.step_ms, state.samples_per_second) == (0, None, None, None, None)
    assert (state.eta_s, state.speedup_vs_fastest_node, state.exit) == (None, None, None)
    assert state.elapsed_s == 3.5
    assert [(part.node, part.share, part.compute_ms) for part in state.nodes] == [("head", 0, None), ("old", 0, None)]


def test_a_plan_starts_the_run_and_gives_the_first_shares() -> None:
    made = tracker()
    made.report(0, {"kind": "plan", "steps": 40, "epochs": 2, "batch": 96, "shares": [64, 32]}, 101.0)
    state = made.state(101.0)
    assert (state.phase, state.steps, state.epochs, state.batch) == ("running", 40, 2, 96)
    assert [part.share for part in state.nodes] == [64, 32]


def test_the_rest_is_estimated_from_recent_steps() -> None:
    made = tracker("a")
    made.report(0, {"kind": "plan", "steps": 12, "epochs": 1, "batch": 8, "shares": [8]}, 100.0)
    made.report(0, step(1, 8, step_ms=500.0), 101.0)
    made.report(0, step(2, 8, step_ms=500.0), 102.0)
    state = made.state(102.0)
    assert state.eta_s == pytest.approx(5.0)
    assert state.samples_per_second == pytest.approx(16.0)
    made.end("finished", 0, 103.0)
    assert made.state(500.0).eta_s is None


def test_a_nodes_medians_are_of_full_batches_only() -> None:
    made = tracker("a", "b")
    for number in range(1, 6):
        made.report(0, step(number, 60, 40, compute_ms=6.0), 101.0)
        made.report(1, step(number, 60, 40, rank=1, compute_ms=9.0), 101.0)
    for rank in (0, 1):
        made.report(rank, step(6, 2, 1, rank=rank, compute_ms=0.1), 102.0)
    assert [(part.share, part.compute_ms) for part in made.state(102.0).nodes] == [(60, 6.0), (40, 9.0)]
    assert made.state(102.0).batch == 3


def test_histories_are_bounded() -> None:
    made = tracker("a")
    for number in range(1, 5000):
        made.report(0, step(number, 8, loss=float(number)), 101.0 + number)
        made.note(f"line {number}", 101.0 + number)
    state = made.state(6000.0)
    assert HISTORY / 2 <= len(state.loss_history) <= HISTORY
    assert len(state.step_ms_history) <= HISTORY
    assert len(state.log) == LOG_LINES
    assert state.log[-1].endswith("line 4999")
    assert not made._pending


@given(st.integers(1, 50), st.integers(0, 2000))
def test_a_thinned_history_keeps_the_first_point_and_even_distances(limit: int, count: int) -> None:
    thinned = Thinned(limit)
    for number in range(count):
        thinned.add(number, float(number))
    steps = [number for number, _ in thinned.points]
    assert len(steps) <= limit
    assert len(steps) >= min(count, limit) / 2 or limit == 1
    if count:
        assert steps[0] == 0
    assert len({b - a for a, b in itertools.pairwise(steps)}) <= 1


# --- generations --------------------------------------------------------------------------------------------------


def test_a_step_is_of_the_seats_of_its_generation() -> None:
    made = tracker("a", "b", "c")
    assert made.form(1, (0, 1, 2), 0) == []
    for seat in (0, 1):
        assert made.report(seat, step(1, 5, 3, 2, rank=seat, generation=1), 101.0) is None
    assert made.report(2, step(1, 5, 3, 2, rank=2, generation=1), 101.0) is not None
    assert made.form(2, (2, 0), 1) == []
    made.report(2, step(2, 7, 3, rank=0, generation=2), 102.0)
    line = made.report(0, step(2, 7, 3, rank=1, generation=2), 102.0)
    assert line is not None
    assert {name: part["share"] for name, part in line["nodes"].items()} == {"c": 7, "a": 3}
    assert line["generation"] == 2


def test_a_step_whose_last_reports_were_lost_with_their_rank_is_in_the_books_with_unknown_times() -> None:
    made = tracker("a", "b")
    made.form(1, (0, 1), 0)
    made.report(0, step(1, 5, 3, generation=1), 101.0)
    (line,) = made.form(2, (0,), 1)
    assert (line["step"], line["batch"], line["generation"]) == (1, 8, 1)
    assert line["nodes"]["b"] == {"share": 3, "compute_ms": None, "sync_ms": 2.0, "wait_ms": None}
    assert made.state(102.0).step == 1
    assert [part.compute_ms for part in made.state(102.0).nodes] == [8.0, None]
    assert made.report(1, step(1, 5, 3, rank=1, generation=1), 102.0) is None
    assert made.step == 1


def test_a_step_that_was_dropped_is_not_in_the_books_until_it_is_done_again() -> None:
    made = tracker("a", "b")
    made.form(1, (0, 1), 0)
    made.report(0, step(1, 5, 3, generation=1), 101.0)
    assert made.form(2, (0,), 0) == []
    assert made.step == 0
    line = made.report(0, step(1, 8, generation=2), 103.0)
    assert (line or {})["step"] == 1


def test_a_resumed_run_counts_on_from_its_checkpoint_and_one_that_fell_back_does_steps_again() -> None:
    made = tracker("a")
    made.form(1, (0,), 30)
    assert made.step == 30
    assert made.report(0, step(30, 8, generation=1), 101.0) is None
    assert made.report(0, step(31, 8, generation=1), 101.0) is not None
    assert made.form(2, (0,), 12) == []
    assert made.step == 12
    assert (made.report(0, step(13, 8, generation=2), 102.0) or {})["step"] == 13


def test_who_speaks_for_a_generation_is_its_first() -> None:
    made = tracker("a", "b")
    made.form(1, (1, 0), 0)
    plan = {"kind": "plan", "steps": 4, "epochs": 1, "batch": 8, "shares": [6, 2]}
    made.report(0, {**plan, "steps": 99}, 101.0)
    assert made.state(101.0).steps is None
    made.report(1, plan, 101.0)
    assert made.state(101.0).steps == 4


def test_the_log_says_when_since_the_launch() -> None:
    made = tracker()
    made.note("hello", 100.0 + 61.9)
    made.report(1, {"kind": "note", "text": "AMP is off"}, 103.0)
    made.report(0, {"kind": "shares", "shares": [3, 1], "reason": "old is slower now"}, 104.0)
    made.report(1, {"kind": "shares", "shares": [3, 1], "reason": "the same once more"}, 104.0)
    assert made.state(110.0).log == ("01:01 hello", "00:03 old: AMP is off", "00:04 old is slower now")


def test_the_end_stops_the_clock_and_keeps_the_outcome() -> None:
    made = tracker()
    made.enter("running", "words")
    assert not made.ended
    made.end("failed", 6, 130.0, "old: train.py:3: boom", "/runs/r/rank-1.log")
    state = made.state(999.0)
    assert made.ended
    assert (state.phase, state.exit, state.elapsed_s, state.detail) == ("failed", 6, 30.0, "")
    assert (state.error, state.log_path) == ("old: train.py:3: boom", "/runs/r/rank-1.log")


def test_scores_are_the_newest() -> None:
    made = tracker()
    made.report(0, {"kind": "scores", "scores": {"rmse": 1.0, "baseline": {"rmse": 2.0}}}, 101.0)
    assert made.state(101.0).scores == {"rmse": 1.0, "baseline": {"rmse": 2.0}}


@pytest.mark.parametrize("report", [{}, {"kind": "no such kind"}, {"kind": None}])
def test_an_unknown_report_changes_nothing(report: dict[str, Any]) -> None:
    made = tracker()
    before = made.state(101.0)
    assert made.report(0, report, 101.0) is None
    assert made.state(101.0) == before


def test_a_pause_counts_in_no_rate_and_the_run_has_no_end_in_sight() -> None:
    made = tracker()
    made.report(0, {"kind": "plan", "steps": 9, "epochs": 1, "batch": 8, "shares": [5, 3]}, 100.0)

    def at(number: int, now_s: float) -> None:
        for seat in (0, 1):
            made.report(seat, step(number, 5, 3, rank=seat), now_s)

    for number in (1, 2, 3):
        at(number, 100.0 + number)
    assert made.state(103.0).eta_s is not None
    made.pause(True, 103.5)
    made.pause(True, 110.0)
    state = made.state(120.0)
    assert (state.paused, state.eta_s, state.samples_per_second) == (True, None, 0.0)
    made.pause(False, 203.5)
    made.pause(False, 204.0)
    at(4, 204.0)
    assert not made.state(204.0).paused
    assert made.samples_per_second == pytest.approx(16 / 2)
    made.pause(True, 205.0)
    made.end("stopped", 130, 206.0)
    assert not made.state(206.0).paused


def test_nodes_that_their_owners_use_are_named() -> None:
    made = tracker("a", "b")
    made.lend("b", True)
    assert (made.state(101.0).lent, made.state(101.0).detail) == (("b",), "")
    made.lend("a", True)
    assert made.state(101.0).lent == ("a", "b")
    assert "every node is used" in made.state(101.0).detail
    made.lend("b", False)
    assert (made.state(101.0).lent, made.state(101.0).detail) == (("a",), "")


@pytest.mark.parametrize(("sync_ms", "burden"), [(2.0, False), (60.0, True)])
def test_a_node_that_slows_the_run_down_is_named_once_the_shares_have_settled(sync_ms: float, burden: bool) -> None:
    made = tracker("head", "mid", "old")
    for number in range(1, 2 * ADVISE_AT):
        for rank, compute_ms in enumerate((20.0, 21.0, 19.0)):
            said = step(number, 40, 20, 10, rank=rank, compute_ms=compute_ms, exposed_ms=sync_ms + 21 - compute_ms)
            made.report(rank, said, 100.0 + number)
        told = [line for line in made.state(300.0).log if "slows the run down" in line]
        assert len(told) == (burden and number >= ADVISE_AT)
    assert (made.added["old"] < 0) == burden
    assert made.added["head"] > made.added["mid"] > made.added["old"]


def test_ranks_of_one_node_add_together() -> None:
    made = tracker("head", "head-2", "old")
    made.seat(("head", "head-2", "old"), nodes=("head", "head", "old"))
    for rank in range(3):
        made.report(rank, step(1, 20, 20, 10, rank=rank, compute_ms=10.0, exposed_ms=0.0), 101.0)
    assert made.added == {"head": pytest.approx(4.0), "old": pytest.approx(0.25)}
