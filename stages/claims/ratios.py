"""Printed ratios of two measured numbers: a relative gain, a relative reduction, a share of another gain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stages.claims.lines import ClaimLine
from stages.claims.margins import margin_of_ratio, slope_of_margin
from stages.claims.measures import NotMeasured, measure
from stages.claims.sides import ClaimSamples, Pairs
from stages.claims.trials import ResultGroup
from stages.rules import Rules
from stages.verdicts import Observation, Sample, ValueClaim, Verdict, judge_value
from stages.verdicts.intervals import variance_of
from stages.verdicts.looks import Looks, complete_look

EXACT = "peak_memory_bytes"
"""The metric whose replicates may be equal to the byte, so that they have no spread."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio as a `sample`, and the variance `s2_at` that its replicates have by another margin."""

    sample: Sample
    s2_at: Callable[[float], float]


def relative(claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, rules: Rules) -> Ratio:
    """The ratio r = N/D of means, as a sample whose mean is r and whose spread is that of (N − b D)/mean(D).

    b is the end of the claim's margin at which N − b D spreads more.  Where the truth is b, its t test is exact
    (Fieller 1954); the spread at the printed ratio is too small there, and errs in 9 % instead of 5 %.  N is the gain
    and D its reference: the baseline, for a lower metric ours, or the gain of another arm.  r and the spread are those
    of the last look.

    Raises:
        NotMeasured: D is indistinguishable from zero, or no replicate has both.
    """
    assert sides.baseline is not None and claim.value is not None, f"{claim.id} relates to nothing"
    ours, theirs = sides.proposed.finished, sides.baseline.finished
    sign = 1 if claim.better == "higher" else -1
    if claim.unit == "of the gain of DAC":
        against = group.experiment.arms[pairs.proposed[0]].against
        if against is None or against not in group.arms:
            raise NotMeasured(f"{against}, over which both gain, has none")
        base = measure(claim.metric, group.arms[against], group.looks(rules)).finished
        shared = [index for index in ours if index in theirs and index in base]
        top = {index: sign * (ours[index] - base[index]) for index in shared}
        bottom = {index: sign * (theirs[index] - base[index]) for index in shared}
    else:
        shared = [index for index in ours if index in theirs]
        top = {index: sign * (ours[index] - theirs[index]) for index in shared}
        of_ours = claim.unit == "relative gain" and claim.better == "lower"
        bottom = {index: (ours if of_ours else theirs)[index] for index in shared}
    return _ratio_sample(sides, top, bottom, limits_of(claim, rules), group.looks(rules))


def limits_of(claim: ClaimLine, rules: Rules) -> tuple[float, float]:
    """The ends of the ratios that count as the printed one: those of its margin, or of a range and its rounding."""
    assert claim.value is not None, f"{claim.id} has no ratio"
    if claim.kind == "range":
        assert claim.high is not None, f"{claim.id} has no end"
        return claim.value - (claim.precision or 0.0), claim.high + (claim.precision or 0.0)
    margin = margin_of_ratio(claim, rules.margins)
    return claim.value - margin, claim.value + margin


def _ratio_sample(
    sides: ClaimSamples,
    top: Mapping[int, float],
    bottom: Mapping[int, float],
    limits: tuple[float, float],
    looks: Looks,
) -> Ratio:
    indices = sorted(set(sides.proposed.indices) & set(sides.baseline.indices if sides.baseline else ()))
    n = complete_look(indices, looks)
    used = [index for index in bottom if n is None or index < n]
    if not used:
        raise NotMeasured("no replicate has finished in both arms")
    above, below = (np.array([side[index] for index in used]) for side in (top, bottom))
    mean, stderr = float(below.mean()), below.std(ddof=1) / math.sqrt(below.size) if below.size > 1 else 0.0
    if abs(mean) <= 2 * stderr:
        raise NotMeasured(f"what it relates to, {mean:.3g} ± {stderr:.2g}, is not distinct from 0")
    b = max(limits, key=lambda limit: float(np.var(above - limit * below)))
    middle = (limits[0] + limits[1]) / 2

    def s2_at(margin: float) -> float:
        return max(float(variance_of((above - limit * below) / mean)) for limit in (middle - margin, middle + margin))

    environments: dict[int, frozenset[str]] = {}
    for replicate in (*sides.proposed.replicates, *(sides.baseline.replicates if sides.baseline else ())):
        environments[replicate.index] = replicate.environments | environments.get(replicate.index, frozenset())
    sample = Sample(
        tuple(
            Observation(
                index=index,
                value=b + (top[index] - b * bottom[index]) / mean if index in top else None,
                environments=environments[index],
            )
            for index in indices
        )
    )
    return Ratio(sample=sample, s2_at=s2_at)


def judge_relative(claim: ClaimLine, ratio: Ratio, group: ResultGroup, rules: Rules) -> Verdict:
    """Judge a ratio; one no larger than its margin is never `reproduced`, since no gain at all would count as equal.

    A range is judged as the number in its middle, with a margin that reaches the ends and has no error of its own.
    """
    planned = group.experiment.replicates
    if claim.kind == "range":
        low, high = limits_of(claim, rules)
        middle = "the middle of the printed range,"
        stated = ValueClaim(value=(low + high) / 2, margin=(high - low) / 2, stderr=0.0, wording=middle)
        is_exact = claim.metric == EXACT
        verdict = judge_value(
            stated, ratio.sample, rules=rules, planned=planned, may_be_exact=is_exact, s2_at=ratio.s2_at
        )
        return dataclasses.replace(verdict, prediction=None)  # no number is printed that a rerun could give
    assert claim.value is not None, f"{claim.id} has no ratio"
    margin = margin_of_ratio(claim, rules.margins)
    slope = slope_of_margin(claim, rules.margins)
    printed = ValueClaim(value=claim.value, margin=margin, n=claim.n, slope=slope)
    size = abs(claim.value)
    return judge_value(printed, ratio.sample, rules=rules, planned=planned, size=size, s2_at=ratio.s2_at)
