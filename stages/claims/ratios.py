"""Printed ratios of two measured numbers: a relative gain, a relative reduction, a share of another gain."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from stages.claims.lines import ClaimLine
from stages.claims.margins import margin_of_ratio
from stages.claims.measures import NotMeasured, measure
from stages.claims.sides import ClaimSamples, Pairs, mean_of
from stages.claims.trials import ResultGroup
from stages.rules import Rules
from stages.verdicts import Observation, Sample, ValueClaim, Verdict, judge_range, judge_value, not_tested
from stages.verdicts.looks import complete_look


def relative(claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, rules: Rules) -> Sample:
    """The ratio r = N/D of means, as a sample whose mean is r and whose spread is that of (N − v D)/mean(D).

    v is the printed ratio: where it is right, this is the spread of r to first order (Fieller 1954).  N is the gain and
    D its reference: the baseline, for a lower metric ours, or the gain of another arm.

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
    return _ratio_sample(claim, sides, top, bottom)


def _ratio_sample(
    claim: ClaimLine, sides: ClaimSamples, top: Mapping[int, float], bottom: Mapping[int, float]
) -> Sample:
    values = np.array(list(bottom.values()))
    if not values.size:
        raise NotMeasured("no replicate has finished in both arms")
    stderr = values.std(ddof=1) / math.sqrt(values.size) if values.size > 1 else 0.0
    if abs(values.mean()) <= 2 * stderr:
        raise NotMeasured(f"what it relates to, {values.mean():.3g} ± {stderr:.2g}, is not distinct from 0")
    v = claim.value or 0.0
    environments: dict[int, frozenset[str]] = {}
    for replicate in (*sides.proposed.replicates, *(sides.baseline.replicates if sides.baseline else ())):
        environments[replicate.index] = replicate.environments | environments.get(replicate.index, frozenset())
    indices = sorted(set(sides.proposed.indices) & set(sides.baseline.indices if sides.baseline else ()))
    return Sample(
        tuple(
            Observation(
                index=index,
                value=v + (top[index] - v * bottom[index]) / float(values.mean()) if index in top else None,
                environments=environments[index],
            )
            for index in indices
        )
    )


def judge_relative(claim: ClaimLine, ratio: Sample, group: ResultGroup, rules: Rules) -> Verdict:
    """Judge a ratio; one no larger than its margin is never `reproduced`, since no gain at all would count as equal."""
    looks = group.looks(rules)
    assert claim.value is not None, f"{claim.id} has no ratio"
    if claim.kind == "range":
        assert claim.high is not None, f"{claim.id} has no end"
        mean = mean_of(ratio, looks)
        if mean is None or complete_look(ratio.indices, looks) is None:
            return not_tested(f"{ratio.n} replicates are there; a range needs {min(rules.looks)}.")
        return judge_range(claim.value, claim.high, mean, claim.precision or 0.0)
    margin = margin_of_ratio(claim, rules.margins)
    return judge_value(
        ValueClaim(value=claim.value, margin=margin, n=claim.n),
        ratio,
        rules=rules,
        planned=group.experiment.replicates,
        can_reproduce=abs(claim.value) > margin,
    )
