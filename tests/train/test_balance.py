"""When ranks measure and change shares; and what a typical time is."""

import pytest

from daisychain.plan.shares import PATIENCE, Cost
from daisychain.train.balance import (
    CALM_FIRST_WINDOW,
    CALM_WINDOW,
    COLD_STEPS,
    FIRST_WINDOW,
    JUMP_STEPS,
    WINDOW,
    Balancer,
    Schedule,
    first_costs,
    jump,
    outlasts_trial,
    stalls_often,
    typical,
)


def test_a_change_is_valid_from_its_step_on():
    schedule = Schedule((5, 5))
    schedule.change(3, (8, 2))
    assert [schedule.at(index) for index in range(5)] == [(5, 5)] * 3 + [(8, 2)] * 2
    schedule.change(9, (7, 3))
    assert [schedule.at(index) for index in (8, 9)] == [(8, 2), (7, 3)]


TIMES = (1.0, 2.0)


def balancer(**more):
    return Balancer((50, 50), [Cost(0, 1), Cost(0, 1)], ["head", "old"], **more)


@pytest.mark.parametrize("skip", [COLD_STEPS, 0])
def test_the_first_window_is_short_and_changes_at_once(skip):
    subject = balancer(skip=skip)
    answers = [subject.observe((50, 50), 100, TIMES) for _ in range(skip + FIRST_WINDOW)]
    assert answers[:-1] == [None] * (skip + FIRST_WINDOW - 1)
    assert answers[-1] == ((67, 33), "old is 49% slower: 50 -> 33 samples")


def test_shares_that_come_from_the_model_itself_do_not_follow_the_first_window():
    subject = balancer(skip=0, eager=False)
    answers = [subject.observe((50, 50), 100, (1.0, 1.15)) for _ in range(PATIENCE * WINDOW)]
    assert answers[:-1] == [None] * (PATIENCE * WINDOW - 1)
    assert answers[-1] is not None


@pytest.mark.parametrize(
    ("step_s", "lockstep", "follows"),
    [(0.04, True, False), (0.2, True, False), (0.3, True, True), (1.0, True, True), (0.03, False, True)],
)
def test_first_windows_that_outlast_the_trial_are_followed_at_once(step_s, lockstep, follows):
    assert outlasts_trial(step_s, lockstep=lockstep) is follows


@pytest.mark.parametrize(
    ("eager", "decides_after", "shares"),
    [(True, CALM_FIRST_WINDOW, (65, 35)), (False, PATIENCE * CALM_WINDOW, (66, 34))],
)
def test_a_stall_of_a_rank_that_nobody_waits_for_counts_however_rare(eager, decides_after, shares):
    """One step in eight of `old` stalls, 6 of the first window's 50, 13 of the last one's 100."""
    subject = balancer(skip=0, eager=eager, lockstep=False)
    steps = [(1.0, 8.0 if at % 8 == 7 else 1.0) for at in range(decides_after)]
    answers = [subject.observe((50, 50), 100, times) for times in steps]
    assert answers[:-1] == [None] * (decides_after - 1)
    assert answers[-1][0] == shares
    waited_for = balancer(skip=0, eager=eager)
    assert [waited_for.observe((50, 50), 100, times) for times in steps] == [None] * decides_after


def test_cold_steps_are_left_out():
    subject = balancer()
    answers = [subject.observe((50, 50), 100, (9.0, 1.0)) for _ in range(COLD_STEPS)]
    answers += [subject.observe((50, 50), 100, TIMES) for _ in range(FIRST_WINDOW)]
    assert answers[-1][0] == (67, 33)


def test_ragged_batches_and_steps_cut_by_older_shares_do_not_count():
    subject = balancer()
    for _ in range(COLD_STEPS + FIRST_WINDOW):
        subject.observe((50, 50), 100, TIMES)
    for _ in range(2 * WINDOW):
        assert subject.observe((50, 50), 100, (1.0, 9.0)) is None
        assert subject.observe((67, 33), 40, (1.0, 9.0)) is None
    answers = [subject.observe((67, 33), 100, (1.0, 9.0)) for _ in range(WINDOW)]
    assert answers[-2] is None


