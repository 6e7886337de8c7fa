"""A printed order or difference between two arms: gain = proposed − baseline, better positive.

The sign and the size are judged separately.  `supported`: the interval of the gain lies on the claimed side of zero;
`reversed`: on the other side; otherwise `unresolved`.  The size is judged as in `value`: is our gain the printed one?

    pairing "fold"   gain = mean of the differences on shared folds,   Var = s_d²/n,          n − 1 df
    pairing "none"   gain = difference of the means,                   Var = s₁²/n₁ + s₂²/n₂,  Welch's df

If runs may arrive at any time (`rules.ANYTIME`), replicates are paired in any case, because Welch's test has no such
form; the differences of independent arms are independent, too.

A gain over a grid of pairs is their mean, replicate by replicate.  If only part of them has results, the verdict covers
that part and says so (`GridPart`).

"Comparable" defends an arm that may be behind, so the claim doesn't depend on which arm is ahead.  It is tested by the
non-inferiority of the gain g, with two margins δ ≤ Δ:

    supported               the lower bound of g, at 1 − α, lies above −δ: comparable by the margin of the rules
    holds under a reading   it lies above −Δ: comparable in the paper's own sense; Δ is the largest loss that the paper
                            calls comparable, if that is more than δ
    reversed                the upper bound, at 1 − α/2, lies below −Δ: worse under both readings
    unresolved              otherwise

The margins are nested, so both tests keep their level (a closed test).  Variances are those of a gain (`difference`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from stages.rules import Rules
from stages.verdicts.grid_part import GridPart
from stages.verdicts.intervals import (
    IntervalEstimate,
    Looks,
    Numbers,
    by_margin,
    chance_below,
    combine,
    expected_replicates,
    level,
    looks_of_numbers,
    looks_of_part,
    looks_of_plan,
    signed,
    variance_of,
    with_interval,
)
from stages.verdicts.value import (
    NO_SPREAD,
    MeanEstimate,
    Pairing,
    ValueClaim,
    at_last_look,
    decide_sign,
    explain,
    judge_equivalence,
    too_few,
    warn_of_skew,
)
from stages.verdicts.verdict import Sample, Status, Verdict


@dataclass(frozen=True, kw_only=True)
class GainClaim:
    """A printed `gain`: positive if better, negative if the paper says that its own arm is worse; never 0.

    `better` says which direction of our metric is better.  `stderr` and `n` are the paper's for the gain.  `margin` is
    for its size, None if the paper prints none: then only the sign of `gain` counts.  `slope`: as in `ValueClaim`.
    """

    gain: float
    margin: float | None
    better: Literal["higher", "lower"]
    stderr: float | None = None
    n: int | None = None
    slope: float = 0.0


def measure_gain(
    proposed: Sample,
    baseline: Sample,
    better: Literal["higher", "lower"],
    pairing: Pairing,
    *,
    is_anytime: bool = False,
) -> MeanEstimate:
    """Measure the gain.  Both arms need two finished replicates; with "fold", two that both have."""
    sign = 1.0 if better == "higher" else -1.0
    if pairing == "fold":
        ours, theirs = proposed.finished, baseline.finished
        pairs = np.array([sign * (ours[fold] - theirs[fold]) for fold in ours if fold in theirs])
        return MeanEstimate(
            mean=float(pairs.mean()),
            s2=float(variance_of(pairs)),
            df=pairs.size - 1,
            n=pairs.size,
            is_anytime=is_anytime,
        )
    arms = [np.array(arm.values) for arm in (proposed, baseline)]
    own = [float(variance_of(arm)) for arm in arms]
    variance, df = combine([(s2 / arm.size, float(arm.size - 1)) for s2, arm in zip(own, arms, strict=True)])
    n, mean = min(arm.size for arm in arms), sign * float(arms[0].mean() - arms[1].mean())
    return MeanEstimate(mean=mean, s2=float(variance * n), df=float(df), n=n)


@dataclass(frozen=True)
class ComparedArms:
    """Two arms, and how their replicates were planned.

    `folds` is the number of folds if replicates are folds.  The last analysis is at `planned` replicates.  `widening`
    is the largest change of the gain by left-out test rows.  `test_sets` is the variance of two draws of the test set
    if ours isn't the paper's; it affects only the size of a gain.

    If only part of a grid ran, the arms are means over the pairs of `part`, and the verdict covers these alone.
    `pairs` are the numbers of the grid's pairs that ran and that are planned.
    """

    proposed: Sample
    baseline: Sample
    _: KW_ONLY
    rules: Rules
    pairing: Pairing
    planned: int | None = None
    folds: int | None = None
    widening: float = 0.0
    test_sets: float = 0.0
    part: GridPart | None = None
    pairs: tuple[int, int] = (1, 1)

    @property
    def looks(self) -> Looks:
        return looks_of_plan(self.rules.looks, self.planned)

    @property
    def n_diverged(self) -> int:
        return self.proposed.n_diverged + self.baseline.n_diverged

    def measure(self, better: Literal["higher", "lower"]) -> tuple[ComparedArms, MeanEstimate] | Verdict:
        """Return the arms at the last complete analysis, and their gain; a verdict if they allow no interval."""
        pairing: Pairing = "fold" if self.rules.is_anytime else self.pairing
        found = at_last_look(
            self.proposed, self.baseline, analyses=self.rules.looks, planned=self.planned, pairing=pairing
        )
        if isinstance(found, Verdict):
            return found
        proposed, baseline = found
        gain = measure_gain(proposed, baseline, better, pairing, is_anytime=self.rules.is_anytime)
        return dataclasses.replace(self, proposed=proposed, baseline=baseline), gain

    def explain(self, verdict: Verdict, compared: str) -> Verdict:
        return explain(verdict, compared, self.proposed, self.baseline, looks=self.looks)


def judge_gain(claim: GainClaim, arms: ComparedArms) -> Verdict:
    """Judge the sign and, inside that verdict, the size; not adjusted for other claims (`families`).

    The size of a printed gain that is no larger than the margin is never `reproduced`.  The pairs of a grid share the
    α of the sign, and only the whole grid decides the size.
    """
    found = arms.measure(claim.better)
    if isinstance(found, Verdict):
        return found
    (used, gain), part, rules = found, arms.part, arms.rules
    n = used.proposed.n
    if part is not None and not part.is_sliced:
        return Verdict(status=Status.UNRESOLVED, explanation=part.describe(), estimate=gain.mean, n=n)
    size = _judge_size(claim, gain, used)
    if size is not None and size.estimate is not None:
        size = arms.explain(size, f"Our gain {signed(gain.mean)} (n = {n}) − the paper's {signed(claim.gain)}")
        size = size if part is None else _leave_open(size)
    # Diverged replicates must not make an arm come out better.
    is_blocked = (used.proposed if gain.mean > 0 else used.baseline).n_diverged
    sign = decide_sign(
        gain,
        ("better", "worse"),
        n=n,
        n_diverged=used.n_diverged,
        obstacle="some replicates of the model ahead have diverged" if is_blocked else "",
        rules=rules,
        looks=looks_of_part(arms.looks, *arms.pairs),
        is_positive_claimed=claim.gain > 0,
        widening=arms.widening,
    )
    design = "pairs" if rules.is_anytime else "shared folds" if arms.pairing == "fold" else "independent replicates"
    sign = arms.explain(sign, f"Gain of the proposed model (n = {n} {design})")
    sign = with_assumptions(sign, gain, arms)
    if part is not None:
        rest = "They may differ by any amount, so the whole grid isn't judged."
        said = f"{sign.explanation} {part.describe()} {rest}"
        sign = dataclasses.replace(sign, scope=part.scope(), explanation=said)
    return dataclasses.replace(sign, size=size, stderr=math.sqrt(gain.at(gain.n)[0]))


def with_assumptions(verdict: Verdict, gain: MeanEstimate, arms: ComparedArms, limit: float = 0.0) -> Verdict:
    """Say what the interval assumes: noise without skew, and the same training data, which folds share.

    Nadeau and Bengio (2003) account for shared training data: Var = s² (1/n + 1/(folds − 1)) instead of s²/n.
    `limit` is the gain with which the verdict compares.  The mean of several pairs is hardly skewed, so it needs no
    warning.
    """
    unequal = " and the spreads of the two models differ by a factor of 3 or more"
    said = warn_of_skew(verdict, limit, unequal) if arms.pairs[1] == 1 and not gain.is_anytime else ""
    if arms.folds is not None and gain.s2 and verdict.confidence is not None:
        wider = math.sqrt(1 + gain.n / (arms.folds - 1))
        half = wider * float(gain.half(gain.n, (1 - verdict.confidence) / 2)) + arms.widening
        corrected = with_interval(gain.mean, gain.mean - half, gain.mean + half, verdict.confidence, verdict.margin)
        said += f" This holds for these training data, which the folds share; allowing for others: {corrected}."
    return dataclasses.replace(verdict, explanation=verdict.explanation + said)


def _leave_open(size: Verdict) -> Verdict:
    """Leave the size open, because missing pairs may move the mean into or out of the margin.

    For the same reason, no rerun of the paper, which ran all pairs, is predicted.
    """
    decided = (Status.REPRODUCED, Status.NOT_REPRODUCED)
    status = Status.INCONCLUSIVE if size.status in decided else size.status
    needed = f"{size.explanation} The printed number is of every pair: more pairs are needed."
    return dataclasses.replace(
        size,
        status=status,
        explanation=needed,
        replicates_expected=None,
        prediction=None,
        by_margin=(),
        posterior=None,
    )


def judge_gap(claim: GainClaim, arms: ComparedArms) -> Verdict:
    """Judge a printed difference without a claimed order, such as a loss that the paper admits, by its size alone.

    Estimate, interval and p-value are those of our gain, as for a claimed gain; the verdict's `size` compares it with
    the paper's.
    """
    gain, found = judge_gain(claim, arms), arms.measure(claim.better)
    if gain.size is None or isinstance(found, Verdict):  # too few replicates for any interval
        untested = gain.status is Status.NOT_TESTED
        return gain if untested else dataclasses.replace(gain, status=Status.INCONCLUSIVE)
    low, high, confidence = gain.low or 0.0, gain.high or 0.0, gain.confidence or 0.0
    ours = f"Our gain (n = {gain.n}) = {with_interval(gain.estimate or 0.0, low, high, confidence)}"
    verdict = dataclasses.replace(
        gain,
        status=gain.size.status,
        explanation=f"{ours}. The paper prints it and claims no order: the size decides.",
        replicates_expected=gain.size.replicates_expected,
        posterior=None,
    )
    return with_assumptions(verdict, found[1], arms)


def _judge_size(claim: GainClaim, gain: MeanEstimate, arms: ComparedArms) -> Verdict | None:
    if claim.margin is None:
        return None
    numbers = looks_of_numbers(arms.rules, is_error_printed=claim.stderr is not None)
    looks, n = looks_of_plan(numbers, arms.planned), arms.proposed.n
    if n not in looks:
        return too_few(range(n), min(numbers), Status.INCONCLUSIVE, arms.planned)
    return judge_equivalence(
        gain,
        ValueClaim(value=claim.gain, margin=claim.margin, stderr=claim.stderr, n=claim.n, slope=claim.slope),
        n=n,
        n_diverged=arms.n_diverged,
        rules=arms.rules,
        looks=looks,
        widening=arms.widening,
        test_sets=arms.test_sets,
        size=abs(claim.gain),
    )


@dataclass(frozen=True, kw_only=True)
class ComparableClaim:
    """A claim that two arms are comparable.

    `margin` is the loss that still counts as comparable by the rules, `accepted` the largest loss that the paper calls
    comparable.  Both are positive, in the metric's unit; `better` says which direction of our metric is better.
    """

    margin: float
    better: Literal["higher", "lower"]
    accepted: float | None = None

    @property
    def widest(self) -> float:
        return max(self.margin, self.accepted or 0.0)


def judge_comparable(claim: ComparableClaim, arms: ComparedArms) -> Verdict:
    """Judge whether the proposed arm is no worse than the baseline."""
    found = arms.measure(claim.better)
    if isinstance(found, Verdict):
        return found
    (used, gain), rules, looks, widening = found, arms.rules, arms.looks, arms.widening
    n = used.proposed.n
    within, outside = (level(looks, n, alpha) for alpha in (rules.alpha_within, rules.alpha_outside / 2))
    halves = [float(gain.half(gain.n, alpha)) + widening for alpha in (within, outside)]
    lower, upper = gain.mean - halves[0], gain.mean + halves[1]

    def decide(margin: float) -> tuple[Status, str]:
        widest = max(margin, claim.accepted or 0.0)
        status, limit = Status.SUPPORTED, signed(-widest)
        if not gain.s2:
            return Status.UNRESOLVED, NO_SPREAD
        if lower > -margin:
            reason = "no worse than by the margin"
        elif lower > -widest:
            status, reason = (
                Status.HOLDS_UNDER_READING,
                f"comparable as the paper uses the word, which calls {limit} so",
            )
        elif upper < -widest:
            own = "" if widest == margin else f", and than the {limit} that the paper calls comparable"
            status, reason = Status.REVERSED, f"worse than by the margin{own}"
        else:
            return Status.UNRESOLVED, f"neither above {limit} nor below it"
        if (used.baseline if status is Status.REVERSED else used.proposed).n_diverged:
            return Status.UNRESOLVED, "the model that it speaks for has diverged replicates"
        return status, reason

    def decides(replicates: Numbers, share: Numbers) -> Numbers:
        lower = gain.mean - gain.half(replicates, rules.alpha_within * share) - widening
        upper = gain.mean + gain.half(replicates, rules.alpha_outside / 2 * share) + widening
        return np.greater(lower, -claim.widest) | np.less(upper, -claim.widest)

    status, reason = decide(claim.margin)
    expected = None
    if status is Status.UNRESOLVED and gain.s2 and not used.n_diverged:
        expected = expected_replicates(decides, n, looks)
    half, alpha = (halves[1], outside) if status is Status.REVERSED else (halves[0], within)
    variance, df = gain.at(gain.n)
    interval = IntervalEstimate.around(gain.mean, half, alpha)
    verdict = Verdict(
        status=status,
        explanation=f"{with_interval(*interval, claim.margin)}: {reason}",
        **interval._asdict(),
        margin=claim.margin,
        n=n,
        n_diverged=used.n_diverged,
        replicates_expected=expected,
        by_margin=by_margin([-lower, -upper], lambda margin: decide(margin)[0]),
        posterior=chance_below((gain.mean - widening + claim.margin) / math.sqrt(variance), df) if gain.s2 else None,
    )
    verdict = arms.explain(verdict, f"Gain of the proposed model (n = {n})")
    limit = -claim.margin if status is Status.SUPPORTED else -claim.widest
    return with_assumptions(verdict, gain, arms, limit)
