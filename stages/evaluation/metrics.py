"""Metrics of a classifier: pure functions of arrays.

n images, K classes.  `probabilities` [n, K] are a predictor's, each row summing to 1; `labels` [n] are the true
classes, integers in [0, K).  Every function refuses arrays that break this with a ValueError.
"""

from __future__ import annotations

import numpy as np

CALIBRATION_BINS = 15
"""Guo et al. 2017, section 5."""

SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
"""Where float32 underflows: a probability below it counts as this much in a logarithm, so a loss stays finite."""


def correctness(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Per image: is the most probable class the true one?  Ties go to the lowest class.  bool [n]."""
    _check(probabilities, labels)
    return probabilities.argmax(axis=1) == labels


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose most probable class is the true one, in [0, 1]."""
    return float(correctness(probabilities, labels).mean())


def cross_entropy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean of -ln p(true class) in nats, summed in float64; probabilities clipped below at `SMALLEST_PROBABILITY`."""
    _check(probabilities, labels)
    of_true_class = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(of_true_class.clip(min=SMALLEST_PROBABILITY)).mean() + 0.0)  # + 0.0: never minus zero


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = CALIBRATION_BINS) -> float:
    """Σ_m |B_m| / n · |acc(B_m) - conf(B_m)|, in [0, 1]  (Guo et al. 2017, eq. 3).

    B_m holds the images whose confidence, their largest probability, lies in ((m - 1) / bins, m / bins].
    """
    correct = correctness(probabilities, labels)
    confidence = probabilities.max(axis=1).astype(np.float64)
    bin_of = np.digitize(confidence, np.linspace(0, 1, bins + 1)[1:-1], right=True)
    surplus = np.bincount(bin_of, weights=confidence - correct, minlength=bins)  # |B_m| · (conf - acc)
    return float(np.abs(surplus).sum() / len(labels))


def confusion_matrix(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts of images, true class by most probable class.  int64 [K, K]."""
    _check(probabilities, labels)
    classes = probabilities.shape[1]
    cells = labels.astype(np.int64) * classes + probabilities.argmax(axis=1)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def _check(probabilities: np.ndarray, labels: np.ndarray) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        raise ValueError(
            f"probabilities have shape {list(probabilities.shape)} and labels {list(labels.shape)}; "
            "expected [n, K] and [n] with at least one image"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= probabilities.shape[1]:
        raise ValueError(
            f"labels are {labels.dtype} from {labels.min()} to {labels.max()}; "
            f"expected integers from 0 to {probabilities.shape[1] - 1}"
        )
    is_distribution = (probabilities >= 0).all(axis=1) & np.isclose(probabilities.sum(axis=1), 1, rtol=0, atol=1e-3)
    if not is_distribution.all():
        row = int(np.flatnonzero(~is_distribution)[0])
        raise ValueError(f"row {row} of the probabilities is {probabilities[row]}; expected values >= 0 that sum to 1")
