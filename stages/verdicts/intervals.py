"""Intervals of a mean, of a difference of means and of a proportion; means work on numbers and on arrays of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy

from stages.verdicts.verdict import Prediction, Status, Stretch

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


_DOUBLINGS = 60
"""No margin beyond so many doublings of the first guess is looked for."""


def by_margin(flips: Iterable[float], status_at: Callable[[float], Status]) -> tuple[Stretch, ...]:
    """The status by every margin, given the margins at which it may change; empty if it never does."""
    starts = sorted({0.0, *(float(flip) for flip in flips if 0 < flip < math.inf)})
    inside = [*((low + high) / 2 for low, high in itertools.pairwise(starts)), 2 * starts[-1] or 1.0]
    found = [Stretch(start=start, status=status_at(at)) for start, at in zip(starts, inside, strict=True)]
    changes = [found[0], *(one for before, one in itertools.pairwise(found) if one.status is not before.status)]
    return tuple(changes) if len(changes) > 1 else ()


def root(rising: Callable[[float], float], step: float) -> float:
    """The root of a rising function on the positive numbers; 0 if it is never negative, infinite if it never rises."""
    if rising(0.0) >= 0:
        return 0.0
    for _ in range(_DOUBLINGS):
        if rising(step) >= 0:
            return float(scipy.optimize.brentq(rising, 0.0, step, xtol=1e-9))
        step *= 2
    return math.inf


def chance_within(difference: float, margin: float, variance: Numbers, df: Numbers, widening: float) -> float | None:
    """P(|δ| ≤ margin) with a flat prior: (δ − D)/SE has Student's t.  None without variance; it decides nothing.

    Left-out rows move the difference away from 0 by `widening`.
    """
    if not variance:
        return None
    away, scale = abs(difference) + widening, math.sqrt(variance)
    return chance_below((margin - away) / scale, df) - chance_below((-margin - away) / scale, df)


def chance_below(t: float, df: Numbers) -> float:
    """Student's distribution function; with infinite df, the normal one."""
    return float(scipy.special.ndtr(t) if math.isinf(df) else scipy.special.stdtr(df, t))


def predict(
    ours: float, printed: float, *, variance: float, df: float, alpha: float, widening: float = 0.0
) -> Prediction | None:
    """The interval of the paper's own rerun, by our replicates; None if the `variance` is 0: the spread is unknown.

    ours ± t_{1 − α/2} √(s²/n + s²/m)        if the paper ran m times; m = 1 if it doesn't say
    ours ± t_{1 − α/2} √(s²/n + stderr²)     if it prints its error

    `variance` is that of ours − paper for the same procedure (Patil, Peng and Leek 2016; Spence and Stanley 2016).  It
    decides nothing: a wide interval holds any number.  α isn't shared among looks.
    """
    if not variance:
        return None
    half = float(half_width(variance, df, alpha / 2)) + widening
    return Prediction(low=ours - half, high=ours + half, confidence=1 - alpha, holds=bool(abs(ours - printed) <= half))
