"""Claims about proportions of failed trainings over a whole grid of arms."""

from __future__ import annotations

from collections.abc import Mapping

from stages.claims.judgement import Entry, Judgement, Side
from stages.claims.lines import ClaimLine
from stages.claims.measures import count_failed
from stages.claims.sides import Pairs, entry_of
from stages.claims.trials import ResultGroup, price
from stages.params.experiment import Params
from stages.runs.trial import Trial
from stages.verdicts import EvidenceLevel, judge_proportion, judge_proportions, not_tested


def judge_failures(claim: ClaimLine, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
    """Judge failed trainings over a whole grid, in one look, once the grid is complete."""
    assert claim.value is not None and claim.trials is not None, f"{claim.id} has no count"
    experiment = group.experiment
    counts: dict[Side, tuple[int, int]] = {}
    entries: list[Entry] = []
    used: list[Trial] = []
    sides: Mapping[Side, tuple[str, ...]] = {"proposed": pairs.proposed, "baseline": pairs.baseline}
    for side, arms in sides.items():
        failed = total = 0
        for arm in dict.fromkeys(arms):
            against = experiment.arms[arm].against
            one = count_failed(group.arms[arm], group.arms.get(against or "", ()))
            failed, total = failed + one[0], total + one[1]
            used += group.arms[arm]
            entries += [entry_of(trial, side, None) for trial in group.arms[arm]]
        counts[side] = failed, total
    planned = pairs.planned * experiment.replicates
    is_whole = group.evidence_level is EvidenceLevel.DECIDES and counts["proposed"][1] >= planned
    if not is_whole:
        there = f"{counts['proposed'][1]} of {planned} trainings of the grid are there, {counts['proposed'][0]} failed"
        verdict = not_tested(f"{there}; the test looks once, at all of them.")
    elif pairs.baseline:
        verdict = judge_proportions(counts["proposed"], counts["baseline"], rules=params.verdicts)
    else:
        printed = int(claim.value), claim.trials
        margin = params.verdicts.margins.error(printed[0] / printed[1], 1 / printed[1])
        verdict = judge_proportion(printed, counts["proposed"], margin, rules=params.verdicts)
    return Judgement(
        claim=claim,
        verdict=verdict,
        basis="results",
        is_decidable=True,
        ours=float(counts["proposed"][0]) if is_whole else None,  # in the claim's unit: trainings
        entries=tuple(entries),
        cost=price(used, params),
    )
