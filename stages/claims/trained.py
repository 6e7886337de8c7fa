"""Claims that trained models decide: values, gains, comparable arms, ratios, ranges, observations, failed trainings."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

import numpy as np

from stages.claims.arms import summarise_arms
from stages.claims.failures import judge_failures
from stages.claims.grids import judge_crossover, judge_levels
from stages.claims.judgement import Judgement
from stages.claims.lines import ORDERS, ClaimLine, Kind
from stages.claims.margins import margin_of_gain, margin_of_value, slope_of_margin
from stages.claims.measures import NotMeasured
from stages.claims.ratios import judge_relative, relative
from stages.claims.sides import ClaimSamples, Pairs, better_of, find_group, gather_samples, mean_of
from stages.claims.trials import ResultGroup, price
from stages.params.experiment import Params
from stages.rules import Rules
from stages.runs.evidence import unpack_correct
from stages.runs.trial import Trial
from stages.verdicts import (
    ComparableClaim,
    EvidenceLevel,
    GainClaim,
    Sample,
    ValueClaim,
    Verdict,
    indicate_order,
    judge_comparable,
    judge_gain,
    judge_gap,
    judge_noise,
    judge_side,
    judge_value,
    not_tested,
)

Judge = Callable[[ClaimLine, Pairs, ResultGroup, Params], Judgement]
VerdictAndOurs = tuple[Verdict, float | None]
SamplesJudge = Callable[[ClaimLine, ClaimSamples, Pairs, ResultGroup, Params], VerdictAndOurs]
NOT_RUN = "Not run yet."
SILENT = "Only stand-ins or too short runs so far; they say nothing of a claim."
BYTES = 256
PER_BYTE = (
    "Our texts are bytes: nats per byte don't compare with nats per token, "
    "and a ratio between models is of a similar experiment, not of the paper's."
)
NO_NUMBER_OF = "{}; a number needs all of it, only an order may be indicated."


def judge_trained(claim: ClaimLine, params: Params, groups: Sequence[ResultGroup]) -> Judgement:
    """Judge the claim by the results of its experiment with the strongest evidence."""
    (name,) = fnmatch.filter(params.experiments, claim.experiment or "")
    experiment = params.experiments[name]
    if claim.unit == "nats per token" and params.datasets[experiment.dataset].classes == BYTES:
        return Judgement(claim=claim, verdict=not_tested(PER_BYTE), basis="none", is_decidable=False)
    speaking = [group for group in groups if group.evidence_level is not EvidenceLevel.SILENT]
    pairs, group = find_group(claim, experiment, speaking)
    if group is None:
        said = NOT_RUN if find_group(claim, experiment, groups)[1] is None else SILENT
        return Judgement(claim=claim, verdict=not_tested(said), basis="none", is_decidable=True)
    try:
        return JUDGES[claim.kind](claim, pairs, group, params)
    except NotMeasured as error:
        verdict = not_tested(f"There are results, but {error}.")
        return Judgement(claim=claim, verdict=verdict, basis="none", is_decidable=True)


def _judge_grid(judge: Judge, claim: ClaimLine, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
    """Judge a claim about a whole grid; results that only indicate don't count for it."""
    if group.evidence_level is EvidenceLevel.DECIDES:
        return judge(claim, pairs, group, params)
    return Judgement(claim=claim, verdict=not_tested(_why_it_indicates(group)), basis="none", is_decidable=True)


def _judge_samples(
    judge: SamplesJudge, claim: ClaimLine, pairs: Pairs, group: ResultGroup, params: Params
) -> Judgement:
    """Judge a claim about one or two arms, or their means over a grid."""
    sides = gather_samples(claim, pairs, group, params.verdicts)
    if group.evidence_level is EvidenceLevel.INDICATES and claim.kind not in ORDERS:
        verdict, ours = not_tested(_why_it_indicates(group)), None
    else:
        verdict, ours = judge(claim, sides, pairs, group, params)
    return Judgement(
        claim=claim,
        verdict=dataclasses.replace(verdict, explanation=verdict.explanation + sides.note),
        basis="results",
        is_decidable=True,
        ours=ours,
        entries=sides.entries,
        arms=summarise_arms(claim.metric, pairs.arms, group, params.verdicts),
        cost=price(sides.trials, params),
    )


