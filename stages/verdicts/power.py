"""Probability of each verdict with the planned replicates, computed from the tests themselves before any training.

Our replicates and the paper's are assumed to be normal with standard deviation s.  Their mean and sample variance v are
then independent, and given v the tests depend only on the mean (Phillips 1990, for equivalence):

    P(reproduced | same, v)                 = 2 Φ((Δ − h(v))/σ) − 1   if h(v) < Δ, else 0
    P(not reproduced | two margins off, v)  = Φ((Δ − H(v))/σ) + Φ((−3Δ − H(v))/σ)
    P(supported | gain g, v)                = Φ((|g| − H(v))/τ)
    P(comparable | arms alike, v)           = Φ((Δ − h(v))/τ)

Δ is the margin, h and H are the half-widths of the inner and outer intervals at the final analysis, τ² = s²/n, and
σ² = τ² + the paper's variance.  The mean over v is taken at quantiles of its distribution, s² χ²/df.  Only the final
analysis gives the verdict, so earlier analyses just use up α.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.grid_part import Distances
from stages.verdicts.intervals import (
    MOST,
    NEVER,
    Looks,
    Numbers,
    combine,
    half_width,
    looks_of_numbers,
    looks_of_plan,
    t_quantile,
)
from stages.verdicts.others import Failures, exchange_p, judge_proportion
from stages.verdicts.value import Spread, df_of_printed
from stages.verdicts.verdict import Status

WANTED = 0.8
"""The power that a plan should have (Cohen 1988)."""
_POINTS = 24
"""Number of quantiles of each of two sample variances; a single sample variance has its square."""
Source = Literal["measured", "printed", "assumed"]


@dataclass(frozen=True, kw_only=True)
class Design:
    """A plan of replicates.

    `spread` is the standard deviation of one replicate, or of one difference for a gain; `because` says where it comes
    from.  `pairing` is "value" for a value; for a gain, it is "fold" (shared folds) or "none" (independent arms).
    `stderr` and `paper_n` are the paper's, and `slope` is as in `ValueClaim`.  `share` is the part of a sign test's α
    that is left for the whole grid, if there is one.  `at` is the number of replicates at the interim analysis in
    question; None means the end of the plan.
    """

    planned: int
    spread: float
    source: Source
    because: str
    pairing: Literal["value", "fold", "none"]
    stderr: float | None = None
    paper_n: int | None = None
    slope: float = 0.0
    share: float = 1.0
    at: int | None = None

    def power(self, explanation: str, **own: Any) -> Power:
        """Return a `Power` for this plan, whose spread is known."""
        return Power(planned=self.planned, spread=self.spread, source=self.source, explanation=explanation, **own)

    @property
    def paper_error(self) -> float:
        """Standard error of the paper's number: as printed, or else estimated from its number of runs."""
        return self.spread / math.sqrt(self.paper_n or 1) if self.stderr is None else self.stderr


@dataclass(frozen=True, kw_only=True)
class Power:
    """Probabilities of the verdicts at the end of a plan, each None if the claim has no such verdict.

    `can_reproduce`: some number of replicates gives `reproduced` more often when the paper is right than the test's
    level allows when it is wrong.  If no spread is known, the explanation gives distances in spreads.
    """

    planned: Annotated[int, "replicates"]
    spread: Annotated[
        float | None, "standard deviation of one replicate or, for a gain, one difference; null if unknown"
    ] = None
    source: Source | None = None
    reproduced: Annotated[float | None, "chance if the paper is right; for a gain, of its size"] = None
    not_reproduced: Annotated[
        float | None,
        "chance if the truth is two margins away; for comparable arms, chance of reversed if one is worse by twice "
        "what the paper calls comparable",
    ] = None
    supported: Annotated[float | None, "chance if the gain is as printed, or comparable arms are equal"] = None
    supported_at_half: Annotated[float | None, "chance if the gain is half the printed one"] = None
    needed: Annotated[
        int | None, "replicates for an 80 % chance of supported (gains) or reproduced; never fewer than planned"
    ] = None
    needed_for_size: Annotated[int | None, "replicates for an 80 % chance of reproducing the size; null if none"] = None
    can_reproduce: Annotated[bool, "false if no number of replicates can reproduce it"] = True
    margin: Annotated[float | None, "margin of the printed number, or of a gain's size"] = None
    paper_error: Annotated[float | None, "standard error of the paper's number, printed or computed"] = None
    most: Annotated[float | None, "highest chance of reproduced with any number of replicates"] = None
    explanation: str


