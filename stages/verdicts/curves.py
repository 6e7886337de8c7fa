"""Metrics of an arm as a whole, from the curves of its folds.

K folds, E epochs; an error curve is [K, E].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Curves = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ArmMetric:
    """`epoch` counts from 0; `folds` are the folds' own values there, whose mean is `value`."""

    value: float
    stderr: float
    epoch: int
    folds: tuple[float, ...]


def min_over_epochs(test_error: Curves) -> ArmMetric:
    """The lowest fold mean of any epoch and its standard error there (DAC, Tables 1 and 2).

    It chooses the epoch on the test set and so is lower than any epoch's expectation: compare it with its like only.
    """
    _check(test_error)
    means = test_error.mean(axis=0)
    epoch = int(np.argmin(means))
    folds = test_error[:, epoch]
    stderr = folds.std(ddof=1) / np.sqrt(folds.size)
    return ArmMetric(value=float(means[epoch]), stderr=float(stderr), epoch=epoch, folds=tuple(map(float, folds)))


def window_error(val_error: Curves, test_error: Curves, *, width: int = 5) -> ArmMetric:
    """Mean test error of all folds over `width` epochs around the best validation epoch m (DAC, Appendix B).

        Var = σ²/K + τ²/(K width),   σ² ≤ Σ_k (t_{k,m} − T)²/(K − 1),   τ²/K ≈ Σ_j (t_{*,m+j} − T)²/(width − 1)

    T is the mean of all cells, t_{*,j} that of epoch j.  The bound on σ² is taken for σ², as printed.
    """
    _check(val_error)
    _check(test_error)
    if val_error.shape != test_error.shape or width % 2 == 0 or not 1 < width <= test_error.shape[1]:
        shapes = f"{val_error.shape} and {test_error.shape}"
        raise ValueError(f"curves are {shapes}, the window {width}; expected equal shapes and an odd window in them")
    half = width // 2
    windows = np.lib.stride_tricks.sliding_window_view(val_error.mean(axis=0), width)
    epoch = int(np.argmin(windows.mean(axis=1))) + half
    cells = test_error[:, epoch - half : epoch + half + 1]
    folds, value = cells.shape[0], cells.mean()
    over_folds = np.square(test_error[:, epoch] - value).sum() / (folds - 1)
    over_epochs = np.square(cells.mean(axis=0) - value).sum() / (width - 1)
    return ArmMetric(
        value=float(value),
        stderr=float(np.sqrt(over_folds / folds + over_epochs / width)),
        epoch=epoch,
        folds=tuple(map(float, cells.mean(axis=1))),
    )


def jackknife(statistic: Callable[..., float], *curves: Curves) -> tuple[float, float]:
    """Estimate less its bias, and its standard error, by leaving out one fold at a time (Efron 1982).

    For a statistic that chooses its epoch anew without the fold, so that the choice is part of the error.
    """
    for curve in curves:
        _check(curve)
    K = curves[0].shape[0]
    whole = statistic(*curves)
    without = np.array([statistic(*(np.delete(curve, k, axis=0) for curve in curves)) for k in range(K)])
    stderr = np.sqrt((K - 1) / K * np.square(without - without.mean()).sum())
    return float(K * whole - (K - 1) * without.mean()), float(stderr)


def _check(curves: Curves) -> None:
    if curves.ndim != 2 or curves.shape[0] < 2:
        raise ValueError(f"curves have shape {curves.shape}; expected [folds, epochs] with two folds or more")
    gaps = np.argwhere(~np.isfinite(curves))
    if gaps.size:
        raise ValueError(f"fold {gaps[0][0]} has no finite error at epoch {gaps[0][1]}; leave diverged folds out")
