"""Kinds of claims about trained models.

They are about one number (a value, a ratio, a range, a number inside them, a spread), or about a gain of one model over
another (an order, its size, a gap, comparable models).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection
from statistics import fmean
from typing import Any

import numpy as np

from stages.claims.kinds.base import WELCH, Combination, Plan, TrainedKind, VerdictAndOurs
from stages.claims.trials import ClaimSamples, NotMeasured, mean_of, measure
from stages.params.experiment import Params
from stages.runs.evidence import unpack_correct
from stages.verdicts import (
    ComparableClaim,
    ComparedArms,
    Design,
    EvidenceLevel,
    GainClaim,
    Observation,
    Power,
    Sample,
    ValueClaim,
    indicate_order,
    judge_comparable,
    judge_gain,
    judge_gap,
    judge_noise,
    judge_side,
    judge_value,
    power_of_comparable,
    power_of_gain,
    power_of_value,
)
from stages.verdicts.families import power_of_noise
from stages.verdicts.intervals import complete_look, variance_of
from stages.verdicts.power import power_of_sign

EXACT = "peak_memory_bytes"
"""The metric whose replicates may be equal to the byte, so that they have no spread."""


class ValueKind(TrainedKind, kinds="value"):
    """The number of one model."""

    pools_labs = True
    test = "two one-sided t tests of our mean minus the printed number against the margin"
    error = "the arm's own spread over replicates; the paper's printed error or spread of one run"
    is_number = True

    @property
    def margin(self) -> float:
        """Margin for the kind of number: an accuracy, an error, a loss, a memory."""
        claim, value, precision = self.claim, self.claim.value or 0.0, self.claim.precision or 0.0
        if claim.is_share:
            return (self.margins.accuracy if claim.better == "higher" else self.margins.error)(value, precision)
        if claim.metric.endswith("log_mse"):
            return self.margins.log_mse(value, precision)
        if claim.unit == "bytes":
            return self.margins.memory(value, precision)
        return self.margins.loss(abs(value), precision)

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        claim = self.claim
        level = fmean(sides.proposed.values or [0.0])
        error = 1 - level if claim.better == "higher" else level
        stderr, paper_n = (None, sides.paper_n) if sides.group.of_labs else (claim.stderr, claim.n)
        verdict = judge_value(
            ValueClaim(value=self.value, margin=self.margin, stderr=stderr, n=paper_n, slope=self.slope),
            sides.proposed,
            rules=self.rules,
            planned=sides.group.planned,
            widening=sides.excluded_share * error if claim.is_share else 0.0,
            test_sets=self.of_test_sets(error * (1 - error), sides, params),
        )
        return verdict, mean_of(sides.proposed, sides.group.looks(self.rules))

    def power_of(self, design: Design) -> Power:
        return power_of_value(design, self.margin, self.rules)

    def levels(self, units: Collection[str], plan: Plan) -> dict[str, float]:
        levels = super().levels(units, plan)
        return levels | {arm: self.value for arm in levels if arm == self.claim.arm}


class RatioKind(TrainedKind, kinds="ratio"):
    """A ratio of two measured numbers: a relative gain, a relative reduction, a share of another gain."""

    test = "two one-sided t tests of the ratio minus the printed one against the margin"
    is_number = True

    @property
    def margin(self) -> float:
        """The margin of a difference of shares; a ratio is one of the baseline, whatever its metric's unit."""
        return self.margins.difference(self.claim.value or 0.0, self.claim.precision or 0.0, is_share=True)

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest ratio that count as the printed one."""
        return self.value - self.margin, self.value + self.margin

    printed_error = None  # the numbers' errors aren't that of their ratio

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        """Judge a ratio; one no larger than its margin is never `reproduced`: even no gain would count as equal."""
        sample, s2_at = self.measure_ratio(sides)
        verdict = judge_value(
            ValueClaim(value=self.value, margin=self.margin, n=self.claim.n, slope=self.slope),
            sample,
            rules=self.rules,
            planned=sides.group.experiment.replicates,
            size=abs(self.value),
            s2_at=s2_at,
        )
        return verdict, mean_of(sample, sides.group.looks(self.rules))

    def measure_ratio(self, sides: ClaimSamples) -> tuple[Sample, Callable[[float], float]]:
        """Return the ratio r = N/D of means, as a sample with mean r and the spread of (N − b D)/mean(D).

        The second value is a function from another margin to the variance of the replicates there.

        b is the end of the claim's margin at which N − b D spreads more.  If the truth is b, its t test is exact
        (Fieller 1954); the spread at the printed ratio is smaller, and a test with it errs in 9 % instead of 5 %.  N is
        the gain and D its reference: the baseline, our value if lower is better, or the gain of another arm.  r and
        the spread are those of the last complete analysis.

        Raises:
            NotMeasured: D is indistinguishable from zero, or no replicate has both.
        """
        claim, group, looks = self.claim, sides.group, sides.group.looks(self.rules)
        proposed, baseline = sides.both
        ours, theirs = proposed.finished, baseline.finished
        sign = 1 if claim.better == "higher" else -1
        shared = [index for index in ours if index in theirs]
        top = {index: sign * (ours[index] - theirs[index]) for index in shared}
        if claim.unit == "of the gain of DAC":
            against = group.experiment.arms[sides.pairs.proposed[0]].against
            if against is None or against not in group.arms:
                raise NotMeasured(f"{against}, over which both gain, has none")
            base = measure(claim.metric, group.arms[against], looks).finished
            shared = [index for index in shared if index in base]
            top = {index: sign * (ours[index] - base[index]) for index in shared}
            bottom = {index: sign * (theirs[index] - base[index]) for index in shared}
        else:
            of_ours = claim.unit == "relative gain" and claim.better == "lower"
            bottom = {index: (ours if of_ours else theirs)[index] for index in shared}
        indices = sorted(set(proposed.indices) & set(baseline.indices))
        n = complete_look(indices, looks)
        used = [index for index in bottom if n is None or index < n]
        if not used:
            raise NotMeasured("no replicate has finished in both arms")
        above, below = (np.array([side[index] for index in used]) for side in (top, bottom))
        mean, stderr = float(below.mean()), below.std(ddof=1) / math.sqrt(below.size) if below.size > 1 else 0.0
        if abs(mean) <= 2 * stderr:
            raise NotMeasured(f"what it relates to, {mean:.3g} ± {stderr:.2g}, is not distinct from 0")
        b = max(self.limits, key=lambda limit: float(np.var(above - limit * below)))
        middle = sum(self.limits) / 2

        def s2_at(margin: float) -> float:
            ends = middle - margin, middle + margin
            return max(float(variance_of((above - limit * below) / mean)) for limit in ends)

        environments: dict[int, frozenset[str]] = {}
        for replicate in (*proposed.replicates, *baseline.replicates):
            environments[replicate.index] = replicate.environments | environments.get(replicate.index, frozenset())
        values = {index: b + (top[index] - b * bottom[index]) / mean for index in top}
        ratios = (Observation(index=at, value=values.get(at), environments=environments[at]) for at in indices)
        return Sample(tuple(ratios)), s2_at

    def power_of(self, design: Design) -> Power:
        return power_of_value(design, self.margin, self.rules, can_reproduce=abs(self.value) > self.margin)

    def combination(self, plan: Plan) -> tuple[Combination, Combination]:
        (ours,), (theirs,) = plan.pairs.proposed, plan.pairs.baseline
        sign = -1 if self.claim.unit == "relative reduction" else 1
        options: list[Combination] = [{ours: 1, theirs: -(1 + sign * b)} for b in self.limits]
        bottom: Combination = {theirs: 1}
        if self.claim.unit == "of the gain of DAC":
            base = str(plan.experiment.arms[ours].against)
            options = [{ours: 1, base: b - 1, theirs: -b} for b in self.limits]
            bottom = {theirs: 1, base: -1}
        return max(options, key=lambda top: math.hypot(*top.values())), bottom


class RangeKind(RatioKind, kinds="range"):
    """A printed range of ratios, judged as the number in its middle, with a margin that reaches the rounded ends."""

    test = "t interval of our mean against the printed range, widened by the margin"
    is_number = False

    @property
    def limits(self) -> tuple[float, float]:
        assert self.claim.high is not None, f"{self.claim.id} has no end"
        precision = self.claim.precision or 0.0
        return self.value - precision, self.claim.high + precision

    @property
    def margin(self) -> float:
        low, high = self.limits
        return (high - low) / 2

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        (sample, s2_at), middle = self.measure_ratio(sides), "the middle of the printed range,"
        verdict = judge_value(
            ValueClaim(value=sum(self.limits) / 2, margin=self.margin, stderr=0.0, wording=middle),
            sample,
            rules=self.rules,
            planned=sides.group.experiment.replicates,
            may_be_exact=self.claim.metric == EXACT,
            s2_at=s2_at,
        )
        ours = mean_of(sample, sides.group.looks(self.rules))
        return dataclasses.replace(verdict, prediction=None), ours  # the paper prints no number that a rerun could give

    def power(self, plan: Plan) -> Power:
        return self.power_near(plan, self.margin, "the truth is in the middle of the range")


class ObservedKind(TrainedKind, kinds="observed"):
    """A number from inside trained networks: on one side of the stated one or, if no side is stated, equal to it.

    The stated number follows from the paper's words and has no error of its own.
    """

    test = "t interval of the mean, on the printed side of the bound or within the margin of it"

    printed_error = 0.0

    @property
    def is_number(self) -> bool:  # type: ignore[override]
        return self.claim.better is None

    @property
    def margin(self) -> float | None:
        if not self.is_number:
            return None
        return self.margins.difference(self.value, self.claim.precision or 0.0, is_share=self.claim.is_share)

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        rules, planned = self.rules, sides.group.experiment.replicates
        ours = mean_of(sides.proposed, sides.group.looks(rules))
        if self.margin is None:
            return judge_side(self.value, self.better, sides.proposed, rules=rules, planned=planned), ours
        stated = ValueClaim(value=self.value, margin=self.margin, stderr=self.printed_error)
        verdict = judge_value(stated, sides.proposed, rules=rules, planned=planned)
        return dataclasses.replace(verdict, prediction=None), ours  # no paper measured it

    def power(self, plan: Plan) -> Power:
        if self.margin is None:
            design = self.design_without_size(plan, pairing="value", stderr=0.0)
            is_log = self.claim.metric.endswith("log_mse")
            return power_of_sign(design, self.rules, is_known=design.source == "measured" or is_log)
        return self.power_near(plan, self.margin, "the statement is right")


class NoiseKind(TrainedKind, kinds="noise"):
    """A printed range of several numbers that differ by chance alone."""

    test = "studentized range of the printed numbers against our spread over seeds"
    is_number = True

    @property
    def numbers(self) -> int:
        assert self.claim.trials is not None, f"{self.claim.id} prints no spread of several numbers"
        return self.claim.trials

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        planned = sides.group.experiment.replicates
        verdict = judge_noise(self.value, self.numbers, sides.proposed, rules=self.rules, planned=planned)
        return verdict, None if verdict.estimate is None else self.value + verdict.estimate

    def power(self, plan: Plan) -> Power:
        return power_of_noise(plan.experiment.replicates, self.value, self.numbers, self.rules)


class GainKind(TrainedKind):
    """A gain of one model over another, better positive; our number is the gain that the verdict is about."""

    @property
    def margin(self) -> float | None:
        return None if self.claim.value is None else self.margin_of_gain

    @property
    def margin_of_gain(self) -> float:
        gain, precision = self.claim.value or 0.0, self.claim.precision or 0.0
        if self.claim.metric.endswith("log_mse"):
            return self.margins.log_mse(gain, precision)
        return self.margins.difference(gain, precision, is_share=self.claim.is_share)

    @property
    def asked(self) -> GainClaim:
        claim = self.claim
        if claim.value is None:  # an order without a size
            return GainClaim(gain=1.0, margin=None, better=self.better)
        return GainClaim(
            gain=claim.value, margin=self.margin, better=self.better, stderr=claim.stderr, n=claim.n, slope=self.slope
        )

    def compared(self, sides: ClaimSamples, **more: Any) -> ComparedArms:
        """Return the arms and how the experiment plans them; excluded test rows change at most `widening`."""
        group, share = sides.group, sides.excluded_share
        return ComparedArms(
            *sides.both,
            rules=self.rules,
            planned=group.planned,
            pairing=group.pairing,
            folds=group.folds,
            widening=share * _disagreement(sides) if share else 0.0,
            **more,
        )


def _disagreement(sides: ClaimSamples) -> float:
    """Share of test images on which only one of the two arms' first models is right; 1 if unknown."""
    first = {trial.result.arm: trial.result for trial in reversed(sides.trials) if trial.result.correct is not None}
    if len(first) < 2:
        return 1.0
    one, other = (unpack_correct(line.correct or "", line.data.test_images) for line in list(first.values())[:2])
    return float(np.mean(one != other)) if one.shape == other.shape else 1.0


