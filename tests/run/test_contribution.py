"""What each node adds, from measured parts of a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daisychain.run.contribution import Part, advice, contributions

FOUR_TWO_ONE = {"head": Part(400, 1.0), "mid": Part(200, 1.0), "old": Part(100, 1.0)}


def test_without_an_exchange_every_node_adds_its_speed() -> None:
    added = contributions(FOUR_TWO_ONE, 0.0)
    assert added == {
        "head": pytest.approx(7 / 3 - 1), "mid": pytest.approx(7 / 5 - 1), "old": pytest.approx(7 / 6 - 1)
    }  # fmt: skip
    assert advice(added) == ""


def test_unequal_waiting_is_no_contribution() -> None:
    """Shares that aren't balanced yet: what counts is the speed."""
    lagging = {"head": Part(400, 1.0), "old": Part(100, 2.0)}
    assert contributions(lagging, 0.0)["old"] == pytest.approx(450 / 400 - 1)


def test_a_slow_exchange_makes_a_small_node_a_burden() -> None:
    added = contributions(FOUR_TWO_ONE, 3.0)
    # ring of three: 4/3 of the bytes at 3 s; of two: 1
    assert added["old"] == pytest.approx((7 / 6 + 2.25) / 4 - 1)
    assert added["old"] < 0
    assert advice(added) == "old slows the run down: without it, it would be 17% faster. Next time: --nodes head,mid"


def test_the_last_other_node_takes_the_exchange_with_it() -> None:
    added = contributions({"head": Part(400, 1.0), "old": Part(100, 1.0)}, 1.0)
    assert added["old"] == pytest.approx(1.25 / 2 - 1)
    assert advice(added).endswith("--nodes head")


def test_a_loss_within_what_is_measured_is_not_worth_a_word() -> None:
    assert advice({"head": 0.5, "old": -0.01}) == ""
    assert "old" in advice({"head": 0.5, "old": -0.02})


def test_one_node_alone_adds_nothing_to_others() -> None:
    assert contributions({"head": Part(400, 1.0), "lent": Part(0, 0.0)}, 0.0) == {}
    assert advice({}) == ""


PART = st.builds(Part, st.integers(0, 5000), st.floats(0.001, 100))


@given(st.dictionaries(st.sampled_from("abcdef"), PART), st.floats(0, 100), st.floats(0, 100))
def test_more_exchange_never_makes_a_node_of_three_look_better_than_computing_alone(parts, sync_s, more_s) -> None:
    before, after = contributions(parts, sync_s), contributions(parts, sync_s + more_s)
    assert set(before) == set(after)
    for name, added in before.items():
        assert after[name] <= added + 1e-9
        assert added > -1
