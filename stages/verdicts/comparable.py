"""Two arms that a paper calls comparable: is the proposed one no worse, by more than a margin?

"Comparable" defends an arm that may be behind, so the claim doesn't depend on who is ahead.  The test is therefore one
of non-inferiority, of the gain g = proposed − baseline, better positive, against two margins δ ≤ Δ:

    supported               the lower bound of g, at 1 − α, lies above −δ: comparable by the margin of the rules
    holds under a reading   it lies above −Δ: comparable in the paper's own sense; Δ is the largest loss that the paper
                            calls comparable, where that is more than δ
    reversed                the upper bound, at 1 − α/2, lies below −Δ: worse under both readings
    unresolved              otherwise

The margins are nested, so both tests keep their level (a closed test).  Variances are those of a gain (`difference`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stages.rules import Rules
from stages.verdicts.difference import GainEstimate, Pairing, at_last_look, measure_gain, with_assumptions
from stages.verdicts.intervals import Numbers, by_margin, chance_below, half_width
from stages.verdicts.looks import expected_replicates, level, looks_of_plan
from stages.verdicts.numerals import signed, with_interval
from stages.verdicts.value import tell
from stages.verdicts.verdict import Sample, Status, Verdict


@dataclass(frozen=True, kw_only=True)
class ComparableClaim:
    """`margin`: the loss that still counts as comparable by the rules; `accepted`: the largest that the paper calls so.

    Both are positive, in the metric's unit; `better` says which way our metric points.
    """

    margin: float
    better: Literal["higher", "lower"]
    accepted: float | None = None

    @property
    def widest(self) -> float:
        return max(self.margin, self.accepted or 0.0)


def judge_comparable(
    claim: ComparableClaim,
    proposed: Sample,
    baseline: Sample,
    *,
    rules: Rules,
    pairing: Pairing,
    planned: int | None = None,
    widening: float = 0.0,
    folds: int | None = None,
) -> Verdict:
    """Judge whether `proposed` is no worse than `baseline`.  Looks end with the `planned` replicates; `widening`: what
    left-out test rows could change; `folds` as in `judge_gain`.
    """
    looks = looks_of_plan(rules.looks, planned)
    arms = at_last_look(proposed, baseline, looks, pairing, first=min(rules.looks), planned=planned)
    if isinstance(arms, Verdict):
        return arms
    n, gain = arms[0].n, measure_gain(*arms, claim.better, pairing)
    diverged = [arm.n_diverged for arm in arms]
    within, outside = (level(looks, n, alpha) for alpha in (rules.alpha_within, rules.alpha_outside / 2))
    status, reason = _judge(claim, gain, diverged, within, outside, widening)
    expected = None
    if status is Status.UNRESOLVED and gain.s2 and not any(diverged):
        expected = expected_replicates(lambda m, share: _decides(claim, gain, m, share, rules, widening), n, looks)
    alpha = outside if status is Status.REVERSED else within
    variance, df = gain.at(gain.n)
    half = float(half_width(variance, df, alpha)) + widening
    flips = [
        sign * half_width(variance, df, at) + sign * widening - gain.mean for sign, at in ((1, within), (-1, outside))
    ]

    def status_at(margin: float) -> Status:
        by = dataclasses.replace(claim, margin=margin)
        status, _ = _judge(by, gain, diverged, within, outside, widening)
        return status

    low, high, confidence = gain.mean - half, gain.mean + half, 1 - 2 * alpha
    verdict = Verdict(
        status=status,
        explanation=f"{with_interval(gain.mean, low, high, confidence, claim.margin)}: {reason}",
        estimate=gain.mean,
        low=low,
        high=high,
        confidence=confidence,
        margin=claim.margin,
        n=n,
        n_diverged=sum(diverged),
        replicates_expected=expected,
        by_margin=by_margin(flips, status_at),
        posterior=chance_below((gain.mean - widening + claim.margin) / math.sqrt(variance), df) if gain.s2 else None,
    )
    verdict = tell(verdict, f"Gain of the proposed model (n = {n})", proposed, baseline)
    limit = -claim.margin if status is Status.SUPPORTED else -claim.widest
    return with_assumptions(verdict, gain, folds, widening, limit)


def _judge(
    claim: ComparableClaim, gain: GainEstimate, diverged: Sequence[int], within: float, outside: float, widening: float
) -> tuple[Status, str]:
    status, reason = _decide(claim, gain, within, outside, widening)
    if status is not Status.UNRESOLVED and diverged[1 if status is Status.REVERSED else 0]:
        return Status.UNRESOLVED, "the model that it speaks for has diverged replicates"
    return status, reason


def _decide(
    claim: ComparableClaim, gain: GainEstimate, within: float, outside: float, widening: float
) -> tuple[Status, str]:
    variance, df = gain.at(gain.n)
    lower = gain.mean - float(half_width(variance, df, within)) - widening
    upper = gain.mean + float(half_width(variance, df, outside)) + widening
    limit = signed(-claim.widest)
    if not gain.s2:
        return Status.UNRESOLVED, "the replicates don't differ at all, so their spread is unknown"
    if lower > -claim.margin:
        return Status.SUPPORTED, "no worse than by the margin"
    if lower > -claim.widest:
        return Status.HOLDS_UNDER_READING, f"comparable as the paper uses the word, which calls {limit} so"
    if upper < -claim.widest:
        own = "" if claim.widest == claim.margin else f", and than the {limit} that the paper calls comparable"
        return Status.REVERSED, f"worse than by the margin{own}"
    return Status.UNRESOLVED, f"neither above {limit} nor below it"


def _decides(
    claim: ComparableClaim, gain: GainEstimate, replicates: Numbers, share: Numbers, rules: Rules, widening: float
) -> Numbers:
    variance, df = gain.at(replicates)
    lower = gain.mean - half_width(variance, df, rules.alpha_within * share) - widening
    upper = gain.mean + half_width(variance, df, rules.alpha_outside / 2 * share) + widening
    return np.greater(lower, -claim.widest) | np.less(upper, -claim.widest)