def power_of_comparable(design: Design, margin: float, widest: float, rules: Rules) -> Power:
    """Power for arms said to be comparable, with margins as in `ComparableClaim`.

    `supported` assumes that the arms are alike.  `not_reproduced` is the chance of `reversed` if the proposed arm is
    worse by twice the `widest` margin.  The paper's own error plays no part, because the claim has no number.
    """

    def chance(n: int, limit: float = margin) -> float:
        return one_sided(design, limit, n, rules.alpha_within, rules)

    planned = judged_replicates(design, rules)
    supported, read = chance(planned), chance(planned, widest)
    worse = one_sided(design, widest, planned, rules.alpha_outside / 2, rules)
    needed = _needed(design, chance, min(rules.looks), rules)
    also = f", and under one reading at least with {format_chance(read)}" if widest > margin else ""
    takes = "" if supported >= WANTED or design.at else f" {_takes(needed, rules)}"
    return design.power(
        explanation=f"{_plan(design)} If the models are alike, it is supported with probability "
        f"{format_chance(supported)}{also}.{takes} If the proposed model is worse by {2 * widest:.2g}, it is reversed "
        f"with probability {format_chance(worse)}.",
        not_reproduced=worse,
        supported=supported,
        needed=needed,
    )


def power_of_gain(design: Design, gain: float, margin: float, rules: Rules) -> Power:
    """Power for an order or a difference: for its printed sign and for its size."""

    def chance(n: int, share: float = 1.0) -> float:
        return one_sided(design, share * abs(gain), n, rules.alpha_outside / 2, rules)

    planned = judged_replicates(design, rules)
    supported, needed = chance(planned), _needed(design, chance, min(rules.looks), rules)
    takes = "" if supported >= WANTED or design.at else f" {_takes(needed, rules)}"
    said = f" If the gain is as printed, it is supported with probability {format_chance(supported)}.{takes}"
    size = power_of_value(design, margin, rules, can_reproduce=abs(gain) > margin, thing="its size", order=said)
    return dataclasses.replace(
        size,
        supported=supported,
        supported_at_half=chance(planned, 0.5),
        needed=needed,
        needed_for_size=size.needed,
    )


def _plan(design: Design) -> str:
    return f"We plan {design.planned} replicates with a standard deviation of {design.spread:.2g} ({design.because})."


def power_of_value(
    design: Design, margin: float, rules: Rules, *, can_reproduce: bool = True, thing: str = "it", order: str = ""
) -> Power:
    """Power for a printed value, a ratio, or the size of a gain.

    `can_reproduce` is False if the margin is as large as the number.  `thing` names the number in the explanation, and
    `order` is a sentence on the gain's sign.
    """
    first = min(_analyses(design, rules))

    def chance(n: int) -> float:
        return _size_chances(design, margin, n, rules)[0]

    same, off = _size_chances(design, margin, judged_replicates(design, rules), rules)
    most = max(same, chance(NEVER))
    needed = _needed(design, chance, first, rules) if can_reproduce else None
    off_text = f"if the truth is two margins away, it is not reproduced with probability {format_chance(off)}."
    text = f"If the paper is right, {thing} is reproduced with probability {format_chance(same)}; {off_text}"
    if not can_reproduce:
        text = f"A gain of zero would be within the margin, so {thing} can't be reproduced; {off_text}"
    elif design.planned < first:
        text = f"The plan is too short: nothing is judged before {first} replicates. {_takes(needed, rules)}"
    elif needed is None and not design.at:
        text = f"{text} {_forbidden(design, margin, most, thing, rules)}"
    elif same < WANTED and not design.at:
        text = f"{text} {_takes(needed, rules)}"
    return design.power(
        explanation=f"{_plan(design)}{order} {text}",
        reproduced=same if can_reproduce else None,
        not_reproduced=off,
        needed=needed,
        can_reproduce=can_reproduce and most > rules.alpha_within,
        margin=margin,
        paper_error=design.paper_error,
        most=most if can_reproduce else None,
    )


def _takes(needed: int | None, rules: Rules) -> str:
    if needed is None:
        return f"No number of replicates up to {MOST} reaches {format_chance(WANTED)}."
    last = max(rules.looks)
    beyond = f", but the last analysis is at {last}" if needed > last else ""
    return f"Reaching {format_chance(WANTED)} takes {needed} replicates{beyond}."


