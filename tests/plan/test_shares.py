"""Shares: the best ones, exact sums, caps, and the inertia of later corrections."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daisychain.errors import UsageError
from daisychain.plan.shares import GROWTH, PROBE, Balance, Cost, Measured, cut, equal, fitting, replan, solve

costs = st.lists(
    st.builds(
        Cost,
        st.floats(0, 0.5),
        st.floats(1e-6, 0.1),
        st.one_of(st.none(), st.integers(0, 400)),
    ),
    min_size=1,
    max_size=6,
)
overlapping = st.lists(
    st.builds(
        Cost,
        st.floats(0, 0.5),
        st.floats(1e-6, 0.1),
        st.one_of(st.none(), st.integers(0, 400)),
        st.floats(0.05, 1),
    ),
    min_size=1,
    max_size=6,
)
NAMES = ("head", "mid", "old")


def slowest(shares, all_costs, overlapped_s=0.0):
    return max(cost.finish_s(n, overlapped_s) for cost, n in zip(all_costs, shares, strict=True) if n)


def test_a_rank_without_room_that_would_overlap_takes_nothing_from_the_others():
    full = Cost(0.0, 0.002, 0, 0.5)
    assert solve(1, [Cost(0.0, 0.004), Cost(0.0, 0.004), full]) in ((1, 0, 0), (0, 1, 0))


def test_caps_that_do_not_hold_the_batch_together_are_none():
    few, free = Cost(0.0, 0.1, 3), Cost(0.0, 0.1)
    assert fitting(6, [few, few]) == [few, few]
    assert fitting(7, [few, few]) == [free, free]
    assert fitting(7, [few, free]) == [few, free]


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 12))
def test_equal_shares_sum_to_the_batch_and_differ_by_one_at_most(batch, ranks):
    shares = equal(batch, ranks)
    assert sum(shares) == batch
    assert max(shares) - min(shares) <= 1


@settings(deadline=None)
@given(st.integers(0, 5000), st.lists(st.integers(0, 500), min_size=1, max_size=8).filter(any))
def test_a_cut_sums_exactly_and_stays_within_one_sample_of_the_proportion(samples, shares):
    parts = cut(samples, shares)
    assert sum(parts) == samples
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - samples * share / sum(shares)) < 1
        assert share or not part


def test_a_whole_batch_is_cut_into_its_own_shares():
    assert cut(10, (7, 2, 1)) == (7, 2, 1)


@settings(deadline=None)
@given(st.integers(1, 2000), costs)
def test_solved_shares_sum_to_the_batch_within_caps_or_say_that_it_does_not_fit(batch, all_costs):
    room = sum(batch if cost.cap is None else min(cost.cap, batch) for cost in all_costs)
    if room < batch:
        with pytest.raises(UsageError, match="doesn't fit"):
            solve(batch, all_costs)
        return
    shares = solve(batch, all_costs)
    assert sum(shares) == batch
    assert all(n >= 0 and (c.cap is None or n <= c.cap) for n, c in zip(shares, all_costs, strict=True))


@settings(deadline=None)
@given(st.integers(1, 300), costs)
@example(7, [Cost(0.1875, 0.0234375), Cost(0.205078125, 0.00390625), Cost(0.03125, 0.02734375)])
def test_moving_any_one_sample_never_finishes_earlier(batch, all_costs):
    all_costs = [Cost(cost.fixed_s, cost.per_sample_s) for cost in all_costs]
    shares = solve(batch, all_costs)
    best = slowest(shares, all_costs)
    for giver in range(len(shares)):
        for taker in range(len(shares)):
            if giver != taker and shares[giver]:
                moved = list(shares)
                moved[giver] -= 1
                moved[taker] += 1
                assert slowest(moved, all_costs) >= best * (1 - 1e-9)


def test_speeds_of_four_two_one_give_shares_of_four_two_one():
    assert solve(700, [Cost(0, 1), Cost(0, 2), Cost(0, 4)]) == (400, 200, 100)


def test_a_node_whose_fixed_cost_is_the_whole_step_gets_nothing():
    assert solve(100, [Cost(0.0, 0.001), Cost(0.2, 0.001)]) == (100, 0)


def test_a_full_node_hands_the_rest_to_the_others():
    assert solve(100, [Cost(0, 1, cap=10), Cost(0, 1), Cost(0, 2)]) == (10, 60, 30)


@settings(deadline=None)
@given(st.integers(1, 300), overlapping, st.floats(0, 2))
def test_moving_any_one_sample_never_finishes_earlier_beside_an_exchange(batch, all_costs, overlapped_s):
    all_costs = [Cost(cost.fixed_s, cost.per_sample_s, None, cost.early) for cost in all_costs]
    shares = solve(batch, all_costs, overlapped_s)
    best = slowest(shares, all_costs, overlapped_s)
    for giver in range(len(shares)):
        for taker in range(len(shares)):
            if giver != taker and shares[giver]:
                moved = list(shares)
                moved[giver] -= 1
                moved[taker] += 1
                assert slowest(moved, all_costs, overlapped_s) >= best * (1 - 1e-9)


@settings(deadline=None)
@given(st.integers(1, 2000), overlapping, st.floats(0, 2))
def test_shares_that_know_of_overlap_are_never_worse_than_those_that_do_not(batch, all_costs, overlapped_s):
    room = [batch if cost.cap is None else min(cost.cap, batch) for cost in all_costs]
    if sum(room) < batch:
        with pytest.raises(UsageError, match="doesn't fit"):
            solve(batch, all_costs, overlapped_s)
        return
    shares = solve(batch, all_costs, overlapped_s)
    assert sum(shares) == batch
    assert all(0 <= n <= most for n, most in zip(shares, room, strict=True))
    plain = solve(batch, all_costs)
    best = slowest(shares, all_costs, overlapped_s)
    assert best <= slowest(plain, all_costs, overlapped_s) * (1 + 1e-9)
    assert best <= (slowest(plain, all_costs) + overlapped_s) * (1 + 1e-9), "nothing overlapped"


@settings(deadline=None)
@given(overlapping, st.floats(0, 2), st.floats(0, 400))
def test_samples_by_is_the_inverse_of_finish(all_costs, overlapped_s, samples):
    for cost in all_costs:
        finish_s = cost.finish_s(samples, overlapped_s)
        assert cost.finish_s(cost.samples_by(finish_s, overlapped_s), overlapped_s) == pytest.approx(finish_s)


def test_where_the_exchange_bounds_the_step_a_rank_whose_first_bucket_leaves_early_takes_more():
    # both finish at 1 s: 0.5 * 0.8 + 0.6 and 1 * 0.4 + 0.6
    early, late = Cost(0, 0.001, early=0.5), Cost(0, 0.001)
    assert solve(1200, [early, late], 0.6) == (800, 400)


def test_an_exchange_that_is_hidden_moves_no_share():
    # over at 0.5 * 1 + 0.4, before the step is
    assert solve(1500, [Cost(0, 0.001, early=0.5), Cost(0, 0.002, early=0.5)], 0.4) == (1000, 500)


KNOWN = [Cost(0.0, 0.001), Cost(0.0, 0.002), Cost(0.0, 0.004)]


def balanced(**changes):
    return Balance(shares=(400, 200, 100), **changes)


def at(balance, *slower):
    """Measurements of nodes that are so many times slower than known."""
    return [Measured(n, cost.step_s(n) * factor) for n, cost, factor in zip(balance.shares, KNOWN, slower, strict=True)]


def test_the_first_correction_acts_at_once_and_says_why():
    after, reason = replan(balanced(), at(balanced(), 1, 1, 1.5), KNOWN, NAMES)
    assert after.shares == solve(700, [KNOWN[0], KNOWN[1], Cost(0, 0.006)])
    assert reason == "old is 43% slower: 100 -> 70 samples"


def test_later_corrections_wait_for_a_second_window():
    start = balanced(eager=False)
    once, reason = replan(start, at(start, 1, 1, 1.5), KNOWN, NAMES)
    assert (once.shares, reason) == (start.shares, "")
    twice, reason = replan(once, at(start, 1, 1, 1.5), KNOWN, NAMES)
    assert twice.shares != start.shares
    assert reason


def test_a_quiet_window_between_two_promising_ones_starts_the_count_again():
    start = balanced(eager=False)
    once, _ = replan(start, at(start, 1, 1, 1.5), KNOWN, NAMES)
    quiet, _ = replan(once, at(start, 1, 1, 1.0), KNOWN, NAMES)
    again, reason = replan(quiet, at(start, 1, 1, 1.5), KNOWN, NAMES)
    assert (again.shares, reason) == (start.shares, "")


def test_a_small_gain_is_left_alone():
    after, reason = replan(balanced(), at(balanced(), 1, 1, 1.04), KNOWN, NAMES)
    assert (after.shares, reason) == ((400, 200, 100), "")


def test_a_change_that_turns_back_goes_half_as_far():
    start = balanced()
    there, _ = replan(start, at(start, 1, 1, 2), KNOWN, NAMES)
    waiting, _ = replan(there, at(there, 1, 1, 1), KNOWN, NAMES)
    back, _ = replan(waiting, at(there, 1, 1, 1), KNOWN, NAMES)
    assert there.shares[2] < back.shares[2] < 100
    assert back.stride == 0.5


def test_after_a_jump_a_change_is_made_at_once_and_in_full():
    start = balanced(eager=False, direction=(-50, -50, 100), stride=0.5)
    after, reason = replan(start, at(start, 1, 1, 2), KNOWN, NAMES, jumped=True)
    assert after.shares == solve(700, [KNOWN[0], KNOWN[1], Cost(0, 0.008)])
    assert after.eager
    assert after.rough
    assert reason


@pytest.mark.parametrize("settled", [{"rough": True, "eager": True}, {"eager": False}])
def test_a_small_gain_counts_for_rough_shares_and_over_a_long_window(settled):
    start = balanced(**settled)
    after, reason = replan(start, at(start, 1, 1, 1.04), KNOWN, NAMES, long="rough" not in settled)
    assert after.shares[2] < 100
    assert reason


def test_a_quiet_long_window_does_not_start_the_count_of_short_ones_again():
    start = balanced(eager=False, promising=1)
    after, _ = replan(start, at(start, 1, 1, 1), KNOWN, NAMES, long=True)
    assert after.promising == 1


def test_two_shares_far_apart_show_the_fixed_cost():
    truth = [Cost(0.04, 0.001), Cost(0.06, 0.002), Cost(0.08, 0.004)]
    start = Balance(shares=equal(600, 3))
    for _ in range(4):
        measured = [Measured(n, cost.step_s(n)) for n, cost in zip(start.shares, truth, strict=True)]
        start, _ = replan(start, measured, KNOWN, NAMES)
    assert (start.fixed[0], start.fixed[2]) == pytest.approx((40, 20), rel=0.15)


def test_a_node_without_samples_can_come_back_a_few_at_a_time():
    start = Balance(shares=(400, 300, 0))
    after, reason = replan(start, at(start, 1, 1, 1), KNOWN, NAMES)
    assert after.shares[2] == PROBE
    assert after.eager
    assert reason


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0.001, 10)), min_size=2, max_size=6).filter(
        lambda ranks: sum(n for n, _ in ranks) > 0
    ),
    st.data(),
)
def test_any_measurement_gives_exact_shares_that_grow_twofold_at_most(ranks, data):
    start = Balance(shares=tuple(n for n, _ in ranks))
    known = [Cost(data.draw(st.floats(0, 0.1)), data.draw(st.floats(1e-6, 0.1))) for _ in ranks]
    after, reason = replan(start, [Measured(n, s) for n, s in ranks], known, [str(r) for r in range(len(ranks))])
    assert sum(after.shares) == sum(start.shares)
    assert (after.shares != start.shares) == bool(reason)
    for new, old in zip(after.shares, start.shares, strict=True):
        assert 0 <= new <= max(GROWTH * old, PROBE)


@settings(deadline=None)
@given(st.lists(st.floats(0.2, 20), min_size=2, max_size=5), st.floats(0, 0.3))
def test_repeated_corrections_settle_at_equal_finish_times(speeds, fixed):
    """From equal shares and no idea of the speeds, noise-free measurements lead close to the best."""
    truth = [Cost(fixed * 0.1, 0.001 * s) for s in speeds]
    known = [Cost(0.0, 0.001) for _ in speeds]
    balance = Balance(shares=equal(1000, len(speeds)))
    names = [str(r) for r in range(len(speeds))]
    for _ in range(40):
        balance, _ = replan(
            balance, [Measured(n, c.step_s(n)) for n, c in zip(balance.shares, truth, strict=True)], known, names
        )
    best = slowest(solve(1000, truth), truth)
    assert slowest(balance.shares, truth) <= best * 1.12


def test_a_fixed_cost_of_the_light_reference_does_not_shut_a_node_out_of_a_heavy_model():
    known = [Cost(0.0012, 2.8e-5), Cost(0.0035, 5.1e-5), Cost(0.0076, 1.2e-4)]
    heavy = [Cost(0.002, 0.002), Cost(0.004, 0.004), Cost(0.008, 0.008)]
    start = Balance(shares=(150, 80, 26))
    measured = [Measured(n, cost.step_s(n)) for n, cost in zip(start.shares, heavy, strict=True)]
    after, _ = replan(start, measured, known, NAMES)
    assert after.shares == pytest.approx(solve(256, heavy), abs=2)
