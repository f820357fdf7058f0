"""When ranks measure and change shares; and what a typical time is."""

import pytest

from daisychain.plan.shares import Cost
from daisychain.train.balance import COLD_STEPS, FIRST_WINDOW, WINDOW, Balancer, Schedule, typical


def test_a_change_is_valid_from_its_step_on():
    schedule = Schedule((5, 5))
    schedule.change(3, (8, 2))
    assert [schedule.at(index) for index in range(5)] == [(5, 5)] * 3 + [(8, 2)] * 2
    schedule.change(9, (7, 3))
    assert [schedule.at(index) for index in (8, 9)] == [(8, 2), (7, 3)]


def balancer(asked, times=(1.0, 2.0)):
    def gather(value):
        asked.append(value)
        return times

    return Balancer((50, 50), [Cost(0, 1), Cost(0, 1)], ["head", "old"], gather)


def test_the_first_window_is_short_and_changes_at_once():
    asked: list[float] = []
    subject = balancer(asked)
    answers = [subject.observe((50, 50), 100, 1.0) for _ in range(COLD_STEPS + FIRST_WINDOW)]
    assert answers[:-1] == [None] * (COLD_STEPS + FIRST_WINDOW - 1)
    assert answers[-1] == ((67, 33), "old is 49% slower: 50 -> 33 samples")
    assert asked == [1.0]


def test_ragged_batches_and_steps_cut_by_older_shares_do_not_count():
    asked: list[float] = []
    subject = balancer(asked)
    for _ in range(COLD_STEPS + FIRST_WINDOW):
        subject.observe((50, 50), 100, 1.0)
    for _ in range(2 * WINDOW):
        assert subject.observe((50, 50), 100, 1.0) is None
        assert subject.observe((67, 33), 40, 1.0) is None
    assert len(asked) == 1


def test_a_typical_time_counts_stalls_but_bounds_accidents():
    quota = [0.005, 0.005, 0.005, 0.045] * 5
    assert typical(quota) == pytest.approx(0.015)
    assert typical([0.01] * 19 + [30.0]) == pytest.approx(0.0145)