def _forbidden(design: Design, margin: float, most: float, thing: str, rules: Rules) -> str:
    """Say how small the paper's own error would have to be to reach the wanted power.

    Without error on our side, D has the paper's standard error e.  If the margin has slope b, the power is
    Φ(Δ/(1 + b)e − t) + Φ(Δ/(1 − b)e − t) − 1.
    """
    ran = design.paper_n or 1
    df = df_of_printed(design.paper_n) if design.stderr else math.inf
    level = rules.alpha_within * _share(NEVER, _analyses(design, rules))
    t = float(t_quantile(df, level))

    def short_by(errors: float) -> float:
        return sum(float(scipy.special.ndtr(errors / (1 + end * design.slope) - t)) for end in (1, -1)) - 1 - WANTED

    error = margin / scipy.optimize.brentq(short_by, 0.0, 1e3 + 1e3 * t)
    start = f"No number of replicates reaches {format_chance(WANTED)}, at most {format_chance(most)}"
    if most <= rules.alpha_within:
        start = f"No plan can reproduce {thing}"
    runs = ""
    if design.stderr is None:
        runs = f", which takes {max(math.ceil((design.spread / error) ** 2), ran + 1)} runs instead of {ran}"
    own, allowed = f"{design.paper_error:.2g}", f"{error:.2g}"
    if own == allowed:
        own, allowed = f"{design.paper_error:.3g}", f"{error:.3g}"
    return f"{start}: the paper's own error, {own}, would have to be below {allowed}{runs}."


def format_chance(chance: float) -> str:
    if chance < 0.005:
        return "less than 1 %"
    return "more than 99 %" if chance > 0.995 else f"{100 * chance:.0f} %"


def judged_replicates(design: Design, rules: Rules) -> int:
    """Return the number of replicates at the analysis in question, at most that of the last analysis in `rules`."""
    return min(design.at or design.planned, max(rules.looks))


def _analyses(design: Design, rules: Rules) -> Looks:
    return looks_of_numbers(rules, is_error_printed=design.stderr is not None)


def _share(n: int, analyses: Looks, design: Design | None = None) -> float:
    """Return the share of α at the last analysis of a plan of n replicates, or at the design's interim analysis at n.

    The share is 0 if there is no such analysis.
    """
    if design is not None and n == design.at:
        return looks_of_plan(analyses, design.planned).get(n, 0.0)
    looks = looks_of_plan(analyses, n)
    return looks[max(looks)] if looks else 0.0


def _size_chances(design: Design, margin: float, n: int, rules: Rules) -> tuple[float, float]:
    share = _share(n, _analyses(design, rules), design)
    if not share:
        return 0.0, 0.0
    alone = dataclasses.replace(design, planned=n, source="assumed", because="", share=1.0, at=None)
    return _chances_of_size(alone, margin, rules.alpha_within * share, rules.alpha_outside / 2 * share)


@lru_cache(maxsize=4096)
def _chances_of_size(design: Design, margin: float, inside: float, outside: float) -> tuple[float, float]:
    """Return P(reproduced) and P(not reproduced) with all planned replicates, given the one-sided errors."""
    n = design.planned
    ratio, df = _sample_variances(design.pairing, n)
    s2 = design.spread**2
    spread = Spread(s2=s2 * ratio, df=df, n=n, stderr=design.stderr, paper_n=design.paper_n, slope=design.slope)
    same, off = -1.0, 0.0
    for end in (1.0, -1.0):  # half of the cases that are off lie beyond each end of the margin
        if end > 0 or design.slope:
            variance, df = spread.at(n, end)
            inner, outer = half_width(variance, df, inside), half_width(variance, df, outside)
        sigma = math.hypot(design.spread / math.sqrt(n), (1 + end * design.slope) * design.paper_error)
        same = same + scipy.special.ndtr((margin - inner) / sigma)
        off = off + scipy.special.ndtr((margin - outer) / sigma) / 2
        off = off + scipy.special.ndtr((-3 * margin - outer) / sigma) / 2
    return float(np.mean(np.maximum(same, 0.0))), float(np.mean(off))


def one_sided(design: Design, distance: float, n: int, alpha: float, rules: Rules) -> float:
    """Chance that the interval of a gain lies wholly on the true side of a limit at this distance from the truth."""
    share = _share(n, rules.looks, design) * design.share
    if not share:
        return 0.0
    ratio, _ = _sample_variances(design.pairing, n)
    half = _sample_quantiles(design.pairing, n, alpha * share) * np.sqrt(design.spread**2 * ratio / n)
    return float(np.mean(scipy.special.ndtr((distance - half) * math.sqrt(n) / design.spread)))


