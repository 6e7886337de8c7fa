"""Metrics of an arm as a whole, from the curves of its folds.

K folds, E epochs; an error curve is [K, E].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stages.verdicts.intervals import half_width, variance_of

Curves = NDArray[np.float64]
ARM_METRICS = ("min_error", "window_error")
_WINDOW = 5


class NoCurves(LookupError):
    """The runs of an arm lack the curves or errors that a metric needs; the message says which."""


class ObservedEpoch(Protocol):
    """An epoch of a run; an accuracy is None if it wasn't measured."""

    @property
    def epoch(self) -> int: ...
    @property
    def val_accuracy(self) -> float | None: ...
    @property
    def test_accuracy(self) -> float | None: ...


@dataclass(frozen=True, kw_only=True)
class ArmMeasurement:
    """`epoch` counts from 0; `stderr` is the paper's, None with one fold; `folds` are the folds' `pseudo_values`.

    The mean of `folds` is `value`, and their standard error that of the jackknife, which chooses the epoch again
    without each fold, so that the choice is part of the error.
    """

    value: float
    stderr: float | None
    epoch: int
    folds: tuple[float, ...]

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return `value`'s interval by Student's t over `folds`; unlike `stderr`, it includes the epoch's choice."""
        K = len(self.folds)
        half = float(half_width(variance_of(np.array(self.folds)) / K, K - 1, (1 - confidence) / 2))
        return self.value - half, self.value + half


def arm_metric(name: str, runs: Sequence[Sequence[ObservedEpoch]]) -> ArmMeasurement:
    """Compute one of `ARM_METRICS` from the epochs of an arm's runs, one run per fold; an error is 1 − accuracy.

    `epoch` is the epoch's number in the curves.  Curves are cut to the length of the shortest.

    Raises:
        NoCurves: a run lacks the errors that the metric needs.
    """
    test = _errors(name, runs, "test_accuracy")
    if name == "min_error":
        metric = min_over_epochs(test)
    else:
        val = _errors(name, runs, "val_accuracy")
        if min(val.shape[1], test.shape[1]) < _WINDOW:
            raise NoCurves(f"{name} looks at five epochs, and a run has fewer")
        metric = window_error(val[:, : test.shape[1]], test[:, : val.shape[1]], width=_WINDOW)
    numbers = [row.epoch for row in runs[0] if row.test_accuracy is not None]
    return replace(metric, epoch=numbers[metric.epoch])


def _errors(name: str, runs: Sequence[Sequence[ObservedEpoch]], which: str) -> Curves:
    curves = [[1 - value for row in rows if (value := getattr(row, which)) is not None] for rows in runs]
    shortest = min(map(len, curves))
    if not shortest:
        raise NoCurves(f"{name} needs {which.partition('_')[0]} curves, and a run has none")
    return np.array([curve[:shortest] for curve in curves])


def min_over_epochs(test_error: Curves) -> ArmMeasurement:
    """Return the lowest mean over folds of any epoch, and its standard error there (DAC, Tables 1 and 2).

    It chooses the epoch on the test set, so it is lower than any epoch's expectation: compare it with no other metric.
    """
    _check(test_error)
    epoch = int(np.argmin(test_error.mean(axis=0)))
    at_epoch = test_error[:, epoch]
    return ArmMeasurement(
        value=float(at_epoch.mean()),
        stderr=float(at_epoch.std(ddof=1) / np.sqrt(at_epoch.size)) if at_epoch.size > 1 else None,
        epoch=epoch,
        folds=pseudo_values(lambda errors: float(errors.mean(axis=0).min()), test_error),
    )


def window_error(val_error: Curves, test_error: Curves, *, width: int = _WINDOW) -> ArmMeasurement:
    """Return the mean test error of all folds over `width` epochs around the best validation epoch m (DAC, Appendix B).

        Var = σ²/K + τ²/(K width),   σ² ≤ Σ_k (t_{k,m} − T)²/(K − 1),   τ²/K ≈ Σ_j (t_{*,m+j} − T)²/(width − 1)

    T is the mean of all cells, t_{*,j} that of epoch j.  The bound on σ² is used as σ², as printed.
    """

    def mean_of_window(val_error: Curves, test_error: Curves) -> float:
        start = _best_window(val_error, width)
        return float(test_error[:, start : start + width].mean())

    _check(val_error)
    _check(test_error)
    if val_error.shape != test_error.shape or width % 2 == 0 or not 1 < width <= test_error.shape[1]:
        shapes = f"{val_error.shape} and {test_error.shape}"
        raise ValueError(f"curves are {shapes}, the window {width}; expected equal shapes and an odd window in them")
    start = _best_window(val_error, width)
    epoch = start + width // 2
    cells = test_error[:, start : start + width]
    folds, value = cells.shape[0], cells.mean()
    stderr = None
    if folds > 1:
        over_folds = np.square(test_error[:, epoch] - value).sum() / (folds - 1)
        over_epochs = np.square(cells.mean(axis=0) - value).sum() / (width - 1)
        stderr = float(np.sqrt(over_folds / folds + over_epochs / width))
    return ArmMeasurement(
        value=float(value),
        stderr=stderr,
        epoch=epoch,
        folds=pseudo_values(mean_of_window, val_error, test_error),
    )


def _best_window(val_error: Curves, width: int) -> int:
    """Return the first epoch of the window with the lowest mean over folds."""
    windows = np.lib.stride_tricks.sliding_window_view(val_error.mean(axis=0), width)
    return int(np.argmin(windows.mean(axis=1)))


def pseudo_values(statistic: Callable[..., float], *curves: Curves) -> tuple[float, ...]:
    """Return each fold's share in a joint statistic, by leaving out one fold at a time (Efron 1982).

        p_k = θ + (K − 1)(mean_l θ_(l) − θ_(k)),   θ_(k) without fold k

    They replace the folds' values if a statistic isn't their mean, and equal them if it is.  Tukey's pseudo-values have
    the mean Kθ − (K − 1) mean_l θ_(l), with less bias; these keep θ's bias, which the paper's number has, too.
    A single fold's value is the statistic itself.
    """
    K = curves[0].shape[0]
    whole = statistic(*curves)
    if K == 1:
        return (whole,)
    without = np.array([statistic(*(np.delete(curve, k, axis=0) for curve in curves)) for k in range(K)])
    return tuple(map(float, whole + (K - 1) * (without.mean() - without)))


def _check(curves: Curves) -> None:
    if curves.ndim != 2 or not curves.size:
        raise ValueError(f"curves have shape {curves.shape}; expected [folds, epochs], one or more of each")
    gaps = np.argwhere(~np.isfinite(curves))
    if gaps.size:
        raise ValueError(f"fold {gaps[0][0]} has no finite error at epoch {gaps[0][1]}; leave diverged folds out")
