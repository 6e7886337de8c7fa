"""Judge a printed value by our replicates, with two one-sided tests for equivalence (Schuirmann 1987).

    D = mean(ours) − paper,    Var D = s²/n + (paper's standard error)²    if it is printed,
                               Var D = s²/n + s²/m    if the paper ran m times (m = 1 if it doesn't say)

If the margin is a fraction b of the printed number, it shares that number's error.  The paper's part of the variance is
therefore multiplied by (1 + b)² in the test at the margin's upper end, which is about ours − (1 + b) paper, and by
(1 − b)² in the test at its lower end.

s is the standard deviation of this arm's replicates alone, with n − 1 degrees of freedom, so that no other arm can
change the verdict.  The value is `reproduced` if the interval of D at 1 − 2α lies within the margin.  It is
`not reproduced` if the wider interval at 1 − α lies wholly outside.  The verdict also has a prediction interval for a
rerun of the paper (`prediction`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Literal

import numpy as np

from stages.rules import Rules
from stages.verdicts import anytime
from stages.verdicts.intervals import (
    NEVER,
    IntervalEstimate,
    Looks,
    Numbers,
    by_margin,
    chance_below,
    chance_within,
    combine,
    complete_look,
    expected_replicates,
    half_width,
    level,
    looks_of_numbers,
    looks_of_plan,
    predict,
    root,
    say_expected,
    spend_all,
    variance_of,
    with_interval,
)
from stages.verdicts.verdict import Sample, Status, Verdict

Pairing = Literal["fold", "none"]
SKEWED = 3.0
"""Width of an interval, in widths of Student's, that errs in less than 5 % of cases if the noise is skewed."""
NO_SPREAD = "the replicates don't differ at all, so their spread is unknown"
AS_LARGE = "the margin is as large as the printed number, so nothing at all would count as the same"


@dataclass(frozen=True, kw_only=True)
class ValueClaim:
    """A printed number, and the margin within which another number counts as equal to it.

    `n` is the paper's number of replicates, None if it doesn't say; a fraction if its number varies more than one of
    ours.  `slope` is how fast the margin grows with the
    printed number.
    """

    value: float
    margin: float
    stderr: float | None = None
    n: float | None = None
    slope: float = 0.0
    wording: str = "the paper's"


