"""Intervals of means, of differences of means and of proportions; and interim analyses with their shares of α.

Functions on means accept numbers and arrays.

Testing after every replicate until the result looks good inflates the error rate.  So evidence is judged only at
planned numbers of replicates, in the planned order, and the analyses share α: whichever one stops, the error of all
together is at most the sum of their shares, for any distribution.  An analysis that the plan never reaches would waste
its share, so the last one is at the plan's end (decision 0029).

A grid whose pairs arrive one after another is judged again with each arrival, which inflates the error rate, too.  So
the parts of a grid share α, too: the whole grid has most of it, and the rest is split evenly over all possible parts.
Each arrival adds a pair, so a grid of p pairs has at most p − 1 parts before it is whole, in any order of arrival.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.verdict import Prediction, Status, Stretch

Numbers = Any
"""A number or an array of numbers."""


def t_quantile(df: Numbers, alpha: Numbers) -> Numbers:
    """Return the point that Student's t exceeds with probability alpha; with infinite df, the normal's point."""
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
    """Sample variance over the last axis; 0 if equal draws differ by rounding only."""
    variance = np.var(draws, axis=-1, ddof=1)
    return np.where(np.sqrt(variance) <= 1e-12 * np.max(np.abs(draws), axis=-1), 0.0, variance)


_DOUBLINGS = 60
"""Doublings of the first guess after which no root is expected any more."""


def by_margin(flips: Iterable[float], status_at: Callable[[float], Status]) -> tuple[Stretch, ...]:
    """Return the status at every margin, given the margins at which it may change; empty if it never does."""
    starts = sorted({0.0, *(float(flip) for flip in flips if 0 < flip < math.inf)})
    inside = [*((low + high) / 2 for low, high in itertools.pairwise(starts)), 2 * starts[-1] or 1.0]
    found = [Stretch(start=start, status=status_at(at)) for start, at in zip(starts, inside, strict=True)]
    changes = [found[0], *(one for before, one in itertools.pairwise(found) if one.status is not before.status)]
    return tuple(changes) if len(changes) > 1 else ()


def root(rising: Callable[[float], float], step: float) -> float:
    """Return the root of a rising function at positive numbers; 0 if it is never negative, infinite if always."""
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
    """Predict the interval of the paper's own rerun from our replicates; None if `variance` is 0, so unknown.

    ours ± t_{1 − α/2} √(s²/n + s²/m)        if the paper ran m times; m = 1 if it doesn't say
    ours ± t_{1 − α/2} √(s²/n + stderr²)     if it prints its error

    `variance` is that of ours − paper for the same procedure (Patil, Peng and Leek 2016; Spence and Stanley 2016).  It
    decides nothing: a wide interval contains any number.  α isn't shared among analyses.
    """
    if not variance:
        return None
    half = float(half_width(variance, df, alpha / 2)) + widening
    return Prediction(low=ours - half, high=ours + half, confidence=1 - alpha, holds=bool(abs(ours - printed) <= half))


Looks = Mapping[int, float]
"""Interim analyses: {number of replicates: share of α}, in rising order; the shares sum to 1."""
OF_WHOLE_GRID = 0.8
"""Share of α that is left for the whole grid."""


class UnplannedLook(ValueError):
    """No analysis is planned at this number of replicates."""


def spend_all(looks: Looks) -> bool:
    """True if each of several analyses has all of α, because its interval holds at all of them (`rules.ANYTIME`)."""
    return len(looks) > 1 and min(looks.values()) == 1


def looks_from(looks: Looks, minimum: int) -> dict[int, float]:
    """Return the analyses with enough replicates; they also share what the earlier ones would have spent."""
    enough = {n: share for n, share in looks.items() if n >= minimum}
    if spend_all(looks):
        return enough
    return {n: share / sum(enough.values()) for n, share in enough.items()}


def looks_of_numbers(rules: Rules, *, is_error_printed: bool = False) -> dict[int, float]:
    """Return the analyses that can judge a number, which takes fewer replicates if the paper prints its error."""
    return looks_from(rules.looks, rules.minimum_with_error if is_error_printed else rules.minimum)


def looks_of_plan(looks: Looks, planned: int | None) -> dict[int, float]:
    """Return the analyses of a plan of this many replicates: those that it reaches, the last one at its end.

    The first analysis that it doesn't reach moves to its end, unless one is there already; later ones are dropped, and
    all shares grow in proportion until they add up to α.  A plan shorter than the first analysis has none; one that
    goes on after the last, or None, changes nothing.

    {3: 0.2, 5: 0.4, 10: 0.4} is {3: 1/3, 5: 2/3} with a plan of 5 and {3: 0.2, 5: 0.4, 7: 0.4} with one of 7.
    """
    if planned is None or planned >= max(looks, default=0) or spend_all(looks):
        return dict(looks)
    reached = {n: share for n, share in looks.items() if n <= planned}
    if reached:
        reached.setdefault(planned, next(share for n, share in looks.items() if n > planned))
    return {n: share / sum(reached.values()) for n, share in reached.items()}


def looks_of_part(looks: Looks, ran: int, planned: int) -> dict[int, float]:
    """Return the analyses of a part of a grid, in which `ran` of the `planned` pairs ran, and their shares of α."""
    part = 1.0
    if planned > 1:
        part = OF_WHOLE_GRID if ran >= planned else (1 - OF_WHOLE_GRID) / (planned - 1)
    return {n: share * part for n, share in looks.items()}


def level(looks: Looks, n: int, alpha: float) -> float:
    """Return the level of the test at n replicates, if all analyses together spend `alpha`.

    Raises:
        UnplannedLook: no analysis is planned there.
    """
    if n not in looks:
        raise UnplannedLook(f"{n} replicates are not a planned analysis; planned: {', '.join(map(str, looks))}")
    return alpha * looks[n]


def complete_look(indices: Iterable[int], looks: Looks) -> int | None:
    """Return the last analysis whose replicates 0 … n − 1 are all available; later replicates wait for the next."""
    present = set(indices)
    return max((n for n in looks if present.issuperset(range(n))), default=None)


MOST = 1000
"""Largest number of replicates that a forecast considers."""
NEVER = 10**12
"""Number of replicates at which only the paper's own error remains."""
Decides = Callable[[Numbers, Numbers], Numbers]
"""(replicates, share of α) -> whether that decides, elementwise."""


