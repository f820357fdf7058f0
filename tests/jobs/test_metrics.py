"""Scores against values computed by hand."""

import itertools
import math
import random

import pytest

from daisychain.jobs.tabular import metrics as m


@pytest.mark.parametrize(
    ("scores", "truth", "area"),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 1.0),
        ([0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1], 0.0),
        ([0.5, 0.5, 0.5], [0, 1, 0], 0.5),
        ([0.5, 0.5, 0.7], [0, 1, 0], 0.25),
        ([0.5, 0.7], [1, 1], None),
    ],
)
def test_auc(scores, truth, area):
    assert m.auc(scores, truth) == area


def test_auc_is_the_chance_of_ranking_a_pair_right():
    dice = random.Random(3)
    scores = [dice.randrange(8) / 8 for _ in range(60)]
    truth = [dice.randrange(2) for _ in range(60)]
    ones = [s for s, t in zip(scores, truth, strict=True) if t]
    zeros = [s for s, t in zip(scores, truth, strict=True) if not t]
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(ones, zeros)]
    assert m.auc(scores, truth) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_log_loss_and_accuracy():
    assert m.log_loss([0.5, 0.25]) == pytest.approx(1.5 * math.log(2))
    assert m.log_loss([0.0]) == pytest.approx(-math.log(1e-15))
    assert m.accuracy([1, 0, 2, 2], [1, 1, 2, 0]) == 0.5


def test_regression():
    truth = [1.0, 2.0, 3.0, 6.0]
    predicted = [1.0, 2.0, 5.0, 6.0]
    assert m.rmse(predicted, truth) == 1.0
    assert m.r2(predicted, truth) == pytest.approx(1 - 4 / 14)
    assert m.r2([3.0, 3.0], [5.0, 5.0]) is None
    assert m.value_baseline(3.0, truth) == {"rmse": pytest.approx(math.sqrt(3.5)), "r2": 0.0}


def test_class_baseline_knows_the_training_frequencies_only():
    scores = m.class_baseline([0, 0, 0, 1], [0, 1], 2)
    assert scores == {
        "log_loss": pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2),
        "accuracy": 0.5,
        "auc": 0.5,
    }


def test_three_classes_have_no_auc():
    assert set(m.class_scores([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], [2, 1])) == {"log_loss", "accuracy"}
