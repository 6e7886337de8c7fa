"""Claims that no test of means decides (counts, ranges, proportions, figures, hardware), and levels of evidence.

The evidence level says which conclusions a run's budget and data allow.  A short run can at most indicate an order, and
only if the gap is at least two standard deviations of the difference of two replicates in the plan.  `HELD` records
how often such an order held until the end, over all pairs of the SGEMM networks with 5 and 8 layers: one replicate of
each at 30 % of its epochs against all five at the end.  The only other pair with full runs, NMN's prototypes on MNIST,
ends alike: all of its early orders held (`ELSEWHERE`) and, with ten other seeds, none of seven.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.difference import GainClaim
from stages.verdicts.intervals import IntervalEstimate, by_margin, signed, wilson, with_interval
from stages.verdicts.verdict import Sample, Status, Verdict


def judge_count(claimed: float, counted: float) -> Verdict:
    """Judge a count, which has no error; if its printed zeros may be rounding, it holds under that reading alone."""
    status, reading = Status.HOLDS if counted == claimed else Status.FAILS, "exact"
    if status is Status.FAILS and (rounded := _rounded_as_printed(claimed, counted)):
        status, reading = Status.HOLDS_UNDER_READING, f"true if the printed number is rounded to {rounded:,}"
    return Verdict(
        status=status,
        explanation=f"Counted {counted:,.15g}; claimed {claimed:,.15g}; {reading}.",
        estimate=counted - claimed,
        margin=0.0,
    )


def _rounded_as_printed(claimed: float, counted: float) -> int:
    """Return the smallest power of ten, from 10, at which `counted` rounds to `claimed`; 0 if there is none."""
    unit = 10
    while claimed and claimed % unit == 0:
        if abs(counted - claimed) <= unit / 2:
            return unit
        unit *= 10
    return 0


def judge_shown(where: str) -> Verdict:
    """Judge a figure without numbers, or a quality: ours is shown next to it and nothing is tested."""
    return Verdict(status=Status.SHOWN, explanation=f"No number to test; ours is shown: {where}.")


def not_tested(reason: str) -> Verdict:
    return Verdict(status=Status.NOT_TESTED, explanation=reason)


def judge_hardware(printed_device: str, our_device: str) -> Verdict:
    """Refuse to judge times, or ratios of them, across classes of device."""
    return Verdict(
        status=Status.OTHER_HARDWARE,
        explanation=f"Printed for {printed_device}, measured on {our_device}: times on different devices can't be "
        "compared, and neither can ratios of them.",
    )


def fisher_p(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Fisher's exact test of two proportions (successes, trials), two-sided."""
    table = [[successes, trials - successes] for successes, trials in (first, second)]
    return float(scipy.stats.fisher_exact(table).pvalue)


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Failed trainings of each network, out of `each`; trainings of one network may fail together."""

    counts: tuple[int, ...]
    each: int

    @classmethod
    def spread(cls, count: int, networks: int, each: int) -> Failures:
        """Spread the failures as evenly over the networks as whole numbers allow."""
        return cls(counts=tuple(count // networks + (at < count % networks) for at in range(networks)), each=each)

    @property
    def total(self) -> tuple[int, int]:
        return sum(self.counts), self.each * len(self.counts)


def design_effect(*sides: Failures) -> float:
    """Variance of the networks' failures over that of independent trainings; at least 1 (Rao, Scott 1992)."""
    seen = expected = 0.0
    for side in sides:
        rate = side.total[0] / side.total[1]
        seen += float(np.square(np.array(side.counts) - rate * side.each).sum())
        expected += (len(side.counts) - 1) * side.each * rate * (1 - rate)
    return max(1.0, seen / expected) if expected else 1.0


def exchange_p(first: Sequence[int], second: Sequence[int]) -> float:
    """Exact permutation test of two sums: twice the chance of such an extreme one if networks were exchanged at random.

    With one training per network, its tails are those of Fisher's exact test.
    """
    pool, seen = [*first, *second], sum(first)
    ways = np.zeros((len(first) + 1, sum(pool) + 1))
    ways[0, 0] = 1.0
    for count in pool:
        more = ways.copy()
        more[1:, count:] += ways[:-1, : ways.shape[1] - count]
        ways = more
    chances = ways[-1] / ways[-1].sum()
    return min(1.0, 2 * float(min(chances[: seen + 1].sum(), chances[seen:].sum())))