class DifferenceKind(GainKind, kinds="difference"):
    """One model is better than another by a printed gain."""

    pools_labs = True
    test = f"sign of the gain ({WELCH}); its size apart, by two one-sided tests against the margin"

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        group = sides.group
        if group.evidence_level is EvidenceLevel.INDICATES:
            precision = group.other_precision
            verdict = indicate_order(self.asked, *sides.both, epochs_share=group.share, precision=precision)
        else:
            test_sets = self.of_test_sets(_disagreement(sides), sides, params)
            pairs = len(sides.pairs.proposed), sides.pairs.planned
            verdict = judge_gain(self.asked, self.compared(sides, test_sets=test_sets, part=sides.part, pairs=pairs))
        return verdict, verdict.estimate

    def power_of(self, design: Design) -> Power:
        return power_of_gain(design, self.value, self.margin_of_gain, self.rules)


class OrderKind(DifferenceKind, kinds="order"):
    """One model is better than another; the paper may print no gain."""

    may_lack_number = True

    def power_of(self, design: Design) -> Power:
        if self.claim.value is None:
            return power_of_sign(design, self.rules, is_known=True)
        return super().power_of(design)


class GapKind(GainKind, kinds="gap"):
    """A printed difference between two models without a claimed order: only its size is judged."""

    test = f"two one-sided tests of the gain minus the printed one ({WELCH}) against the margin"
    is_number = True

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        test_sets = self.of_test_sets(_disagreement(sides), sides, params)
        verdict = judge_gap(self.asked, self.compared(sides, test_sets=test_sets))
        return verdict, verdict.estimate

    def power_of(self, design: Design) -> Power:
        margin = self.margin_of_gain
        return power_of_value(design, margin, self.rules, can_reproduce=abs(self.value) > margin)