def _why_it_indicates(group: ResultGroup) -> str:
    """Why results on real data can't decide a number."""
    if group.is_of_part_of_the_data:
        return NO_NUMBER_OF.format("Real data, but a part of them")
    if group.share >= 1 and not group.follows_plan:
        return NO_NUMBER_OF.format("Real data under another protocol than params/ prints today")
    if group.share >= 1 and group.other_precision:
        return NO_NUMBER_OF.format(f"Real data in {group.other_precision}")
    return NO_NUMBER_OF.format(f"Real data on a cut budget, {group.share:.0%} of the printed epochs")


def _judge_value(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    rules = params.verdicts
    assert claim.value is not None, f"{claim.id} has no value"
    level = fmean(sides.proposed.values or [0.0])
    error = 1 - level if claim.better == "higher" else level
    wide = _excluded_share(sides.trials)
    verdict = judge_value(
        ValueClaim(
            value=claim.value,
            margin=margin_of_value(claim, rules.margins),
            stderr=claim.stderr,
            n=claim.n,
            slope=slope_of_margin(claim, rules.margins),
        ),
        sides.proposed,
        rules=rules,
        planned=group.experiment.replicates,
        widening=wide * error if claim.unit == "fraction" else 0.0,
        test_sets=_of_test_sets(claim, error * (1 - error), sides, group, params),
    )
    return verdict, mean_of(sides.proposed, group.looks(rules))


def _judge_ratio(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    rules = params.verdicts
    ratio = relative(claim, sides, pairs, group, rules)
    return judge_relative(claim, ratio, group, rules), mean_of(ratio.sample, group.looks(rules))


def _judge_observed(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    """Judge a number from inside trained networks: on one side of the stated one or, if no side is stated, equal to it.

    The stated number follows from the paper's words and has no error of its own.
    """
    assert claim.value is not None, f"{claim.id} has nothing to be held against"
    rules, planned = params.verdicts, group.experiment.replicates
    ours = mean_of(sides.proposed, group.looks(rules))
    if claim.better is not None:
        return judge_side(claim.value, better_of(claim), sides.proposed, rules=rules, planned=planned), ours
    margin = rules.margins.difference(claim.value)
    stated = ValueClaim(value=claim.value, margin=margin, stderr=0.0)
    verdict = judge_value(stated, sides.proposed, rules=rules, planned=planned)
    return dataclasses.replace(verdict, prediction=None), ours  # no paper ran it


def _judge_noise(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    assert claim.value is not None and claim.trials is not None, f"{claim.id} prints no spread of several numbers"
    rules, planned = params.verdicts, group.experiment.replicates
    verdict = judge_noise(claim.value, claim.trials, sides.proposed, rules=rules, planned=planned)
    return verdict, None if verdict.estimate is None else claim.value + verdict.estimate


def _has_own_test_set(claim: ClaimLine, group: ResultGroup, params: Params) -> bool:
    return claim.unit == "fraction" and params.datasets[group.experiment.dataset].test_is_ours


def _of_test_sets(claim: ClaimLine, variance: float, sides: ClaimSamples, group: ResultGroup, params: Params) -> float:
    """Variance that two draws of the test set add, ours and the paper's, where one image has this `variance`."""
    if not _has_own_test_set(claim, group, params):
        return 0.0
    return 2 * variance / min(trial.result.data.test_images for trial in sides.trials)


def _of_test_sets_of_pair(claim: ClaimLine, sides: ClaimSamples, group: ResultGroup, params: Params) -> float:
    """The same for a gain, where only images on which the arms disagree count."""
    if not _has_own_test_set(claim, group, params):
        return 0.0
    return _of_test_sets(claim, _disagreement(sides.trials), sides, group, params)


def _excluded_share(trials: Sequence[Trial]) -> float:
    """Share of the official test rows that our source lacks."""
    shares = [
        line.data.excluded_test_images / (line.data.test_images + line.data.excluded_test_images)
        for line in (trial.result for trial in trials)
        if line.data.excluded_test_images
    ]
    return max(shares, default=0.0)


def _judge_order(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    gain, baseline = _gain_claim(claim, params.verdicts), _baseline(claim, sides)
    if group.evidence_level is EvidenceLevel.INDICATES:
        precision = group.other_precision
        verdict = indicate_order(gain, sides.proposed, baseline, epochs_share=group.share, precision=precision)
        return _with_gain(verdict)
    verdict = judge_gain(
        gain,
        sides.proposed,
        baseline,
        rules=params.verdicts,
        planned=group.experiment.replicates,
        pairing=group.pairing,
        folds=group.folds,
        widening=_widening_of_pair(sides),
        test_sets=_of_test_sets_of_pair(claim, sides, group, params),
        part=sides.part,
        pairs=(len(pairs.proposed), pairs.planned),
    )
    return _with_gain(verdict)


def _judge_gap(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    verdict = judge_gap(
        _gain_claim(claim, params.verdicts),
        sides.proposed,
        _baseline(claim, sides),
        rules=params.verdicts,
        planned=group.experiment.replicates,
        pairing=group.pairing,
        folds=group.folds,
        widening=_widening_of_pair(sides),
        test_sets=_of_test_sets_of_pair(claim, sides, group, params),
    )
    return _with_gain(verdict)


def _judge_equivalence(
    claim: ClaimLine, sides: ClaimSamples, pairs: Pairs, group: ResultGroup, params: Params
) -> VerdictAndOurs:
    rules = params.verdicts
    margin = rules.margins.comparable(claim.precision or 0.0)
    verdict = judge_comparable(
        ComparableClaim(margin=margin, better=better_of(claim), accepted=claim.value),
        sides.proposed,
        _baseline(claim, sides),
        rules=rules,
        planned=group.experiment.replicates,
        pairing=group.pairing,
        folds=group.folds,
        widening=_widening_of_pair(sides),
    )
    return _with_gain(verdict)


def _with_gain(verdict: Verdict) -> VerdictAndOurs:
    """The verdict with the gain as our number, which the verdict is about."""
    return verdict, verdict.estimate


def _gain_claim(claim: ClaimLine, rules: Rules) -> GainClaim:
    if claim.value is None:  # an order without a size
        return GainClaim(gain=1.0, margin=None, better=better_of(claim))
    margin = margin_of_gain(claim, rules.margins)
    slope = slope_of_margin(claim, rules.margins)
    return GainClaim(
        gain=claim.value, margin=margin, better=better_of(claim), stderr=claim.stderr, n=claim.n, slope=slope
    )


def _baseline(claim: ClaimLine, sides: ClaimSamples) -> Sample:
    assert sides.baseline is not None, f"{claim.id} compares nothing"
    return sides.baseline


def _widening_of_pair(sides: ClaimSamples) -> float:
    """The most that left-out test rows could change: their share times the share on which the two arms disagree."""
    share = _excluded_share(sides.trials)
    return share * _disagreement(sides.trials) if share else 0.0


def _disagreement(trials: Sequence[Trial]) -> float:
    """Share of test images on which only one of the two arms' first models is right; 1 where it isn't known."""
    first = {trial.result.arm: trial.result for trial in reversed(trials) if trial.result.correct is not None}
    if len(first) < 2:
        return 1.0
    one, other = (unpack_correct(line.correct or "", line.data.test_images) for line in list(first.values())[:2])
    return float(np.mean(one != other)) if one.shape == other.shape else 1.0


JUDGES: Mapping[Kind, Judge] = {
    "value": partial(_judge_samples, _judge_value),
    "ratio": partial(_judge_samples, _judge_ratio),
    "range": partial(_judge_samples, _judge_ratio),
    "observed": partial(_judge_samples, _judge_observed),
    "noise": partial(_judge_samples, _judge_noise),
    "order": partial(_judge_samples, _judge_order),
    "difference": partial(_judge_samples, _judge_order),
    "gap": partial(_judge_samples, _judge_gap),
    "equivalence": partial(_judge_samples, _judge_equivalence),
    "uniform": partial(_judge_grid, judge_levels),
    "ahead_from": partial(_judge_grid, judge_crossover),
    "behind_up_to": partial(_judge_grid, judge_crossover),
    "failures": judge_failures,
}
"""What judges a claim of trained models, by its kind."""