@cache
def _sample_variances(pairing: str, n: int) -> tuple[Numbers, Numbers]:
    """Return (sample variance over its expectation, df) at equally probable points, pooled as in the tests."""
    if n == NEVER:
        return np.ones(1), np.full(1, float(NEVER))
    if pairing != "none":
        alone = relative_variances(n - 1, _POINTS**2)
        return alone, np.full(alone.shape, n - 1.0)
    own = relative_variances(n - 1)
    one, other = (grid.ravel() / 2 for grid in np.meshgrid(own, own))
    return combine([(one, n - 1.0), (other, n - 1.0)])


@lru_cache(maxsize=4096)
def _sample_quantiles(pairing: str, n: int, alpha: float) -> Numbers:
    return t_quantile(_sample_variances(pairing, n)[1], alpha)


def relative_variances(df: int, points: int = _POINTS) -> Numbers:
    """Return quantiles of χ²/df, the sample variance over its expectation, at equally spaced probabilities."""
    middles = (np.arange(points) + 0.5) / points
    return 2 * scipy.special.gammaincinv(df / 2, middles) / df


def _needed(design: Design, chance: Callable[[int], float], first: int, rules: Rules) -> int | None:
    """Find by bisection the fewest replicates, from the plan on, that reach the wanted power; None if none do.

    None for an interim analysis, too: more replicates are another analysis.
    """
    planned = judged_replicates(design, rules)
    if design.at:
        return None
    if chance(planned) >= WANTED:
        return planned
    low, high = max(planned, first - 1), MOST
    if chance(high) < WANTED:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= WANTED else (middle, high)
    return high


_GRIDS = 4000
"""Number of simulated grids, enough for a power that is right to a percentage point."""
_DRAWS = 1000
_RARE = 1e-6
"""Probability below which a count of failed trainings is ignored."""
_TOGETHER = "The probability is lower if trainings of one network fail together."


def least_detected(design: Design, rules: Rules) -> float | None:
    """Return the smallest distance from zero, in spreads, whose sign the plan detects with a power of 80 %.

    None if the plan has no analysis.
    """
    n = judged_replicates(design, rules)
    unit = dataclasses.replace(design, spread=1.0)

    def short_by(distance: float) -> float:
        return one_sided(unit, distance, n, rules.alpha_outside / 2, rules) - WANTED

    return float(scipy.optimize.brentq(short_by, 0.0, 1e6)) if short_by(1e6) >= 0 else None


def power_of_sign(design: Design, rules: Rules, *, is_known: bool) -> Power:
    """Power for a number said to lie on one side of a bound, without a stated distance.

    `is_known`: whether the number's spread is known.
    """
    start, least = f"We plan {design.planned} replicates", least_detected(design, rules)
    if least is None:
        text = f"{start}: too few, because the first analysis is at {min(rules.looks)}."
        return Power(planned=design.planned, explanation=text, can_reproduce=False)
    found = f"The side is found with probability {format_chance(WANTED)} if the truth is at least"
    if not is_known:
        text = f"{start}; their standard deviation is unknown. The paper prints no size. {found}"
        return Power(planned=design.planned, explanation=f"{text} {least:.2g} standard deviations away.")
    return design.power(f"{_plan(design)} The paper prints no size. {found} {least * design.spread:.2g} away.")


def power_of_nearness(design: Design, margin: float, rules: Rules, right: str = "the statement is right") -> Power:
    """Power for a number said to equal another, given as the largest spread at which the plan decides.

    `right` words the condition under which the claim should be reproduced.
    """

    def chance(spread: float) -> float:
        own = dataclasses.replace(design, spread=spread)
        return _size_chances(own, margin, judged_replicates(own, rules), rules)[0]

    start = f"We plan {design.planned} replicates; their standard deviation is unknown."
    if chance(margin * 1e-6) < WANTED:
        text = f"{start} However small it is, nothing is judged before {rules.minimum_with_error} replicates."
        return Power(planned=design.planned, explanation=text, can_reproduce=False)
    largest = float(scipy.optimize.brentq(lambda spread: chance(spread) - WANTED, margin * 1e-6, margin * 1e3))
    return Power(
        planned=design.planned,
        explanation=f"{start} If {right}, it is reproduced with probability {format_chance(WANTED)} or "
        f"more while the standard deviation is at most {largest:.2g}; the margin is {margin:.2g}.",
    )


