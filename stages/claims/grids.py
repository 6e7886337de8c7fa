"""Claims about a whole grid of networks: the same gain at every width, a size from which one arm is ahead."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import defaultdict
from typing import Any

from stages.claims.judgement import Judgement
from stages.claims.lines import ClaimLine
from stages.claims.margins import margin_of_gain
from stages.claims.measures import NotMeasured, measure
from stages.claims.sides import Pairs, better_of, gather_samples
from stages.claims.trials import ResultGroup, price
from stages.params.experiment import Params
from stages.verdicts import GainClaim, Sample, Scope, UniformClaim, judge_gain, judge_uniform
from stages.verdicts.grid_part import factors_of

MOST_APART = 1.1
"""Networks are of one size whose numbers of parameters are within this factor."""


def judge_levels(claim: ClaimLine, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
    """Judge a gain that is claimed to be the same at every level of a factor of the grid.

    Raises:
        NotMeasured: the pairs that ran don't form whole slices, or the levels have different pairs.
    """
    assert claim.value is not None and claim.factor is not None, f"{claim.id} has no gain by a factor"
    factor, planned = claim.factor, factors_of(pairs.grid)
    assert factor in planned, f"{claim.id}: its grid has no {factor!r}; known: {', '.join(planned)}"
    margin = margin_of_gain(claim, params.verdicts.margins)
    sides = gather_samples(claim, pairs, group, params.verdicts)
    if sides.part is not None and not sides.part.is_sliced:
        raise NotMeasured(f"of no {' or '.join(planned)} has every pair run")
    levels: dict[Any, dict[tuple[Any, ...], tuple[Sample, Sample]]] = defaultdict(dict)
    for cell, *arms in zip(pairs.cells, pairs.proposed, pairs.baseline, strict=True):
        proposed, baseline = (measure(claim.metric, group.arms[arm], group.looks(params.verdicts)) for arm in arms)
        levels[cell[factor]][tuple(cell[name] for name in planned if name != factor)] = proposed, baseline
    others = list(next(iter(levels.values())))
    if any(row.keys() != set(others) for row in levels.values()):
        raise NotMeasured(f"not every {factor} has the same pairs")
    asked = UniformClaim(
        factor=factor, is_whole=sides.part is None, gain=claim.value, margin=margin, better=better_of(claim)
    )
    rows = {at: [row[other] for other in others] for at, row in levels.items()}
    verdict = judge_uniform(asked, rows, rules=params.verdicts, replicates=group.experiment.replicates)
    if sides.part is not None:
        said = f"{verdict.explanation} {sides.part.tell()}{sides.note}"
        verdict = dataclasses.replace(verdict, explanation=said, scope=sides.part.scope())
    return Judgement(
        claim=claim,
        verdict=verdict,
        basis="results",
        is_decidable=True,
        entries=sides.entries,
        cost=price(sides.trials, params),
    )


def judge_crossover(claim: ClaimLine, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
    """Judge which arm is ahead among networks of equal size, on one side of a number of parameters.

    Raises:
        NotMeasured: no two networks of equal size have results there.
    """
    assert claim.value is not None, f"{claim.id} has no number of parameters"
    is_ahead = claim.kind == "ahead_from"
    side = "or more" if is_ahead else "or fewer"
    sizes = {arm: _parameters(arm, group) for arm in group.arms}
    couples = _of_equal_size(claim, group, sizes)
    there = {one: other for one, other in couples.items() if (sizes[one] >= claim.value) == is_ahead}
    if not there:
        raise NotMeasured(f"no two networks of one size have {claim.value:,.0f} parameters {side}")
    chosen = Pairs(
        proposed=tuple(there), baseline=tuple(there.values()), cells=({},) * len(there), grid=({},) * len(there)
    )
    sides = gather_samples(claim, chosen, group, params.verdicts)
    assert sides.baseline is not None, "pairs have a baseline"
    asked = GainClaim(gain=1.0 if is_ahead else -1.0, margin=None, better=better_of(claim))
    verdict = judge_gain(
        asked,
        sides.proposed,
        sides.baseline,
        rules=params.verdicts,
        pairing="none",
        planned=group.experiment.replicates,
        pairs=(len(group.arms), len(group.experiment.arms)),  # each model that arrives may make another pair
    )
    counted = sorted(sizes[arm] for arm in there)
    said = f"The mean over the {len(there)} of {len(couples)} pairs of one depth and size that ran with"
    said += f" {claim.value:,.0f} parameters {side}: {', '.join(f'{size:,.0f}' for size in counted)}."
    planned = len(group.experiment.arms)
    scope = Scope(pairs=len(there))
    if len(group.arms) < planned:
        said += f" {len(group.arms)} of the {planned} models of the grid ran."
        scope = dataclasses.replace(scope, models=len(group.arms), planned_models=planned)
    return Judgement(
        claim=claim,
        verdict=dataclasses.replace(verdict, explanation=f"{verdict.explanation} {said}", scope=scope),
        basis="results",
        is_decidable=True,
        entries=sides.entries,
        cost=price(sides.trials, params),
    )


def _parameters(arm: str, group: ResultGroup) -> float:
    counted = [row.value for trial in group.arms[arm] for row in trial.result.metrics if row.metric == "parameters"]
    return counted[0] if counted else math.nan


def _of_equal_size(claim: ClaimLine, group: ResultGroup, sizes: dict[str, float]) -> dict[str, str]:
    """For each proposed arm, the baseline nearest in parameters among those that differ from it only in width."""
    known = group.experiment.arms
    found = {}
    for arm in fnmatch.filter(group.arms, claim.arm or ""):
        like = [
            other
            for other in fnmatch.filter(group.arms, claim.baseline_arm or "")
            if _but_width(known[other].model) == _but_width(known[arm].model)
            and max(sizes[arm] / sizes[other], sizes[other] / sizes[arm]) <= MOST_APART
        ]
        if like:
            found[arm] = min(like, key=lambda other: abs(math.log(sizes[other] / sizes[arm])))
    return found


def _but_width(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name not in ("name", "width")}