def test_all_ranks_decide_alike_from_the_same_times():
    subjects = [balancer() for _ in range(3)]
    shares, changes = (50, 50), 0
    for number in range(400):
        times = (shares[0] * (1.0 + number % 3), shares[1] * (2.0 + number % 5 + number // 100))
        (answer,) = {subject.observe(shares, 100, times) for subject in subjects}
        if answer is not None:
            shares, changes = answer[0], changes + 1
    assert changes > 1


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ((0.0, 0.0), (1.0, 2.0)),
        ((3.0, 8.0), (3.0, 8.0)),
        ((3.0, 0.0), (3.0, 6.0)),
        ((0.0, 1.0), (0.5, 1.0)),
    ],
)
def test_a_generation_begins_with_measured_speeds_and_scales_the_known_ones_of_others(measured, expected):
    costs = first_costs([Cost(0.7, 1.0), Cost(0.1, 2.0, cap=9)], measured)
    assert [cost.per_sample_s for cost in costs] == list(expected)
    assert [(cost.fixed_s, cost.cap) for cost in costs] == [(0.0, None), (0.0, 9)]


def test_a_typical_time_counts_common_stalls_and_leaves_out_rare_ones():
    assert typical([0.005, 0.005, 0.005, 0.045] * 5) == pytest.approx(0.015)
    assert typical([0.01] * 19 + [30.0]) == pytest.approx(0.01)
    assert typical([0.01, 0.01, 0.01, 30.0]) == pytest.approx(0.0325)
    # a machine that gets a twentieth of a core: 5 ms in 100
    assert typical([0.002, 0.002, 0.097] * 7) == pytest.approx(0.101 / 3)
    assert typical([0.002, 0.002, 0.097] * 7 + [30.0]) == pytest.approx((0.101 * 7 + 2.5 * 0.097) / 22)


def test_of_long_steps_the_middle_half_tells():
    usual = [1.80, 1.82, 1.83, 1.84, 1.85, 1.85, 1.86]
    assert typical([*usual, 2.55, 2.60]) == pytest.approx(1.846)
    assert typical([*usual, 9.0, 9.0]) > 2.5, "but common stalls count"
    short = [seconds / 10 for seconds in (*usual, 2.55, 2.60)]
    assert typical(short) == pytest.approx(sum(short) / 9), "a quota's are part of being slow"


def test_stalls_are_common_from_a_fifth_of_the_steps_on_even_when_they_are_most():
    assert not stalls_often([1.0] * 17 + [5.0] * 3)
    assert stalls_often([1.0] * 16 + [5.0] * 4)
    assert stalls_often([1.0] * 3 + [5.0] * 5)


@pytest.mark.parametrize(
    ("newest", "factor"),
    [
        ([2.0] * 5, 2.0),
        ([0.5] * 5, 0.5),
        ([1.2] * 5, 1.0),
        ([2.0] * 4 + [1.0], 1.0),
        ([0.5] * 4 + [5.0], 1.0),
    ],
)
def test_a_jump_is_what_all_of_the_newest_steps_agree_on(newest, factor):
    assert jump([1.0] * 18 + [5.0] * 2, newest) == factor


def test_steps_as_long_as_stalls_that_were_common_before_are_no_jump():
    assert jump([1.0] * 15 + [5.0] * 5, [5.0] * 5) == 1.0


@pytest.mark.parametrize(("step_s", "steps"), [(0.5, JUMP_STEPS), (0.1, 10), (0.01, WINDOW)])
def test_a_jump_must_last_a_second_or_a_window(step_s, steps):
    subject = balancer(skip=0, eager=False)
    for _ in range(WINDOW):
        subject.observe((50, 50), 100, (step_s, step_s), step_s)
    slower = (step_s / 2, step_s)  # steps still take as long
    answers = [subject.observe((50, 50), 100, slower, step_s) for _ in range(steps)]
    assert answers[:-1] == [None] * (steps - 1)
    assert answers[-1] is not None


def test_a_single_long_step_makes_no_jump_of_a_few_fast_ones():
    subject = balancer(skip=0, eager=False)
    for _ in range(WINDOW - 4):
        subject.observe((50, 50), 100, (0.01, 0.01), 0.01)
    # the long one is the first of a window
    fast = [subject.observe((50, 50), 100, (0.005, 0.01), 0.5 if at == 4 else 0.01) for at in range(WINDOW - 1)]
    assert fast == [None] * (WINDOW - 1)


def test_a_jump_changes_shares_after_five_steps_and_a_small_change_does_not():
    def settled():
        subject = balancer(skip=0)
        for _ in range(PATIENCE * FIRST_WINDOW):
            subject.observe((50, 50), 100, (1.0, 1.0))
        return subject

    jumped, small = settled(), settled()
    answers = [jumped.observe((50, 50), 100, (1.0, 2.0)) for _ in range(JUMP_STEPS)]
    assert answers[:-1] == [None] * (JUMP_STEPS - 1)
    assert answers[-1][0] == (67, 33)
    answers = [small.observe((50, 50), 100, (1.0, 1.2)) for _ in range(2 * WINDOW)]
    assert answers[:-1] == [None] * (2 * WINDOW - 1)
    assert answers[-1] is not None