def df_of_printed(n: float | None) -> float:
    """Return the degrees of freedom of a printed standard error; an unknown n counts as 2, the fewest possible."""
    return max((n or 2) - 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class MeanEstimate:
    """A mean or a gain, with its variance as a function of n.

    `s2` is the variance of one replicate (or pair), and `df` its degrees of freedom at `n` replicates.  `is_anytime`:
    intervals and p-values hold at any number of replicates; only for means of one sample.
    """

    mean: float
    s2: float
    df: float
    n: int
    is_anytime: bool = False

    def at(self, n: Numbers) -> tuple[Numbers, Numbers]:
        """Return (variance, df) with n replicates per arm."""
        return self.s2 / n, self.df * (n - 1) / (self.n - 1)

    def half(self, n: Numbers, alpha: Numbers) -> Numbers:
        """Return the half-width, with n replicates, of the interval that errs with probability alpha on each side."""
        if self.is_anytime:
            return anytime.half_width(self.s2, n, 1 / n, alpha)
        return half_width(*self.at(n), alpha)

    def p_value(self, widening: float) -> float:
        """Return the two-sided p-value against a mean of 0, or one that left-out rows can move to 0."""
        variance, df = self.at(self.n)
        t = max(abs(self.mean) - widening, 0.0) / math.sqrt(variance)
        return anytime.p_value(t, self.n, 1 / self.n) if self.is_anytime else 2 * chance_below(-t, df)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variance of D as a function of our number of replicates.

    `s2` is the variance of one replicate with `df` degrees of freedom, measured on `n` of ours.  `test_sets` is the
    variance added if our test set isn't the paper's, 0 if both have the same images.  `slope` is as in `ValueClaim`,
    `is_anytime` as in `MeanEstimate`.
    """

    s2: float
    df: float
    n: int
    stderr: float | None
    paper_n: float | None
    test_sets: float = 0.0
    slope: float = 0.0
    is_anytime: bool = False

    def at(self, n: Numbers, end: float = 0.0) -> tuple[Numbers, Numbers]:
        """Return (variance, df) with n replicates, where df grow in proportion to n − 1.

        `end` is the end of the margin that is tested: 1 upper, −1 lower, 0 neither.
        """
        df = self.df * (n - 1) / max(self.n - 1, 1)
        scale = (1 + end * self.slope) ** 2
        if self.stderr is None:
            parts = [(self.s2 * (1 / n + scale / (self.paper_n or 1)), df)]
        else:
            parts = [(self.s2 / n, df), (self.stderr**2 * scale, df_of_printed(self.paper_n))]
        return combine([*parts, (self.test_sets, np.inf)])

    def half(self, n: Numbers, alpha: Numbers, end: float = 0.0) -> Numbers:
        """Return the half-width, with n replicates, of the interval that errs with probability alpha on each side.

        At any time, other errors than those of the runs have half of alpha: they are the same at all numbers of runs.
        """
        if not self.is_anytime:
            return half_width(*self.at(n, end), alpha)
        scale, stderr = (1 + end * self.slope) ** 2, self.stderr or 0.0
        others = [(stderr**2 * scale, df_of_printed(self.paper_n)), (self.test_sets, np.inf)]
        factor = 1 / n + (scale / (self.paper_n or 1) if self.stderr is None else 0.0)
        if not stderr and not self.test_sets:
            return anytime.half_width(self.s2, n, factor, alpha)
        return anytime.half_width(self.s2, n, factor, alpha / 2) + half_width(*combine(others), alpha / 2)


def judge_value(
    claim: ValueClaim,
    sample: Sample,
    *,
    rules: Rules,
    planned: int | None = None,
    widening: float = 0.0,
    size: float = math.inf,
    test_sets: float = 0.0,
    as_large: str = AS_LARGE,
    may_be_exact: bool = False,
    s2_at: Callable[[float], float] | None = None,
) -> Verdict:
    """Judge a printed value by the replicates of its arm.

    `planned` is the number of replicates at the final analysis; None means that the plan outlasts all analyses.
    `widening` is how much left-out test rows could change the value.  `test_sets` is the variance added if our test set
    isn't the paper's.  `s2_at` gives the replicates' variance at another margin, if it depends on the margin.  `size`,
    `as_large` and `may_be_exact` are as in `judge_equivalence`.
    """
    numbers = looks_of_numbers(rules, is_error_printed=claim.stderr is not None)
    looks = looks_of_plan(numbers, planned)
    found = at_last_look(sample, analyses=numbers, planned=planned, undecided=Status.INCONCLUSIVE)
    if isinstance(found, Verdict):
        return found
    (used,) = found
    s2, ran = float(variance_of(np.array(used.values))), len(used.values)
    mean = MeanEstimate(mean=fmean(used.values), s2=s2, df=ran - 1, n=ran, is_anytime=rules.is_anytime)
    verdict = judge_equivalence(
        mean,
        claim,
        n=used.n,
        n_diverged=used.n_diverged,
        rules=rules,
        looks=looks,
        widening=widening,
        test_sets=test_sets,
        size=size,
        as_large=as_large,
        may_be_exact=may_be_exact,
        s2_at=s2_at,
    )
    ours = f"Ours {mean.mean:.4g} (n = {used.n}, s = {s2**0.5:.2g}) − {claim.wording} {claim.value:.4g}"
    return explain(verdict, ours, sample, looks=looks)


def judge_equivalence(
    ours: MeanEstimate,
    claim: ValueClaim,
    *,
    n: int,
    n_diverged: int,
    rules: Rules,
    looks: Looks,
    widening: float,
    test_sets: float,
    size: float,
    as_large: str = AS_LARGE,
    may_be_exact: bool = False,
    s2_at: Callable[[float], float] | None = None,
) -> Verdict:
    """Test whether our mean or gain is the printed one within the margin, and predict a rerun of the paper.

    The explanation omits the numbers compared.  `n` replicates were judged; other arguments are as in `judge_value`.

    If the margin is as large as the printed `size`, even a gain of zero would count as equal to the printed one, so
    the verdict can only be `not reproduced` or `undecidable`; `as_large` is the reason that it gives.  With
    `may_be_exact`, identical replicates are a number without error, such as bytes of memory; otherwise their spread is
    unknown.
    """
    difference, margin = ours.mean - claim.value, claim.margin
    spread = Spread(
        s2=ours.s2,
        df=ours.df,
        n=ours.n,
        stderr=claim.stderr,
        paper_n=claim.n,
        test_sets=test_sets,
        slope=claim.slope,
        is_anytime=ours.is_anytime,
    )
    inner_level, outer_level = level(looks, n, rules.alpha_within), level(looks, n, rules.alpha_outside / 2)
    side = 1.0 if difference > 0 else -1.0

    def half(by: float, replicates: Numbers, alpha: Numbers, end: float) -> Numbers:
        there = spread if s2_at is None or by == margin else dataclasses.replace(spread, s2=s2_at(by))
        return there.half(replicates, alpha, end) + widening

    def farthest(by: float, replicates: Numbers, alpha: Numbers) -> Numbers:
        return np.maximum(*(end * difference + half(by, replicates, alpha, end) for end in (1.0, -1.0)))

    def nearest(by: float, replicates: Numbers, alpha: Numbers) -> Numbers:
        return abs(difference) - half(by, replicates, alpha, side)

    def decides(replicates: Numbers, share: Numbers, by: float = margin) -> Numbers:
        is_inside = farthest(by, replicates, rules.alpha_within * share) <= by
        return (by < size) & is_inside | (nearest(by, replicates, rules.alpha_outside / 2 * share) > by)

    def judge(by: float) -> tuple[Status, str]:
        is_inside = farthest(by, spread.n, inner_level) <= by
        if not spread.s2 and not may_be_exact:
            return Status.INCONCLUSIVE, NO_SPREAD
        if nearest(by, spread.n, outer_level) > by:
            return Status.NOT_REPRODUCED, "wholly outside"
        if is_inside and by >= size:
            return Status.UNDECIDABLE, as_large
        if is_inside and not n_diverged:
            return Status.REPRODUCED, "within"
        if is_inside:
            return Status.INCONCLUSIVE, "within, but a diverged replicate rules out reproduced"
        if decides(float(NEVER), looks[max(looks)], by):
            return Status.INCONCLUSIVE, ""
        if by >= size:
            return Status.UNDECIDABLE, as_large
        return Status.UNDECIDABLE, "the paper's own error is so large that no number of our replicates would decide"

    def beyond(reach: Callable[..., Numbers], replicates: float, alpha: float, by: float) -> float:
        return float(by - reach(by, replicates, alpha))

    def flips() -> Iterator[float]:
        last = looks[max(looks)]
        for reach, alpha in ((farthest, rules.alpha_within), (nearest, rules.alpha_outside / 2)):
            is_certain = half(margin, NEVER, alpha, side) < 1e-5 * half(margin, spread.n, alpha, side)
            for replicates, share in ((spread.n, looks[n]), (NEVER, last))[: 1 if is_certain else 2]:
                rising = partial(beyond, reach, float(replicates), alpha * share)
                yield margin - rising(margin) if s2_at is None else root(rising, margin)
        yield size

    status, reason = judge(margin)
    expected = None
    if not reason:
        expected = expected_replicates(decides, n, looks)
        reason = say_expected(expected, looks)
    is_off = status is Status.NOT_REPRODUCED
    alpha = outer_level if is_off else inner_level
    below, above = (half(margin, spread.n, alpha, side if is_off else end) for end in (-1.0, 1.0))
    interval = IntervalEstimate(difference, float(difference - below), float(difference + above), 1 - 2 * alpha)
    verdict = Verdict(
        status=status,
        explanation=f"{with_interval(*interval, margin)}: {reason}",
        **interval._asdict(),
        margin=margin,
        n=n,
        n_diverged=n_diverged,
        replicates_expected=expected,
        share=looks[n],
        by_margin=by_margin(flips(), lambda by: judge(by)[0]),
        posterior=chance_within(difference, margin, *spread.at(spread.n), widening) if spread.s2 else None,
    )
    return with_prediction(verdict, ours.mean, claim.value, spread, rules, widening)


def with_prediction(
    verdict: Verdict, ours: float, printed: float, spread: Spread, rules: Rules, widening: float
) -> Verdict:
    """Add the spread and the prediction interval for a rerun of the paper to the verdict."""
    variance, df = (float(number) if spread.s2 else 0.0 for number in spread.at(spread.n))
    prediction = predict(ours, printed, variance=variance, df=df, alpha=rules.alpha_outside, widening=widening)
    return dataclasses.replace(verdict, prediction=prediction, spread=math.sqrt(spread.s2))


def explain(verdict: Verdict, compared: str, *samples: Sample, looks: Looks) -> Verdict:
    """Complete the verdict's explanation with what was compared and with notes on the samples.

    `looks` are the planned analyses; after the last one, further replicates are never used.
    """
    unused = max(sample.n for sample in samples) - verdict.n
    notes = [f"{verdict.n_diverged} diverged"] if verdict.n_diverged else []
    if unused > 0:
        of_which = " of the model with more runs" if len(samples) > 1 else ""
        is_last = spend_all(looks) or verdict.n >= max(looks)
        why = f"{of_which} aren't used" if is_last else " wait for the next planned analysis"
        notes.append(f"{unused} more{why}")
    environments = frozenset().union(*(sample.among(range(verdict.n)).environments for sample in samples))
    ran = f" They ran in {len(environments)} environments." if len(environments) > 1 else ""
    about = f" Of the replicates, {', '.join(notes)}." if notes else ""
    return dataclasses.replace(verdict, explanation=f"{compared} = {verdict.explanation}.{about}{ran}")


def warn_of_skew(verdict: Verdict, limit: float = 0.0, condition: str = "") -> str:
    """Warn about skewed noise unless an interval `SKEWED` times as wide would also exclude the `limit`."""
    is_decided = verdict.status in (Status.SUPPORTED, Status.HOLDS_UNDER_READING, Status.REVERSED)
    if not is_decided or verdict.estimate is None or verdict.low is None or verdict.high is None:
        return ""
    if abs(verdict.estimate - limit) > SKEWED * (verdict.high - verdict.low) / 2:
        return ""
    return f" If the noise is skewed{condition}, such a verdict is wrong in 10 to 20 % of cases, not 5 %."


def at_last_look(
    *samples: Sample,
    analyses: Looks,
    planned: int | None,
    undecided: Status = Status.UNRESOLVED,
    pairing: Pairing = "none",
) -> tuple[Sample, ...] | Verdict:
    """Return the replicates at the last complete analysis, or an `undecided` verdict if they allow no interval.

    An interval needs two finished replicates of each sample; with "fold", two that all samples share.  `analyses` are
    those of the rules; the plan ends with `planned` replicates.
    """
    shared = set.intersection(*(set(sample.indices) for sample in samples))
    n = complete_look(shared, looks_of_plan(analyses, planned))
    if n is None:
        return too_few(shared, min(analyses), undecided, planned)
    used = tuple(sample.among(range(n)) for sample in samples)
    finished = [set(sample.finished) for sample in used]
    if min(map(len, [set.intersection(*finished)] if pairing == "fold" else finished)) >= 2:
        return used
    n_diverged = max(sample.n_diverged for sample in used)
    explanation = f"Of {n} replicates {n_diverged} diverged; the others are too few for an interval."
    return Verdict(status=undecided, explanation=explanation, n=n, n_diverged=n_diverged)


def too_few(indices: Collection[int], needed: int, status: Status, planned: int | None = None) -> Verdict:
    """Return the verdict before the first analysis: `status`, or `not tested` without any replicate."""
    there = len({index for index in indices if index < needed})
    ends = f", and the plan ends with {planned}" if planned is not None and planned < needed else ""
    return Verdict(
        status=status if indices else Status.NOT_TESTED,
        explanation=f"{there} of the first {needed} replicates are there; nothing is said before{ends}.",
        n=there,
        replicates_expected=needed,
    )


def judge_side(
    bound: float, better: Literal["higher", "lower"], sample: Sample, *, rules: Rules, planned: int | None = None
) -> Verdict:
    """Judge whether the number lies on the side of `bound` that `better` names; `estimate` is positive on that side.

    If a replicate diverged, the claim can be neither supported nor reversed, because that replicate has no number.  The
    final analysis is at `planned` replicates.
    """
    looks = looks_of_plan(rules.looks, planned)
    found = at_last_look(sample, analyses=rules.looks, planned=planned)
    if isinstance(found, Verdict):
        return found
    (used,) = found
    distances = (np.array(used.values) - bound) * (1.0 if better == "higher" else -1.0)
    claimed, other = ("above", "below") if better == "higher" else ("below", "above")
    ran = distances.size
    verdict = decide_sign(
        MeanEstimate(mean=float(distances.mean()), s2=float(variance_of(distances)), df=ran - 1, n=ran),
        (claimed, other),
        n=used.n,
        n_diverged=used.n_diverged,
        obstacle="replicates diverged, which have no number" if used.n_diverged else "",
        rules=rules,
        looks=looks,
    )
    verdict = explain(verdict, f"How far {claimed} {bound:g} (mean of n = {used.n} networks)", sample, looks=looks)
    return dataclasses.replace(verdict, explanation=verdict.explanation + warn_of_skew(verdict))


def decide_sign(
    found: MeanEstimate,
    words: tuple[str, str],
    *,
    n: int,
    n_diverged: int,
    obstacle: str,
    rules: Rules,
    looks: Looks,
    is_positive_claimed: bool = True,
    widening: float = 0.0,
) -> Verdict:
    """Judge whether a mean lies on the claimed side of 0; `words` name the positive and the negative side.

    An `obstacle` is why neither side can be decided although the interval excludes 0; empty if there is none.
    """
    mean, alpha = found.mean, level(looks, n, rules.alpha_outside / 2)
    half, expected = float(found.half(found.n, alpha)) + widening, None
    side, claimed = (words[0 if is_positive else 1] for is_positive in (mean > 0, is_positive_claimed))

    def decides(replicates: Numbers, share: Numbers) -> Numbers:
        return np.abs(mean) > found.half(replicates, rules.alpha_outside / 2 * share) + widening

    status = Status.UNRESOLVED
    if not found.s2:
        reason = NO_SPREAD
    elif abs(mean) <= half:
        expected = expected_replicates(decides, n, looks)
        reason = say_expected(expected, looks)
    elif obstacle:
        reason = obstacle
    elif side == claimed:
        status, reason = Status.SUPPORTED, f"{side}, as claimed"
    else:
        status, reason = Status.REVERSED, f"{side}, not {claimed} as claimed"
    interval = IntervalEstimate.around(mean, half, alpha)
    variance, df = found.at(found.n)
    certainty = chance_below(max(abs(mean) - widening, 0.0) / math.sqrt(variance), df) if variance else None
    return Verdict(
        status=status,
        explanation=f"{with_interval(*interval)}: {reason}",
        **interval._asdict(),
        n=n,
        n_diverged=n_diverged,
        replicates_expected=expected,
        p_value=found.p_value(widening) if found.s2 else None,
        posterior=certainty if certainty is None or side == claimed else 1 - certainty,
        spread=math.sqrt(found.s2),
        share=looks[n],
    )
