"""Test whether a gain is the same at every level of a factor: at every width, at every depth.

    F = s²(gains of the k levels) / v,    v = MS(level × others)/l,    df = (k − 1)(l − 1)

A level's gain is its mean over the l combinations of the other factors: a width's, over the depths.  The error of such
a mean is the interaction: how much the gains of a level differ from one depth to another, beyond what is common to all
levels of that depth.  It contains the error of the seeds, so it is taken to be at least that.  Seeds alone would take
the depths as fixed, although a paper that says "5 to 16 layers" may have run others; so the interaction is the error of
the whole planned grid, too.

Exactly equal gains follow F(k − 1, df).  Levels count as equal if no two are further apart than the margin, as two
arms do that a paper calls comparable.  Gains whose largest and smallest are r apart follow a noncentral F with
λ = Σ(gain − mean)²/v between r²/2v and r² ⌊k/2⌋⌈k/2⌉/kv; the interval of r holds the values that F doesn't exclude.

The means are those of the whole grid, so the claim is judged once, when every pair has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.intervals import Numbers, t_quantile, variance_of
from stages.verdicts.looks import complete_look, level, looks_from, looks_of_plan
from stages.verdicts.numerals import in_percent, signed, with_interval
from stages.verdicts.value import too_few
from stages.verdicts.verdict import Sample, Status, Verdict

_LEAST = 1e-9
"""SciPy's noncentral F has negative probabilities where λ is 0."""


@dataclass(frozen=True, kw_only=True)
class UniformClaim:
    """A gain of `gain` at every level of `factor`; `is_whole`: every pair of the grid ran."""

    factor: str
    is_whole: bool
    gain: float
    margin: float
    better: Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True)
class Gains:
    """Gains [k] of the levels, and the variance of each, with its df; `spread` is that of one pair's interaction."""

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
    """Judge the claim by `levels`: the pairs (proposed, baseline) of each, in one order of the other factors.

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
    gains = measure_levels(claim, levels, n) if min(len(levels), len(every) // len(levels)) > 1 else None
    if gains is None or not gains.variance:
        few = f"Two levels of {claim.factor} and of another factor, with gains that differ, are needed."
        return Verdict(status=Status.INCONCLUSIVE, explanation=few, n=n)
    return _judge(claim, dict(zip(levels, gains.values.tolist(), strict=True)), gains, rules, looks, n)


def measure_levels(claim: UniformClaim, levels: Mapping[Any, Sequence[tuple[Sample, Sample]]], n: int) -> Gains:
    """Gains over the first `n` replicates; their error is the interaction of the levels with the other factors."""
    sign = 1.0 if claim.better == "higher" else -1.0
    arms = np.array([[[arm.among(range(n)).values for arm in pair] for pair in row] for row in levels.values()])
    cells = sign * (arms[:, :, 0].mean(axis=-1) - arms[:, :, 1].mean(axis=-1))
    interaction, df = interaction_of(cells)
    seeds = float(variance_of(arms).sum(axis=-1).mean()) / n
    square = max(float(interaction), seeds)
    return Gains(values=cells.mean(axis=1), spread=square**0.5, variance=square / cells.shape[1], df=df)


def interaction_of(cells: Numbers) -> tuple[Numbers, int]:
    """Mean square of the interaction of gains [..., levels, others], and its df; 0 if it is rounding only."""
    k, others = cells.shape[-2:]
    rest = cells - cells.mean(axis=-1, keepdims=True) - cells.mean(axis=-2, keepdims=True)
    rest = rest + cells.mean(axis=(-1, -2), keepdims=True)
    df = (k - 1) * (others - 1)
    square = np.square(rest).sum(axis=(-1, -2)) / df
    return np.where(np.sqrt(square) <= 1e-12 * np.abs(cells).max(axis=(-1, -2)), 0.0, square), df


def _judge(
    claim: UniformClaim, by_level: Mapping[Any, float], gains: Gains, rules: Rules, looks: Mapping[int, float], n: int
) -> Verdict:
    inner, outer = level(looks, n, rules.alpha_within), level(looks, n, rules.alpha_outside / 2)
    status, alpha, reason = Status.INCONCLUSIVE, inner, "neither within nor wholly outside"
    of_margin = gains.f, len(by_level), gains.df, claim.margin**2 / gains.variance
    if not claim.is_whole:
        reason = "open, since the levels' gains are means over every pair, and only some ran"
    elif p_apart(*of_margin) < outer:
        status, alpha, reason = Status.NOT_REPRODUCED, outer, "wholly outside"
    elif p_alike(*of_margin) <= inner:
        status, reason = Status.REPRODUCED, "within"
    spread = max(by_level.values()) - min(by_level.values())
    low, high = gains.range_interval(alpha)
    confidence = 1 - 2 * alpha
    half = float(t_quantile(gains.df, outer / len(by_level))) * gains.variance**0.5
    outside = [str(at) for at, gain in by_level.items() if abs(gain - claim.gain) - half > claim.margin]
    beyond = f"; wholly outside {claim.gain:g} ± {claim.margin:g}: {', '.join(outside)}" if outside else ""
    if min(by_level.values()) > half:
        beyond += f". Better at every {claim.factor}{'' if claim.is_whole else ', on the part that ran'}"
    listed = ", ".join(f"{at} {signed(gain)}" for at, gain in by_level.items())
    return Verdict(
        status=status,
        explanation=f"Largest − smallest gain over {claim.factor} (n = {n}) = "
        f"{with_interval(spread, low, high, confidence, claim.margin)}: {reason}. "
        f"By {claim.factor}, each ± {half:.2g} (together {in_percent(1 - 2 * outer)}): {listed}{beyond}. "
        f"Exactly alike: F({len(by_level) - 1}, {gains.df}) = {gains.f:.1f}, p = {gains.p:.2g}. "
        f"The error is how much the gains of one {claim.factor} differ between pairs.",
        estimate=spread,
        low=low,
        high=high,
        confidence=confidence,
        margin=claim.margin,
        n=n,
        spread=gains.spread,
        p_value=gains.p,
    )
