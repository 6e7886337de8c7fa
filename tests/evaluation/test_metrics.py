from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve

from stages.evaluation.scores import (
    CALIBRATION_BINS,
    accuracy,
    confusion_matrix,
    correctness,
    cross_entropy,
    expected_calibration_error,
)

Scored = tuple[np.ndarray, np.ndarray]

# Four images, three classes: right at 0.8, wrong at 0.6, right at 0.5, wrong at 0.9.
PROBABILITIES = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.25, 0.25, 0.5], [0.05, 0.9, 0.05]])
LABELS = np.array([0, 1, 2, 2])


@st.composite
def scored(draw: st.DrawFn) -> Scored:
    """Float32 probabilities [n, K] and labels [n], classes without images and ties included."""
    n, classes = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    weights = draw(hnp.arrays(np.int64, (n, classes), elements=st.integers(0, 20))) + np.eye(classes, dtype=int)[0]
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32), labels


def test_hand_worked_accuracy() -> None:
    assert correctness(PROBABILITIES, LABELS).tolist() == [True, False, True, False]
    assert accuracy(PROBABILITIES, LABELS) == 0.5


def test_hand_worked_cross_entropy() -> None:
    expected = -(math.log(0.8) + math.log(0.3) + math.log(0.5) + math.log(0.05)) / 4
    assert cross_entropy(PROBABILITIES, LABELS) == pytest.approx(expected, rel=1e-12)


def test_hand_worked_calibration_error() -> None:
    # Bins of 1/15: 0.8 and 0.5 miss by 0.2 and 0.5 below their accuracy 1; 0.6 and 0.9 are above their accuracy 0.
    assert expected_calibration_error(PROBABILITIES, LABELS) == pytest.approx((0.2 + 0.6 + 0.5 + 0.9) / 4, rel=1e-12)


def test_hand_worked_calibration_error_within_one_bin() -> None:
    # Ten images at 0.7, seven of them right, are calibrated; with one bin the four above give |0.5 - 0.7|.
    probabilities = np.tile([0.7, 0.3], (10, 1))
    labels = np.array([0] * 7 + [1] * 3)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0, abs=1e-12)
    assert expected_calibration_error(PROBABILITIES, LABELS, bins=1) == pytest.approx(0.2, rel=1e-12)


def test_confidence_on_a_bin_edge_belongs_to_the_lower_bin() -> None:
    # (0, 1/2] holds the sure coin (right), (1/2, 1] the certain image (wrong).
    probabilities, labels = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])
    assert expected_calibration_error(probabilities, labels, bins=2) == pytest.approx((0.5 + 1.0) / 2, rel=1e-12)


def test_hand_worked_confusion() -> None:
    confusion = confusion_matrix(PROBABILITIES, LABELS)
    assert confusion.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 1]]


def test_a_probability_of_zero_costs_a_finite_loss() -> None:
    loss = cross_entropy(np.array([[1.0, 0.0]], dtype=np.float32), np.array([1]))
    assert loss == pytest.approx(126 * math.log(2), rel=1e-12)


def test_of_equal_probabilities_the_lowest_class_counts() -> None:
    assert correctness(np.full((1, 4), 0.25), np.array([0])).all()


@given(scored())
def test_metrics_equal_scikit_learn(arrays: Scored) -> None:
    probabilities, labels = arrays
    predicted, classes = probabilities.argmax(axis=1), range(probabilities.shape[1])
    assert accuracy(probabilities, labels) == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    confusion = confusion_matrix(probabilities, labels)
    assert np.array_equal(confusion, sklearn_metrics.confusion_matrix(labels, predicted, labels=classes))


def test_loss_and_calibration_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(10), size=500)
    labels = generator.integers(0, 10, size=500)
    by_sklearn = sklearn_metrics.log_loss(labels, probabilities, labels=range(10))
    assert cross_entropy(probabilities, labels) == pytest.approx(by_sklearn, rel=1e-12)

    correct, confidence = correctness(probabilities, labels), probabilities.max(axis=1)
    share_right, mean_confidence = calibration_curve(correct, confidence, n_bins=CALIBRATION_BINS)
    in_bin = np.histogram(confidence, bins=CALIBRATION_BINS, range=(0, 1))[0]
    by_sklearn = np.abs(share_right - mean_confidence) @ in_bin[in_bin > 0] / 500
    assert expected_calibration_error(probabilities, labels) == pytest.approx(by_sklearn, rel=1e-12)


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.ones((2, 2)) / 2, np.array([0]), r"shape \[2, 2\] and labels \[1\]"),
        (np.ones(2) / 2, np.array([0, 1]), r"expected \[n, K\]"),
        (np.ones((0, 2)), np.array([], dtype=int), "at least one image"),
        (np.ones((1, 2)) / 2, np.array([2]), "expected integers from 0 to 1"),
        (np.ones((1, 2)) / 2, np.array([-1]), "expected integers from 0 to 1"),
        (np.ones((1, 2)) / 2, np.array([0.0]), "expected integers"),
        (np.array([[0.5, 0.5], [3.0, -2.0]]), np.array([0, 0]), "row 1 of the probabilities"),
        (np.array([[2.0, 1.0]]), np.array([0]), "sum to 1"),
        (np.array([[np.nan, 1.0]]), np.array([0]), "row 0 of the probabilities"),
    ],
)
def test_arrays_that_are_no_scores_are_refused(probabilities: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accuracy(probabilities, labels)
