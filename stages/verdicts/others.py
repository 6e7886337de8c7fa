"""Claims that no test of means decides: counts, ranges, proportions, figures, hardware."""

from __future__ import annotations

import math

import scipy

from stages.rules import Rules
from stages.verdicts.intervals import wilson
from stages.verdicts.numerals import with_interval
from stages.verdicts.verdict import Status, Verdict


def _holds(truth: bool) -> Status:
    return Status.HOLDS if truth else Status.FAILS


def judge_count(claimed: float, counted: float) -> Verdict:
    """A count has no error, but its printed zeros may be rounding: then it holds under that reading alone."""
    status, reading = _holds(counted == claimed), "exact"
    if status is Status.FAILS and (rounded := _rounded_as_printed(claimed, counted)):
        status, reading = Status.HOLDS_UNDER_READING, f"true if the printed number is rounded to {rounded:,}"
    return Verdict(
        status=status,
        explanation=f"Counted {counted:,.15g}; claimed {claimed:,.15g}; {reading}.",
        estimate=counted - claimed,
        margin=0.0,
    )


def _rounded_as_printed(claimed: float, counted: float) -> int:
    """The smallest power of ten, from 10, at which `counted` rounds to `claimed`; 0 if there is none."""
    unit = 10
    while claimed and claimed % unit == 0:
        if abs(counted - claimed) <= unit / 2:
            return unit
        unit *= 10
    return 0


def judge_shown(where: str) -> Verdict:
    """A figure without numbers, or a quality: ours is shown beside it and nothing is counted."""
    return Verdict(status=Status.SHOWN, explanation=f"No number to test; ours is shown: {where}.")


def not_tested(reason: str) -> Verdict:
    return Verdict(status=Status.NOT_TESTED, explanation=reason)


def judge_hardware(printed_device: str, our_device: str) -> Verdict | None:
    """Refuse to judge times, or ratios of them, across classes of device; None where they may be compared."""
    if printed_device == our_device:
        return None
    return Verdict(
        status=Status.OTHER_HARDWARE,
        explanation=f"Printed for {printed_device}, measured on {our_device}: across devices times don't compare, and "
        "a ratio of times may stand beside another one but decides nothing.",
    )


def fisher_p(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Fisher's exact test of two proportions (successes, trials), two-sided."""
    table = [[successes, trials - successes] for successes, trials in (first, second)]
    return float(scipy.stats.fisher_exact(table).pvalue)


def judge_proportions(proposed: tuple[int, int], baseline: tuple[int, int], *, rules: Rules) -> Verdict:
    """Test by Fisher's exact test whether failures (count, trials) are rarer in the proposed arm.

    One look only, at the whole planned grid: α isn't shared among looks.
    """
    rates = [count / trials for count, trials in (proposed, baseline)]
    gain, p = rates[1] - rates[0], fisher_p(proposed, baseline)
    direction = Status.SUPPORTED if gain > 0 else Status.REVERSED
    status = direction if p <= rules.alpha_outside else Status.UNRESOLVED
    low, high = newcombe(baseline, proposed, 1 - rules.alpha_outside)
    return Verdict(
        status=status,
        explanation=f"{proposed[0]} of {proposed[1]} against {baseline[0]} of {baseline[1]}: Fisher's exact test, "
        f"two-sided p = {p:.4f}.",
        estimate=gain,
        low=low,
        high=high,
        confidence=1 - rules.alpha_outside,
        n=min(proposed[1], baseline[1]),
        p_value=p,
    )


def judge_proportion(claimed: tuple[int, int], ours: tuple[int, int], margin: float, *, rules: Rules) -> Verdict:
    """Judge a printed proportion against ours, both as (count, trials), by the interval of their difference."""
    difference = ours[0] / ours[1] - claimed[0] / claimed[1]
    inner = newcombe(ours, claimed, 1 - 2 * rules.alpha_within)
    outer = newcombe(ours, claimed, 1 - rules.alpha_outside)
    paper_alone = newcombe(claimed, claimed, 1 - 2 * rules.alpha_within)
    if outer[0] > margin or outer[1] < -margin:
        status, shown = Status.NOT_REPRODUCED, outer
    elif -margin <= inner[0] and inner[1] <= margin:
        status, shown = Status.REPRODUCED, inner
    elif (paper_alone[1] - paper_alone[0]) / (2 * math.sqrt(2)) >= margin:
        status, shown = Status.UNDECIDABLE, inner
    else:
        status, shown = Status.INCONCLUSIVE, inner
    confidence = 1 - (rules.alpha_outside if shown is outer else 2 * rules.alpha_within)
    return Verdict(
        status=status,
        explanation=f"Ours {ours[0]} of {ours[1]} − the paper's {claimed[0]} of {claimed[1]} = "
        f"{with_interval(difference, *shown, confidence, margin)}.",
        estimate=difference,
        low=shown[0],
        high=shown[1],
        confidence=confidence,
        margin=margin,
        n=ours[1],
    )


def newcombe(first: tuple[int, int], second: tuple[int, int], confidence: float) -> tuple[float, float]:
    """Interval of the difference of two proportions from their Wilson intervals (Newcombe 1998, method 10)."""
    alpha = (1 - confidence) / 2
    p1, p2 = first[0] / first[1], second[0] / second[1]
    (l1, u1), (l2, u2) = wilson(p1, first[1], alpha), wilson(p2, second[1], alpha)
    low = p1 - p2 - math.hypot(p1 - l1, u2 - p2)
    high = p1 - p2 + math.hypot(u1 - p1, p2 - l2)
    return low, high
