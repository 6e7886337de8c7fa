"""The power of a plan for claims without a target number: a sign, equal gains, a range, failed trainings.

Where the spread of replicates is unknown, the answer is in spreads: the smallest distance from zero that the plan
detects, or the largest spread at which it decides.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.looks import looks_from, looks_of_plan
from stages.verdicts.others import Failures, exchange_p, judge_proportion
from stages.verdicts.power import (
    WANTED,
    Design,
    Power,
    in_percent,
    judged_replicates,
    one_sided,
    power_of_value,
)
from stages.verdicts.uniform import Distances
from stages.verdicts.verdict import Status

_GRIDS = 4000
"""Simulated grids, for a power that is right to a percentage point."""
_DRAWS = 1000
_RARE = 1e-6
"""Counts of failed trainings less probable than this are left out."""
_TOGETHER = "Less, if trainings of one network fail together."


def least_detected(design: Design, rules: Rules) -> float | None:
    """Smallest distance from zero whose sign the plan detects with 80 %, in spreads; None if it has no analysis."""
    n = judged_replicates(design, rules)
    unit = dataclasses.replace(design, spread=1.0)

    def short_by(distance: float) -> float:
        return one_sided(unit, distance, n, rules.alpha_outside / 2, rules) - WANTED

    return float(scipy.optimize.brentq(short_by, 0.0, 1e6)) if short_by(1e6) >= 0 else None


def power_of_sign(design: Design, rules: Rules, *, is_known: bool) -> Power:
    """Power for a number said to lie on one side of a bound, at no stated distance; `is_known`: its spread is known."""
    start, least = f"Planned are {design.planned} replicates", least_detected(design, rules)
    if least is None:
        text = f"{start}: too few for a look, the first is at {min(rules.looks)}."
        return Power(planned=design.planned, spread=None, source=None, explanation=text, can_reproduce=False)
    told = f"No size is printed. The side is told with probability {in_percent(WANTED)} where the truth is at least "
    if not is_known:
        text = f"{start}; how far they spread isn't known. {told}{least:.2g} standard deviations of a replicate away."
        return Power(planned=design.planned, spread=None, source=None, explanation=text)
    return Power(
        planned=design.planned,
        spread=design.spread,
        source=design.source,
        explanation=f"{start} with a spread of {design.spread:.2g} ({design.because}). {told}"
        f"{least * design.spread:.2g} away.",
    )


def power_of_nearness(design: Design, margin: float, rules: Rules, right: str = "the statement is right") -> Power:
    """Power for a number said to equal another, with unknown spread: the largest spread at which it decides.

    `right`: the case in which it should be reproduced, for the sentence.
    """

    def chance(spread: float) -> float:
        return power_of_value(dataclasses.replace(design, spread=spread), margin, rules).reproduced or 0.0

    start = f"Planned are {design.planned} replicates; how far they spread isn't known."
    if chance(margin * 1e-6) < WANTED:
        text = f"{start} However little it is, nothing is judged before {rules.minimum_with_error} replicates."
        return Power(planned=design.planned, spread=None, source=None, explanation=text, can_reproduce=False)
    largest = float(scipy.optimize.brentq(lambda spread: chance(spread) - WANTED, margin * 1e-6, margin * 1e3))
    return Power(
        planned=design.planned,
        spread=None,
        source=None,
        explanation=f"{start} Where {right}, it is reproduced with probability {in_percent(WANTED)} or "
        f"more while that is at most {largest:.2g}; the margin is {margin:.2g}.",
    )


def power_of_uniform(design: Design, levels: int, pairs: int, margin: float, rules: Rules) -> Power:
    """Power for equal gains at every level: `reproduced` where exactly equal, `not_reproduced` where two differ.

    The two are two margins apart and the others halfway between, the hardest case to detect.  `design.spread` is the
    interaction's: how much the mean gain of one pair differs from those of its level beyond what all levels share.
    `levels` with `pairs` each make up the whole grid.
    """
    looks = looks_of_plan(looks_from(rules.looks, rules.minimum), design.planned)
    n = judged_replicates(design, rules)
    start = f"Planned are {design.planned} replicates of {levels} × {pairs} pairs, whose mean gains differ by "
    start += f"{design.spread:.2g} beyond level and slice ({design.because})."
    if n not in looks:
        first = min(looks_from(rules.looks, rules.minimum))
        text = f"{start} Nothing is judged before {first} replicates: the plan is too short."
        return Power(planned=design.planned, spread=design.spread, source=design.source, explanation=text)
    noise = design.spread * np.random.default_rng(0).standard_normal((_GRIDS, levels, pairs))
    ends = np.array([0.0, *[margin] * (levels - 2), 2 * margin])
    largest = Distances.between(noise).largest(rules.alpha_within * looks[n])
    least = Distances.between(noise + ends[:, None]).least(rules.alpha_outside / 2 * looks[n])
    reproduced, refuted = float(np.mean(largest <= margin)), float(np.mean(least > margin))
    return Power(
        planned=design.planned,
        spread=design.spread,
        source=design.source,
        explanation=f"{start} Where the gains are exactly alike, it is reproduced with probability "
        f"{in_percent(reproduced)}; where two are {2 * margin:.2g} apart, twice the margin, and the others "
        f"midway, which is hardest to see, not reproduced with {in_percent(refuted)}.",
        reproduced=reproduced,
        not_reproduced=refuted,
    )


def power_of_proportion(
    networks: int, replicates: int, claimed: tuple[int, int], margin: float, rules: Rules, slope: float = 0.0
) -> Power:
    """Power for a printed proportion (count, of) by one look at `replicates` trainings of each of the `networks`."""
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
        spread=None,
        source=None,
        explanation=f"Planned are {planned} trainings, {replicates} of each network, judged once. Where as large a "
        f"share fails as printed, it is reproduced with probability {in_percent(same)}; where the share is larger by "
        f"{2 * margin:.2g}, twice the margin, not reproduced with {in_percent(off)}. {_TOGETHER}",
        reproduced=same,
        not_reproduced=off,
    )


def power_of_proportions(
    networks: tuple[int, int], replicates: int, claimed: tuple[tuple[int, int], tuple[int, int]], rules: Rules
) -> Power:
    """Power for fewer failures in proposed arms, both as (proposed, baseline), by exchanging networks."""
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
        spread=None,
        source=None,
        explanation=f"Planned are {planned[0]} and {planned[1]} trainings, {replicates} of each network, judged once. "
        f"Where the shares that fail are as printed, it is supported with probability {in_percent(supported)}. "
        f"{_TOGETHER}",
        supported=supported,
    )


def _counts(trials: int, rate: float) -> list[tuple[int, float]]:
    """(count, probability) of the counts that may occur at this rate."""
    counts = np.arange(trials + 1)
    chances = scipy.stats.binom.pmf(counts, trials, min(rate, 1.0))
    return [(int(count), float(chance)) for count, chance in zip(counts, chances, strict=True) if chance > _RARE]
