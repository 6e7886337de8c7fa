"""Test whether a gain is the same at every level of a factor: at every width, at every depth.

    F = s²(gains of the k levels) / v,    v the variance of one level's gain, from replicates

Exactly equal gains follow F(k − 1, df).  Levels count as equal where no two are further apart than the margin, as two
arms do that a paper calls comparable.  Gains whose largest and smallest are r apart follow a noncentral F with
λ = Σ(gain − mean)²/v between r²/2v and r² ⌊k/2⌋⌈k/2⌉/kv; the interval of r holds the values that F doesn't exclude.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.intervals import Numbers, t_quantile, variance_of
from stages.verdicts.looks import complete_look, level, looks_from, looks_of_plan
from stages.verdicts.numerals import signed, with_interval
from stages.verdicts.value import too_few
from stages.verdicts.verdict import Sample, Status, Verdict

_LEAST = 1e-9
"""SciPy's noncentral F has negative probabilities where λ is 0."""


@dataclass(frozen=True, kw_only=True)
class UniformClaim:
    """A gain of `gain` at every level of `factor`; `is_whole`: every pair of the grid ran.

    The claim is about every pair, so some pairs can refute it, but only all of them can confirm it.
    """

    factor: str
    is_whole: bool
    gain: float
    margin: float
    better: Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True)
class Gains:
    """Gains [k] of the levels, and the variance of each, with its df; `spread` is that of one pair in one replicate."""

    values: np.ndarray
    spread: float
    variance: float
    df: int

    @property
    def f(self) -> float:
        return float(variance_of(self.values)) / self.variance

    @property
    def p(self) -> float:
        """p-value under exactly equal gains."""
        return float(scipy.stats.f.sf(self.f, self.values.size - 1, self.df))

    def range_interval(self, alpha: float) -> tuple[float, float]:
        """Interval of the distance between largest and smallest gain, erring with at most alpha on each side."""
        k = self.values.size
        low = _root(lambda r: float(p_apart(self.f, k, self.df, r**2 / self.variance)) - alpha, self.variance**0.5)
        high = _root(lambda r: alpha - float(p_alike(self.f, k, self.df, r**2 / self.variance)), self.variance**0.5)
        return low, high


