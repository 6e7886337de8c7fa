"""Is a printed spread of several numbers noise between seeds?

The claim: k numbers, each of one training, differ by seed alone; printed is their range W, largest − smallest.  With a
standard deviation σ between seeds, 95 of 100 ranges of k draws are below

    R = q(k, ∞) σ,    q: the 95 % point of the studentized range

`reversed`: W is larger than the range of k more draws can be, s q(k, n − 1) with the look's share of α (Tukey's
studentized range, exact for normal draws).  `supported`: W is no larger than R for every σ in its interval (χ²).
Otherwise `unresolved`.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.intervals import variance_of
from stages.verdicts.looks import complete_look, level, looks_from, looks_of_plan
from stages.verdicts.value import tell, too_few, too_many_diverged
from stages.verdicts.verdict import Sample, Status, Verdict

USUAL = 0.95
"""The share of ranges that count as usual for noise."""


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
    usual = float(scipy.stats.studentized_range.ppf(USUAL, k, np.inf))
    low = usual * s * math.sqrt(df / float(scipy.stats.chi2.isf(alpha, df)))
    high = s * float(scipy.stats.studentized_range.isf(alpha, k, df))
    if not s:
        status, reason = Status.UNRESOLVED, "the replicates don't differ at all, so their spread is unknown"
    elif used.n_diverged:
        status, reason = Status.UNRESOLVED, "replicates diverged, which have no number"
    elif window > high:
        status, reason = Status.REVERSED, "seeds alone don't explain it"
    elif window <= low:
        status, reason = Status.SUPPORTED, "seeds alone explain it"
    else:
        status, reason = Status.UNRESOLVED, "seeds may explain it or not"
    verdict = Verdict(
        status=status,
        explanation=f"{reason}: a usual range is at least {low:.4g}, and the largest that counts as noise {high:.4g}",
        estimate=usual * s - window,
        low=low - window,
        high=high - window,
        confidence=1 - 2 * alpha,
        n=n,
        n_diverged=used.n_diverged,
        share=looks[n],
        spread=s,
        p_value=float(scipy.stats.studentized_range.sf(window / s, k, df)) if s else None,
    )
    compared = f"The range of {k} printed numbers, {window:.4g}, beside ours (n = {n}, s = {s:.2g})"
    return tell(verdict, compared, sample)