def power_of_uniform(design: Design, levels: int, pairs: int, margin: float, rules: Rules) -> Power:
    """Power for equal gains at every level of a grid of `levels` with `pairs` each.

    `reproduced` assumes that all gains are equal.  `not_reproduced` assumes the case that is hardest to detect: two
    levels are two margins apart, and the others lie halfway between them.  `design.spread` is the standard deviation of
    the interaction, which is a pair's mean gain beyond the effects of its level and its slice.
    """
    numbers = looks_of_numbers(rules)
    looks = looks_of_plan(numbers, design.planned)
    n = judged_replicates(design, rules)
    start = f"We plan {design.planned} replicates of {levels} × {pairs} pairs, whose mean gains differ by "
    start += f"{design.spread:.2g} beyond the effects of level and slice ({design.because})."
    if n not in looks:
        return design.power(f"{start} The plan is too short: nothing is judged before {min(numbers)} replicates.")
    noise = design.spread * np.random.default_rng(0).standard_normal((_GRIDS, levels, pairs))
    ends = np.array([0.0, *[margin] * (levels - 2), 2 * margin])
    largest = Distances.between(noise).largest(rules.alpha_within * looks[n])
    least = Distances.between(noise + ends[:, None]).least(rules.alpha_outside / 2 * looks[n])
    reproduced, refuted = float(np.mean(largest <= margin)), float(np.mean(least > margin))
    return design.power(
        explanation=f"{start} If all gains are equal, it is reproduced with probability "
        f"{format_chance(reproduced)}; if two are {2 * margin:.2g} apart, twice the margin, and the others midway, "
        f"which is hardest to detect, it is not reproduced with probability {format_chance(refuted)}.",
        reproduced=reproduced,
        not_reproduced=refuted,
    )


def power_of_proportion(
    networks: int, replicates: int, claimed: tuple[int, int], margin: float, rules: Rules, slope: float = 0.0
) -> Power:
    """Power for a printed proportion (count, of), judged once, after `replicates` trainings per network."""
    rate, planned = claimed[0] / claimed[1], networks * replicates
    chances, rng = {}, np.random.default_rng(0)
    for truth, status in ((rate, Status.REPRODUCED), (rate + 2 * margin, Status.NOT_REPRODUCED)):
        draws = rng.binomial(replicates, min(truth, 1.0), (_DRAWS, networks)).tolist()
        drawn = (Failures(counts=tuple(counts), each=replicates) for counts in draws)
        found = [judge_proportion(claimed, failures, margin, rules=rules, slope=slope).status for failures in drawn]
        chances[status] = found.count(status) / _DRAWS
    same, off = chances[Status.REPRODUCED], chances[Status.NOT_REPRODUCED]
    return Power(
        planned=replicates,
        explanation=f"We plan {planned} trainings, {replicates} of each network, judged once. If the printed share "
        f"fails, it is reproduced with probability {format_chance(same)}; if the share is larger by {2 * margin:.2g}, "
        f"twice the margin, it is not reproduced with probability {format_chance(off)}. {_TOGETHER}",
        reproduced=same,
        not_reproduced=off,
    )


def power_of_proportions(
    networks: tuple[int, int], replicates: int, claimed: tuple[tuple[int, int], tuple[int, int]], rules: Rules
) -> Power:
    """Power for fewer failures in the proposed arms, by a permutation test that exchanges networks.

    `networks` and `claimed` are (proposed, baseline).
    """
    ours, theirs = (count / total for count, total in claimed)
    planned = networks[0] * replicates, networks[1] * replicates
    supported = 0.0
    for baseline, chance in _counts(planned[1], theirs):
        against = Failures.spread(baseline, networks[1], replicates).counts
        low, high = -1, int(baseline * planned[0] / planned[1])
        while low < high:  # the largest count that is significantly smaller
            middle = (low + high + 1) // 2
            p = exchange_p(Failures.spread(middle, networks[0], replicates).counts, against)
            low, high = (middle, high) if p <= rules.alpha_outside else (low, middle - 1)
        supported += chance * float(scipy.stats.binom.cdf(low, planned[0], ours))
    return Power(
        planned=replicates,
        explanation=f"We plan {planned[0]} and {planned[1]} trainings, {replicates} of each network, judged once. "
        f"If the shares that fail are as printed, it is supported with probability {format_chance(supported)}. "
        f"{_TOGETHER}",
        supported=supported,
    )


def _counts(trials: int, rate: float) -> list[tuple[int, float]]:
    """Return (count, probability) of each count that is likely enough at this rate to matter."""
    counts = np.arange(trials + 1)
    chances = scipy.stats.binom.pmf(counts, trials, min(rate, 1.0))
    return [(int(count), float(chance)) for count, chance in zip(counts, chances, strict=True) if chance > _RARE]