def judge_proportions(proposed: Failures, baseline: Failures, *, rules: Rules) -> Verdict:
    """Test whether failures are rarer in the proposed networks, by exchanging networks.

    There is only one analysis, of the whole planned grid, so α isn't shared.
    """
    (ours, of), (theirs, of_theirs) = proposed.total, baseline.total
    gain, p = theirs / of_theirs - ours / of, exchange_p(proposed.counts, baseline.counts)
    direction = Status.SUPPORTED if gain > 0 else Status.REVERSED
    status = direction if p <= rules.alpha_outside else Status.UNRESOLVED
    effect = design_effect(proposed, baseline)
    low, high = newcombe(baseline.total, proposed.total, 1 - rules.alpha_outside, effect)
    return Verdict(
        status=status,
        explanation=f"{ours} of {of} against {theirs} of {of_theirs}: permutation of the {len(proposed.counts)} and "
        f"{len(baseline.counts)} networks, two-sided p = {p:.4f}.",
        estimate=gain,
        low=low,
        high=high,
        confidence=1 - rules.alpha_outside,
        n=min(of, of_theirs),
        p_value=p,
    )


def judge_proportion(
    claimed: tuple[int, int], failures: Failures, margin: float, *, rules: Rules, slope: float = 0.0
) -> Verdict:
    """Judge a printed proportion (count, trials) against ours by the interval of their difference.

    `slope`: how much the margin grows with the printed proportion, whose error it therefore shares (`ValueClaim`).

    If our networks differ by more than independent trainings would, all trainings of a network count as one, also in
    the paper: with so few failures, an estimate of how much less they count errs too often.
    """
    ours, effect = failures.total, failures.each if design_effect(failures) > 1 else 1
    rate = claimed[0] / claimed[1]
    difference = ours[0] / ours[1] - rate
    lower, upper = (partial(newcombe, ours, claimed, effect=effect, scale=1 + end * slope) for end in (-1, 1))
    inner = lower(1 - 2 * rules.alpha_within)[0], upper(1 - 2 * rules.alpha_within)[1]
    outer = upper(1 - rules.alpha_outside)[0], lower(1 - rules.alpha_outside)[1]
    apart, within = max(outer[0], -outer[1]), max(-inner[0], inner[1])
    low, high = wilson(rate, claimed[1] / effect, rules.alpha_within)
    least = ((1 + slope) * (rate - low) + (1 - slope) * (high - rate)) / 2

    def status_at(by: float) -> Status:
        if apart > by:
            return Status.NOT_REPRODUCED
        if within <= by:
            return Status.REPRODUCED
        return Status.UNDECIDABLE if least >= by else Status.INCONCLUSIVE

    status = status_at(margin)
    is_off = status is Status.NOT_REPRODUCED
    confidence = 1 - (rules.alpha_outside if is_off else 2 * rules.alpha_within)
    interval = IntervalEstimate(difference, *(outer if is_off else inner), confidence)
    return Verdict(
        status=status,
        explanation=f"Ours {ours[0]} of {ours[1]} − the paper's {claimed[0]} of {claimed[1]} = "
        f"{with_interval(*interval, margin)}.",
        **interval._asdict(),
        margin=margin,
        n=ours[1],
        by_margin=by_margin([apart, least, within], status_at),
    )


def newcombe(
    first: tuple[int, int], second: tuple[int, int], confidence: float, effect: float = 1.0, scale: float = 1.0
) -> tuple[float, float]:
    """Return the interval of a difference of proportions from their Wilson intervals (Newcombe 1998, method 10).

    A design `effect` makes so many trials count as one, and the second proportion's error counts `scale` times.
    """
    alpha = (1 - confidence) / 2
    p1, p2 = first[0] / first[1], second[0] / second[1]
    (l1, u1), (l2, u2) = wilson(p1, first[1] / effect, alpha), wilson(p2, second[1] / effect, alpha)
    low = p1 - p2 - math.hypot(p1 - l1, scale * (u2 - p2))
    high = p1 - p2 + math.hypot(u1 - p1, scale * (p2 - l2))
    return low, high


