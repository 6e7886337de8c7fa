"""Kinds of claims about a gain of one model over another: an order, its size, a gap, comparable models."""

from __future__ import annotations

from typing import Any

import numpy as np

from stages.claims.kinds.base import WELCH, TrainedKind, VerdictAndOurs
from stages.claims.sides import ClaimSamples
from stages.params.experiment import Params
from stages.runs.evidence import unpack_correct
from stages.verdicts import (
    ComparableClaim,
    Design,
    EvidenceLevel,
    GainClaim,
    Power,
    indicate_order,
    judge_comparable,
    judge_gain,
    judge_gap,
    power_of_comparable,
    power_of_gain,
    power_of_value,
)
from stages.verdicts.power import power_of_sign


class GainKind(TrainedKind):
    """A gain of one model over another, better positive; our number is the gain that the verdict is about."""

    @property
    def margin(self) -> float | None:
        return None if self.claim.value is None else self.margin_of_gain

    @property
    def margin_of_gain(self) -> float:
        is_log = self.claim.metric.endswith("log_mse")
        return (self.margins.log_mse if is_log else self.margins.difference)(self.claim.value or 0.0)

    @property
    def asked(self) -> GainClaim:
        claim = self.claim
        if claim.value is None:  # an order without a size
            return GainClaim(gain=1.0, margin=None, better=self.better)
        return GainClaim(
            gain=claim.value, margin=self.margin, better=self.better, stderr=claim.stderr, n=claim.n, slope=self.slope
        )

    def setting(self, sides: ClaimSamples) -> dict[str, Any]:
        """The judges' arguments on the experiment; widening is the most that left-out test rows could change."""
        group, share = sides.group, sides.excluded_share
        return {
            "rules": self.rules,
            "planned": group.experiment.replicates,
            "pairing": group.pairing,
            "folds": group.folds,
            "widening": share * _disagreement(sides) if share else 0.0,
        }


def _disagreement(sides: ClaimSamples) -> float:
    """Share of test images on which only one of the two arms' first models is right; 1 if it isn't known."""
    first = {trial.result.arm: trial.result for trial in reversed(sides.trials) if trial.result.correct is not None}
    if len(first) < 2:
        return 1.0
    one, other = (unpack_correct(line.correct or "", line.data.test_images) for line in list(first.values())[:2])
    return float(np.mean(one != other)) if one.shape == other.shape else 1.0


class DifferenceKind(GainKind, kinds="difference"):
    """One model is better than another by a printed gain."""

    test = f"sign of the gain ({WELCH}); its size apart, by two one-sided tests against the margin"

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        group = sides.group
        if group.evidence_level is EvidenceLevel.INDICATES:
            precision = group.other_precision
            verdict = indicate_order(self.asked, *sides.both, epochs_share=group.share, precision=precision)
        else:
            verdict = judge_gain(
                self.asked,
                *sides.both,
                **self.setting(sides),
                test_sets=self.of_test_sets(_disagreement(sides), sides, params),
                part=sides.part,
                pairs=(len(sides.pairs.proposed), sides.pairs.planned),
            )
        return verdict, verdict.estimate

    def power_of(self, design: Design) -> Power:
        return power_of_gain(design, self.value, self.margin_of_gain, self.rules)


class OrderKind(DifferenceKind, kinds="order"):
    """One model is better than another; the paper may print no gain."""

    may_lack_number = True

    def power_of(self, design: Design) -> Power:
        return (
            power_of_sign(design, self.rules, is_known=True) if self.claim.value is None else super().power_of(design)
        )


class GapKind(GainKind, kinds="gap"):
    """A printed difference of two models that claims no order: its size alone."""

    test = f"two one-sided tests of the gain minus the printed one ({WELCH}) against the margin"
    is_number = True

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        test_sets = self.of_test_sets(_disagreement(sides), sides, params)
        verdict = judge_gap(self.asked, *sides.both, **self.setting(sides), test_sets=test_sets)
        return verdict, verdict.estimate

    def power_of(self, design: Design) -> Power:
        margin = self.margin_of_gain
        return power_of_value(design, margin, self.rules, can_reproduce=abs(self.value) > margin)


class EquivalenceKind(GainKind, kinds="equivalence"):
    """Two models are comparable; the number is the largest loss that the paper calls so, the precision the margin."""

    test = f"non-inferiority by the margin of the gain ({WELCH})"
    may_lack_number = True

    @property
    def margin(self) -> float:
        return self.margins.comparable(self.claim.precision or 0.0)

    @property
    def comparable(self) -> ComparableClaim:
        return ComparableClaim(margin=self.margin, better=self.better, accepted=self.claim.value)

    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        verdict = judge_comparable(self.comparable, *sides.both, **self.setting(sides))
        return verdict, verdict.estimate

    def power_of(self, design: Design) -> Power:
        return power_of_comparable(design, self.margin, self.comparable.widest, self.rules)