class EquivalenceKind(GainKind, kinds="equivalence"):
    """Two models are comparable; `value` is the largest loss that the paper calls so, `precision` the margin."""

    pools_labs = True
    test = f"non-inferiority by the margin of the gain ({WELCH})"
    may_lack_number = True

    @property
    def margin(self) -> float | None:
        """None if it is relative to the baseline's mean, as for a perplexity; logarithms' differences are relative."""
        is_known = self.claim.is_share or self.claim.metric.endswith("log_mse")
        return self.margin_at(1.0) if is_known else None

    def margin_at(self, level: float) -> float:
        """Return the margin if the baseline's mean is `level`."""
        return self.margins.comparable(level, self.claim.precision or 0.0, is_share=self.claim.is_share)

    def comparable(self, margin: float) -> ComparableClaim:
        return ComparableClaim(margin=margin, better=self.better, accepted=self.claim.value)

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        level = mean_of(sides.both[1], sides.group.looks(self.rules))
        margin = self.margin_at(level or 0.0) if self.margin is None else self.margin
        verdict = judge_comparable(self.comparable(margin), self.compared(sides))
        return verdict, verdict.estimate

    def power(self, plan: Plan) -> Power | None:
        """Compute the power; None without a spread, or if neither results nor the paper give the baseline's number."""
        design, margin = self.design(plan), self.margin or plan.verdict.margin
        if margin is None:
            where = plan.experiment.name, self.claim.metric
            printed = (one for one in plan.claims if one.kind == "value" and (one.experiment, one.metric) == where)
            levels = [one.value for one in printed if one.arm in plan.pairs.baseline and one.value is not None]
            margin = self.margin_at(fmean(levels)) if levels else None
        if design is None or not margin:
            return None
        return power_of_comparable(design, margin, self.comparable(margin).widest, self.rules)