def expected_replicates(decides: Decides, n: int, looks: Looks) -> int | None:
    """Return the first later analysis that decides, else the first number beyond the plan up to `MOST`, else None."""
    last = max(looks)
    candidates = np.array([*(look for look in looks if look > n), *range(last + 1, MOST + 1)])
    shares = np.array([looks.get(int(candidate), looks[last]) for candidate in candidates])
    hit = decides(candidates.astype(float), shares)
    return int(candidates[np.argmax(hit)]) if np.any(hit) else None


def say_expected(expected: int | None, looks: Looks) -> str:
    """Describe `expected_replicates` in words."""
    beyond = f", but the last analysis is at {max(looks)}" if expected is None or expected > max(looks) else ""
    return f"{expected or f'more than {MOST}'} replicates are expected to decide{beyond}"


_MORE = 6
"""Decimals that an interval may have beyond those of its half-width; ends that are nearer to a limit print as it."""


def signed(number: float) -> str:
    """Format with three significant digits: −0.0358, +0.25."""
    return _minus(f"{number:+.3g}")


def in_percent(confidence: float) -> str:
    """Format with as many digits as keep it below 100: 95 %, 96.7 %, 99.98 %."""
    digits = max(1, -math.floor(math.log10(100 * (1 - confidence))))
    return f"{100 * confidence:.{digits}f}".removesuffix(".0") + " %"


class IntervalEstimate(NamedTuple):
    """An estimate with its interval; the names are those of a verdict's fields."""

    estimate: float
    low: float
    high: float
    confidence: float

    @classmethod
    def around(cls, estimate: float, half: float, alpha: float) -> IntervalEstimate:
        """Return the interval that errs with probability alpha on each side."""
        return cls(estimate, estimate - half, estimate + half, 1 - 2 * alpha)


def with_interval(estimate: float, low: float, high: float, confidence: float, margin: float | None = None) -> str:
    """Format to two digits of the interval's half-width, or to three digits of the numbers if it has none.

    The interval is compared with ± `margin`, or with 0 if there is no margin: its ends get enough digits to be distinct
    from these, and the margin is at least as precise as they are.

    +0.214, 98 % interval +0.168 to +0.260
    """
    half, numbers = (high - low) / 2, (estimate, low, high)
    if half == math.inf:
        return f"{signed(estimate)}, no {in_percent(confidence)} interval yet"
    decimals = None
    if half > 0:
        fewest = max(0, 1 - math.floor(math.log10(half)))
        limits = (0.0,) if margin is None else (-margin, margin)
        ends = [(end, limit) for end in (low, high) for limit in limits if end != limit]
        for more in range(fewest, fewest + _MORE):
            if all(f"{abs(end):.{more}f}" != f"{abs(limit):.{more}f}" for end, limit in ends):
                decimals = more
                break
        else:
            decimals = fewest
    middle, below, above = (
        signed(number) if decimals is None else _minus(f"{number:+.{decimals}f}") for number in numbers
    )
    sentence = f"{middle}, {in_percent(confidence)} interval {below} to {above}"
    if margin is None:
        return sentence
    digits = math.floor(math.log10(margin)) + 1 if margin > 0 else 0
    return f"{sentence}, margin ±{margin:.{max(3, digits + (decimals or 0))}g}"


def _minus(text: str) -> str:
    return text.replace("-", "−")
