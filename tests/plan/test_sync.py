"""What --sync may say, and how long rounds of local steps are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.errors import UsageError
from daisychain.plan.sync import (
    AVERAGE,
    FIRST_STEPS,
    LEAST_STEPS,
    LONG,
    MAX_STEPS,
    ON_THE_WAY,
    SHORT,
    SLACK,
    Sync,
    exposed_s,
    fitted,
    next_steps,
    outer,
    parse,
)


@pytest.mark.parametrize(
    ("text", "sync"),
    [
        ("exact", Sync("exact")),
        ("bf16", Sync("bf16")),
        ("local", Sync("local", 0)),
        ("local:1", Sync("local", 1)),
        ("local:50", Sync("local", 50)),
    ],
)
def test_what_is_allowed(text, sync):
    assert parse(text) == sync


@pytest.mark.parametrize(
    "text",
    ["", "Exact", "exact:", "exact:5", "bf16:5", "local:", "local:0", "local:-1", "local:x", "local:1.5", "local:²",
     "local:99999999999", "local:5:5", "fp16"],
)  # fmt: skip
def test_anything_else_is_refused_and_the_error_names_what_is_allowed(text):
    with pytest.raises(UsageError) as error:
        parse(text)
    for word in ("exact", "bf16", "local", "local:H"):
        assert word in str(error.value)


def test_all_but_exact_is_called_approximate():
    assert not parse("exact").approximate
    assert parse("bf16").approximate.startswith("approximate: ")
    assert "after 50 steps" in parse("local:50").approximate
    assert parse("local").approximate.startswith("approximate: ")


def settled(step_s, exchange_s):
    steps = FIRST_STEPS
    for _ in range(20):
        steps = next_steps(steps, step_s, exchange_s)
    return steps


@given(st.floats(1e-4, 10), st.floats(1e-4, 100))
def test_rounds_are_the_shortest_during_which_an_exchange_is_over_in_good_time(step_s, exchange_s):
    steps = settled(step_s, exchange_s)

    def part(steps):
        return exchange_s / (steps * step_s)

    assert LEAST_STEPS <= steps <= MAX_STEPS
    assert steps == MAX_STEPS or part(steps) <= ON_THE_WAY * (1 + 1e-9)
    assert steps == LEAST_STEPS or part(steps - 1) > ON_THE_WAY * (1 - 1e-9)


def test_rounds_grow_no_more_than_twofold_and_shrink_at_once():
    assert next_steps(30, 0.05, 4.0) == 60
    assert next_steps(200, 0.05, 0.01) == LEAST_STEPS


def test_a_single_step_is_averaged_and_longer_rounds_have_more_momentum():
    assert outer(1) == AVERAGE
    assert [outer(steps) for steps in (2, MAX_STEPS)] == [SHORT, SHORT]
    assert outer(MAX_STEPS + 1) == LONG


def test_an_exchange_beside_the_steps_costs_a_step_only_what_does_not_fit():
    assert exposed_s(100, 0.05, 4.0) == pytest.approx(4.0 / MAX_STEPS)
    assert exposed_s(100, 0.05, 8.0) == pytest.approx(0.03 + 8.0 / MAX_STEPS)


def test_without_measurements_the_length_stays():
    assert next_steps(10, 0.0, 0.4) == 10
    assert next_steps(10, 0.05, 0.0) == 10


@given(st.integers(1, 300), st.integers(1, 5000))
def test_a_pass_is_cut_into_rounds_of_nearly_equal_length(steps, left):
    rounds, rest = [], left
    while rest:
        rounds.append(min(rest, fitted(steps, rest)))
        rest -= rounds[-1]
    assert max(rounds) <= max(1, -(-steps * SLACK // 1))
    assert max(rounds) - min(rounds) <= 1
    assert len(rounds) <= -(-left // steps)


def test_no_single_step_is_left_over():
    assert fitted(127, 128) == 128
    assert fitted(100, 128) == 64
