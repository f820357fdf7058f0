"""Pure: scores of predictions against the truth, and those of the baseline that knows no inputs."""

import math
from collections import Counter
from collections.abc import Sequence

SMALLEST = 1e-15
"""Probabilities are cut here before the logarithm, as is usual: one sure mistake must not make the mean infinite."""

Scores = dict[str, float]


def log_loss(of_truth: Sequence[float]) -> float:
    """Mean negative natural logarithm of the probability that each row's true class was given."""
    return math.fsum(-math.log(max(p, SMALLEST)) for p in of_truth) / len(of_truth)


def accuracy(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """Part of the rows whose class was predicted."""
    return sum(a == b for a, b in zip(predicted, truth, strict=True)) / len(truth)


def auc(scores: Sequence[float], truth: Sequence[int]) -> float | None:
    """Area under the ROC curve, exact: the chance that a positive row (1) scores above a negative one (0).

    Ties count half (the Mann-Whitney statistic over mean ranks). None when only one class occurs.
    """
    positives = sum(truth)
    negatives = len(truth) - positives
    if not positives or not negatives:
        return None
    order = sorted(range(len(scores)), key=scores.__getitem__)
    ranks = 0.0
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        mean_rank = (start + 1 + end) / 2
        ranks += mean_rank * sum(truth[i] for i in order[start:end])
        start = end
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def rmse(predicted: Sequence[float], truth: Sequence[float]) -> float:
    """Root of the mean squared error, in the target's unit."""
    return math.sqrt(_squares(predicted, truth) / len(truth))


def r2(predicted: Sequence[float], truth: Sequence[float]) -> float | None:
    """1 - squared error over that of the truth's own mean; None when the truth doesn't vary."""
    mean = math.fsum(truth) / len(truth)
    spread = _squares([mean] * len(truth), truth)
    return 1 - _squares(predicted, truth) / spread if spread else None


def _squares(predicted: Sequence[float], truth: Sequence[float]) -> float:
    return math.fsum((a - b) * (a - b) for a, b in zip(predicted, truth, strict=True))


def class_scores(probabilities: Sequence[Sequence[float]], truth: Sequence[int]) -> Scores:
    """log_loss and accuracy, and with two classes auc, of each row's probabilities of all classes."""
    predicted = [max(range(len(row)), key=row.__getitem__) for row in probabilities]
    of_truth = [row[label] for row, label in zip(probabilities, truth, strict=True)]
    scores = {"log_loss": log_loss(of_truth), "accuracy": accuracy(predicted, truth)}
    area = auc([row[1] for row in probabilities], truth) if len(probabilities[0]) == 2 else None
    return scores if area is None else scores | {"auc": area}


def value_scores(predicted: Sequence[float], truth: Sequence[float]) -> Scores:
    """rmse and r2."""
    scores = {"rmse": rmse(predicted, truth)}
    explained = r2(predicted, truth)
    return scores if explained is None else scores | {"r2": explained}


def class_baseline(train: Sequence[int], truth: Sequence[int], classes: int) -> Scores:
    """Scores of predicting the training rows' class frequencies for every row."""
    counts = Counter(train)
    frequencies = [counts[label] / len(train) for label in range(classes)]
    return class_scores([frequencies] * len(truth), truth)


def value_baseline(mean: float, truth: Sequence[float]) -> Scores:
    """Scores of predicting the training rows' mean for every row."""
    return value_scores([mean] * len(truth), truth)
