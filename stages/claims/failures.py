"""Claims about proportions of failed trainings over a whole grid of arms."""

from __future__ import annotations

from collections.abc import Mapping

from stages.claims.judgement import Entry, Judgement, Side
from stages.claims.lines import ClaimLine
from stages.claims.margins import slope_of_margin
from stages.claims.measures import count_failed
from stages.claims.sides import Pairs, entry_of
from stages.claims.trials import ResultGroup, price
from stages.params.experiment import Params
from stages.runs.trial import Trial
from stages.verdicts import EvidenceLevel, Failures, judge_proportion, judge_proportions, not_tested


def judge_failures(claim: ClaimLine, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
    """Judge failed trainings over a whole grid, in one look, once the grid is complete."""
    assert claim.value is not None and claim.trials is not None, f"{claim.id} has no count"
    experiment = group.experiment
    failed: dict[Side, list[tuple[int, int]]] = {}
    entries: list[Entry] = []
    used: list[Trial] = []
    sides: Mapping[Side, tuple[str, ...]] = {"proposed": pairs.proposed, "baseline": pairs.baseline}
    for side, arms in sides.items():
        failed[side] = []
        for arm in dict.fromkeys(arms):
            mine, peers = (
                [trial for trial in group.arms.get(name, ()) if trial.result.replicate < experiment.replicates]
                for name in (arm, experiment.arms[arm].against or "")
            )
            failed[side].append(count_failed(mine, peers))
            used += mine
            entries += [entry_of(trial, side, None) for trial in mine]
    count, there = map(sum, zip(*failed["proposed"], strict=True))
    planned = pairs.planned * experiment.replicates
    is_whole = group.evidence_level is EvidenceLevel.DECIDES and there == planned
    is_whole = is_whole and all(of == experiment.replicates for _, of in failed["baseline"])
    networks = {
        side: Failures(counts=tuple(one for one, _ in counts), each=experiment.replicates)
        for side, counts in failed.items()
    }
    if not is_whole:
        missing = f"{there} of {planned} trainings of the grid are there, {count} failed"
        verdict = not_tested(f"{missing}; the test looks once, at all of them.")
    elif pairs.baseline:
        verdict = judge_proportions(networks["proposed"], networks["baseline"], rules=params.verdicts)
    else:
        printed = int(claim.value), claim.trials
        margins = params.verdicts.margins
        margin = margins.error(printed[0] / printed[1], 1 / printed[1])
        slope = slope_of_margin(claim, margins) * claim.trials  # of the proportion, not of the count
        verdict = judge_proportion(printed, networks["proposed"], margin, rules=params.verdicts, slope=slope)
    return Judgement(
        claim=claim,
        verdict=verdict,
        basis="results",
        is_decidable=True,
        ours=float(count) if is_whole else None,  # in the claim's unit: trainings
        entries=tuple(entries),
        cost=price(used, params),
    )