DEMANDED = 2.0
"""Gap, in spreads, from which an order is indicated."""
GAPS = (0.0, 0.5, 1.0, 2.0, 3.0)
"""Lower ends of the classes of gaps, in spreads."""
CALIBRATED_AT = 0.3
CALIBRATED_PAIRS = 406
HELD = ((274, 530), (373, 555), (914, 1137), (1012, 1094), (6792, 6834))
"""(orders that held, orders seen), by class of gap; a test recomputes them from `data/evidence/dac-sgemm.jsonl`."""
ELSEWHERE = (16, 16)
"""The same for gaps of at least `DEMANDED` between NMN's prototypes on MNIST (`nmn-mnist-inversion.jsonl`)."""


class EvidenceLevel(StrEnum):
    """`decides`: full data, as printed.  `indicates`: real data and a good part of the epochs.  `silent`: the rest."""

    DECIDES = "decides"
    INDICATES = "indicates"
    SILENT = "silent"


def evidence_level_of(
    *,
    profile: str,
    provenance: Literal["embedded", "subset", "full"],
    share: float,
    rules: Rules,
) -> EvidenceLevel:
    """Return the evidence level of results with this profile and data, which cover this `share` of the printed epochs.

    A run that its rule stopped early is complete.
    """
    if provenance == "embedded":
        return EvidenceLevel.SILENT
    if profile == "paper" and provenance == "full":
        return EvidenceLevel.DECIDES
    return EvidenceLevel.INDICATES if share >= rules.indicative_share else EvidenceLevel.SILENT


def indicate_order(
    claim: GainClaim, proposed: Sample, baseline: Sample, *, epochs_share: float, precision: str = ""
) -> Verdict:
    """Compare the means of short runs with the claimed order: a direction, not a test, for any n.

    `precision` is a text such as "tf32 instead of float32" if it isn't the printed one.
    """
    if not proposed.values or not baseline.values or not claim.gain:
        return Verdict(
            status=Status.NOT_TESTED,
            explanation="A model has no finished run, or the paper claims no order.",
        )
    sign = 1 if claim.better == "higher" else -1
    means = [sum(arm.values) / len(arm.values) for arm in (proposed, baseline)]
    gain = sign * (means[0] - means[1])
    n = min(proposed.n, baseline.n)
    diverged = proposed.n_diverged + baseline.n_diverged
    if gain == 0:
        return Verdict(status=Status.NOT_TESTED, explanation="Neither model is ahead.", estimate=gain, n=n)
    status = Status.AGREES if gain * claim.gain > 0 else Status.DISAGREES
    note = f", in {precision}," if precision else ""
    lost = f" {diverged} replicates diverged." if diverged else ""
    return Verdict(
        status=status,
        explanation=f"At {epochs_share:.0%} of the printed epochs{note} the gain is {signed(gain)} (n = {n}); "
        f"the paper's is {signed(claim.gain)}. A direction, no test.{lost}",
        estimate=gain,
        n=n,
        n_diverged=diverged,
    )


def weigh_gap(gain: float, spread: float | None) -> tuple[bool, str]:
    """Return whether a gain this large may indicate an order, and a sentence on how often such orders held.

    `spread`: standard deviation of the difference of two replicates; None if unknown.
    """
    if not spread:
        return False, "Nothing says how far replicates spread, so no order is indicated."
    gap = abs(gain) / spread
    number = bisect(GAPS, gap) - 1
    held, seen = HELD[number]
    ends = f"{GAPS[number]:g} to {GAPS[number + 1]:g}" if number + 1 < len(GAPS) else f"{GAPS[number]:g} or more"
    said = f"The gap is {gap:.1f} SD of a difference of two replicates ({spread:.2g}); an order seen at "
    said += f"{CALIBRATED_AT:.0%} of training with a gap of {ends} SD held in {held / seen:.0%} of cases among "
    said += f"{CALIBRATED_PAIRS} pairs of SGEMM networks."
    if gap < DEMANDED:
        return False, f"{said} Below {DEMANDED:g} SD that is too close to say."
    held, seen = ELSEWHERE
    return True, f"{said} Between two models of NMN on MNIST, which end alike, {held} of {seen} held."