def p_apart(f: Numbers, k: int, df: int, ratio: Numbers) -> Numbers:
    """Chance of an F this large or larger where no two of k levels are further apart than r; `ratio` = r²/v."""
    return _known(scipy.stats.ncf.sf(f, k - 1, df, np.maximum((k // 2) * (k - k // 2) / k * ratio, _LEAST)))


def p_alike(f: Numbers, k: int, df: int, ratio: Numbers) -> Numbers:
    """Chance of an F this small or smaller where two of k levels are r apart or further; `ratio` = r²/v."""
    return _known(scipy.stats.ncf.cdf(f, k - 1, df, np.maximum(ratio / 2, _LEAST)))


def _known(tail: Numbers) -> Numbers:
    """The tail with 0 for NaN: where SciPy's series doesn't converge, the tail is too small for it."""
    return np.nan_to_num(tail, nan=0.0)


def _root(rising: Callable[[float], float], step: float) -> float:
    """The root of a rising function on the positive numbers; 0 where it is never negative."""
    if rising(0.0) >= 0:
        return 0.0
    while rising(step) < 0:
        step *= 2
    return float(scipy.optimize.brentq(rising, 0.0, step, xtol=1e-9))


def judge_uniform(
    claim: UniformClaim,
    levels: Mapping[Any, Sequence[tuple[Sample, Sample]]],
    *,
    rules: Rules,
    replicates: int | None = None,
) -> Verdict:
    """Judge the claim by `levels`: the pairs (proposed, baseline) of each, equally many; their gains are averaged.

    Looks end with the planned `replicates`.
    """
    every = [pair for pairs in levels.values() for pair in pairs]
    shared = set.intersection(*(set(arm.indices) for pair in every for arm in pair))
    from_minimum = looks_from(rules.looks, rules.minimum)
    looks = looks_of_plan(from_minimum, replicates)
    n = complete_look(shared, looks)
    if n is None:
        return too_few(shared, min(from_minimum), Status.INCONCLUSIVE, replicates)
    n_diverged = sum(arm.among(range(n)).n_diverged for pair in every for arm in pair)
    if n_diverged:
        lost = f"{n_diverged} of the replicates diverged, so the levels aren't compared."
        return Verdict(status=Status.INCONCLUSIVE, explanation=lost, n=n, n_diverged=n_diverged)
    gains = measure_levels(claim, levels, n)
    if len(levels) < 2 or not gains.variance:
        few = f"Two levels of {claim.factor} with replicates that differ are needed."
        return Verdict(status=Status.INCONCLUSIVE, explanation=few, n=n)
    return _judge(claim, dict(zip(levels, gains.values.tolist(), strict=True)), gains, rules, looks, n)


def measure_levels(claim: UniformClaim, levels: Mapping[Any, Sequence[tuple[Sample, Sample]]], n: int) -> Gains:
    """Gains over the first `n` replicates; the variance of a replicate's gain is pooled over all pairs."""
    sign = 1.0 if claim.better == "higher" else -1.0
    values, variances = [], []
    for pairs in levels.values():
        arms = [[np.array(arm.among(range(n)).values) for arm in pair] for pair in pairs]
        values.append(fmean(sign * float(ours.mean() - theirs.mean()) for ours, theirs in arms))
        variances += [float(variance_of(ours) + variance_of(theirs)) for ours, theirs in arms]
    each = len(variances) // len(levels)
    return Gains(
        values=np.array(values),
        spread=fmean(variances) ** 0.5,
        variance=fmean(variances) / n / each,
        df=2 * (n - 1) * len(variances),
    )


def _judge(
    claim: UniformClaim, by_level: Mapping[Any, float], gains: Gains, rules: Rules, looks: Mapping[int, float], n: int
) -> Verdict:
    inner, outer = level(looks, n, rules.alpha_within), level(looks, n, rules.alpha_outside / 2)
    status, alpha, reason = Status.INCONCLUSIVE, inner, "neither within nor wholly outside"
    of_margin = gains.f, len(by_level), gains.df, claim.margin**2 / gains.variance
    if p_apart(*of_margin) < outer:
        status, alpha, reason = Status.NOT_REPRODUCED, outer, "wholly outside"
    elif p_alike(*of_margin) <= inner:
        status, reason = Status.REPRODUCED, "within"
        if not claim.is_whole:
            status, reason = Status.INCONCLUSIVE, "within, but it is said of every pair, and only some ran"
    spread = max(by_level.values()) - min(by_level.values())
    low, high = gains.range_interval(alpha)
    confidence = 1 - 2 * alpha
    half = float(t_quantile(gains.df, alpha / len(by_level))) * gains.variance**0.5
    outside = [str(at) for at, gain in by_level.items() if abs(gain - claim.gain) - half > claim.margin]
    beyond = f"; wholly outside {claim.gain:g} ± {claim.margin:g}: {', '.join(outside)}" if outside else ""
    listed = ", ".join(f"{at} {signed(gain)}" for at, gain in by_level.items())
    return Verdict(
        status=status,
        explanation=f"Largest − smallest gain over {claim.factor} (n = {n}) = "
        f"{with_interval(spread, low, high, confidence, claim.margin)}: {reason}. "
        f"By {claim.factor}, each ± {half:.2g} (together {100 * confidence:.3g} %): {listed}{beyond}. "
        f"Exactly alike: F({len(by_level) - 1}, {gains.df}) = {gains.f:.1f}, p = {gains.p:.2g}.",
        estimate=spread,
        low=low,
        high=high,
        confidence=confidence,
        margin=claim.margin,
        n=n,
        spread=gains.spread,
        p_value=gains.p,
    )
