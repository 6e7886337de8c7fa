"""Judge whether a printed spread of several numbers is noise between seeds.

The claim: k numbers, each of one training, differ by seed alone; printed is their range W, largest − smallest.  With a
standard deviation σ between seeds, 95 of 100 ranges of k draws are below

    R = q(k, ∞) σ,    q: the 95 % point of the studentized range

`reversed`: W is larger than the range of k more draws can be, s q(k, n − 1) with the look's share of α (Tukey's
studentized range, exact for normal draws).  `supported`: W is no larger than R for every σ in its interval (χ²).
Otherwise `unresolved`.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.intervals import complete_look, level, looks_from, looks_of_plan, variance_of
from stages.verdicts.power import WANTED, Power, in_percent
from stages.verdicts.value import tell, too_few, too_many_diverged
from stages.verdicts.verdict import Sample, Status, Verdict

USUAL = 0.95
"""The share of ranges that count as usual for noise."""


@cache
def usual_range(k: int) -> float:
    """R / σ of `k` draws."""
    return float(scipy.stats.studentized_range.ppf(USUAL, k, np.inf))


@cache
def decisive_spreads(window: float, k: int, df: int, alpha: float) -> tuple[float, float]:
    """(s below which it is reversed, s from which it is supported), each erring with probability alpha."""
    least = window / usual_range(k) * math.sqrt(float(scipy.stats.chi2.isf(alpha, df)) / df)
    return window / float(scipy.stats.studentized_range.isf(alpha, k, df)), least


def judge_noise(window: float, k: int, sample: Sample, *, rules: Rules, planned: int | None = None) -> Verdict:
    """Judge whether the range `window` of `k` numbers is noise, by our replicates; `estimate` is R − `window`."""
    from_minimum = looks_from(rules.looks, rules.minimum)
    looks = looks_of_plan(from_minimum, planned)
    n = complete_look(sample.indices, looks)
    if n is None:
        return too_few(sample.indices, min(from_minimum), Status.UNRESOLVED, planned)
    used = sample.among(range(n))
    if len(used.values) < 2:
        return too_many_diverged(n, used.n_diverged, Status.UNRESOLVED)
    s, df = math.sqrt(float(variance_of(np.array(used.values)))), len(used.values) - 1
    alpha = level(looks, n, rules.alpha_outside / 2)
    most, least = decisive_spreads(window, k, df, alpha)
    low, high = window * s / least, window * s / most
    if not s:
        status, reason = Status.UNRESOLVED, "the replicates don't differ at all, so their spread is unknown"
    elif used.n_diverged:
        status, reason = Status.UNRESOLVED, "replicates diverged, which have no number"
    elif s < most:
        status, reason = Status.REVERSED, "seeds alone don't explain it"
    elif s >= least:
        status, reason = Status.SUPPORTED, "seeds alone explain it"
    else:
        status, reason = Status.UNRESOLVED, "seeds may explain it or not"
    verdict = Verdict(
        status=status,
        explanation=f"{low:.4g} to {high:.4g}: {reason}",
        estimate=usual_range(k) * s - window,
        low=low - window,
        high=high - window,
        confidence=1 - 2 * alpha,
        n=n,
        n_diverged=used.n_diverged,
        share=looks[n],
        spread=s,
        p_value=float(scipy.stats.studentized_range.sf(window / s, k, df)) if s else None,
    )
    compared = f"Printed is a range of {window:.4g} of {k} numbers; the usual range of {k} seeds (n = {n}, s = {s:.2g})"
    verdict = tell(verdict, compared, sample)
    if status is Status.UNRESOLVED:
        return verdict
    warning = " If the noise isn't normal, such a verdict is wrong in 4 to 8 % of cases, not 2.5 %."
    return dataclasses.replace(verdict, explanation=verdict.explanation + warning)


def power_of_noise(planned: int, window: float, k: int, rules: Rules) -> Power:
    """Power in spreads, since the spread itself is in question: where either verdict comes with 80 %."""
    looks = looks_of_plan(looks_from(rules.looks, rules.minimum), planned)
    start = f"We plan {planned} replicates; their standard deviation is unknown."
    if not looks:
        text = f"{start} The plan is too short: nothing is judged before {rules.minimum}."
        return Power(planned=planned, explanation=text, can_reproduce=False)
    n = max(looks)
    most, least = decisive_spreads(window, k, n - 1, level(looks, n, rules.alpha_outside / 2))
    below, above = (math.sqrt((n - 1) / float(scipy.stats.chi2.ppf(share, n - 1))) for share in (WANTED, 1 - WANTED))
    return Power(
        planned=planned,
        explanation=f"{start} It is reversed with probability {in_percent(WANTED)} or more if the standard deviation "
        f"is at most {most * below:.2g}, and supported if it is at least {least * above:.2g}.",
    )
