"""What a verdict would be by any other margin, and the chance that the truth lies within the margin in use.

The chance is Bayesian, with a flat prior: given the data, (δ − D)/SE has Student's t, so

    P(|δ| ≤ margin) = T((margin − D)/SE) − T((−margin − D)/SE)

It decides nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import scipy

from stages.verdicts.intervals import Numbers
from stages.verdicts.verdict import Status, Stretch

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
    """P(|δ| ≤ margin | data) if left-out rows move the difference away from 0 by `widening`; None without variance."""
    if not variance:
        return None
    away, scale = abs(difference) + widening, math.sqrt(variance)
    return chance_below((margin - away) / scale, df) - chance_below((-margin - away) / scale, df)


def chance_below(t: float, df: Numbers) -> float:
    """Student's distribution function; with infinite df, the normal one."""
    return float(scipy.special.ndtr(t) if math.isinf(df) else scipy.special.stdtr(df, t))
