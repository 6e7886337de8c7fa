"""Judge on which side of a bound a number from trained networks lies, by the interval of its mean over replicates.

`supported`: the interval lies wholly on the claimed side; `reversed`: wholly on the other; otherwise `unresolved`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.expected import expected_replicates, say_expected
from stages.verdicts.intervals import Numbers, half_width, variance_of
from stages.verdicts.looks import complete_look, level, looks_of_plan
from stages.verdicts.numerals import with_interval
from stages.verdicts.value import about_skew, tell, too_few, too_many_diverged
from stages.verdicts.verdict import Sample, Status, Verdict


def judge_side(
    bound: float, better: Literal["higher", "lower"], sample: Sample, *, rules: Rules, planned: int | None = None
) -> Verdict:
    """Judge whether the number lies on the side of `bound` that `better` names; `estimate` is positive on that side.

    A replicate that diverged has no number, so the others alone can't support or reverse.  Looks end with the `planned`
    replicates.
    """
    looks = looks_of_plan(rules.looks, planned)
    n = complete_look(sample.indices, looks)
    if n is None:
        return too_few(sample.indices, min(rules.looks), Status.UNRESOLVED, planned)
    used = sample.among(range(n))
    if len(used.values) < 2:
        return too_many_diverged(n, used.n_diverged, Status.UNRESOLVED)
    values = (np.array(used.values) - bound) * (1.0 if better == "higher" else -1.0)
    claimed, other = ("above", "below") if better == "higher" else ("below", "above")
    mean, s2, df = float(values.mean()), float(variance_of(values)), values.size - 1
    alpha = level(looks, n, rules.alpha_outside / 2)

    def decides(replicates: Numbers, share: Numbers) -> Numbers:
        return np.abs(mean) > half_width(s2 / replicates, replicates - 1, rules.alpha_outside / 2 * share)

    half, expected = float(half_width(s2 / values.size, df, alpha)), None
    if not s2:
        status, reason = Status.UNRESOLVED, "the replicates don't differ at all, so their spread is unknown"
    elif abs(mean) <= half:
        status = Status.UNRESOLVED
        expected = expected_replicates(decides, n, looks)
        reason = say_expected(expected, looks)
    elif used.n_diverged:
        status, reason = Status.UNRESOLVED, "replicates diverged, which have no number"
    elif mean > 0:
        status, reason = Status.SUPPORTED, f"{claimed}, as claimed"
    else:
        status, reason = Status.REVERSED, f"{other}, not {claimed} as claimed"
    low, high, confidence = mean - half, mean + half, 1 - 2 * alpha
    below = float(scipy.special.stdtr(df, -abs(mean) / np.sqrt(s2 / values.size))) if s2 else None
    verdict = Verdict(
        status=status,
        explanation=f"{with_interval(mean, low, high, confidence)}: {reason}",
        estimate=mean,
        low=low,
        high=high,
        confidence=confidence,
        n=n,
        n_diverged=used.n_diverged,
        replicates_expected=expected,
        spread=float(s2) ** 0.5,
        share=looks[n],
        p_value=None if below is None else 2 * below,
        posterior=None if below is None else 1 - below if mean > 0 else below,
    )
    verdict = tell(verdict, f"How far {claimed} {bound:g} (mean of n = {n} networks)", sample)
    return dataclasses.replace(verdict, explanation=verdict.explanation + about_skew(verdict))
