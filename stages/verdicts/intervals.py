"""Intervals of a mean, of a difference of means and of a proportion; means work on numbers and on arrays of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

# A number or an array of numbers.
Numbers = Any


def t_quantile(df: Numbers, alpha: Numbers) -> Numbers:
    """The point that Student's t exceeds with probability alpha; with infinite df, the normal distribution's."""
    finite = scipy.special.stdtrit(np.where(np.isinf(df), 1.0, df), 1 - np.asarray(alpha))
    return np.where(np.isinf(df), scipy.special.ndtri(1 - np.asarray(alpha)), finite)


def half_width(variance: Numbers, df: Numbers, alpha: Numbers) -> Numbers:
    """Half-width of the interval that errs with probability alpha on each side."""
    return t_quantile(df, alpha) * np.sqrt(variance)


def wilson(fraction: float, n: float, alpha: float) -> tuple[float, float]:
    """Wilson's score interval of a fraction seen in n draws; errs with probability alpha on each side (Wilson 1927)."""
    z = float(scipy.special.ndtri(1 - alpha))
    centre = (fraction + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n))
    return centre - half, centre + half


def combine(parts: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    """Variance and degrees of freedom of a sum of independent parts (variance, df) (Welch–Satterthwaite)."""
    total = sum(variance for variance, _ in parts)
    spread = sum(np.square(variance) / df for variance, df in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        return total, np.where(spread > 0, np.square(total) / np.where(spread > 0, spread, 1.0), np.inf)


def variance_of(draws: Numbers) -> Numbers:
    """Sample variance over the last axis; 0 where equal draws differ by rounding only."""
    variance = np.var(draws, axis=-1, ddof=1)
    return np.where(np.sqrt(variance) <= 1e-12 * np.max(np.abs(draws), axis=-1), 0.0, variance)


def is_within(difference: Numbers, half: Numbers, margin: Numbers) -> Numbers:
    """Two one-sided tests: True where the whole interval lies within ± margin."""
    return np.abs(difference) + half <= margin


def is_outside(difference: Numbers, half: Numbers, margin: Numbers) -> Numbers:
    """True where the whole interval lies above + margin, or all of it below − margin."""
    return np.abs(difference) - half > margin
