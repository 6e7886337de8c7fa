"""Judge families of comparisons: a table's mean gain, a paper's own counts, and ranges said to be noise.

A table is summarised by the mean gain of its orders, and judged once all of them have run.  Orders arrive one after
another: judged after each, a table of nine that gains nothing would be called better in 8 % of cases instead of 1.7 %.
And the orders that run first, the cheap ones, aren't drawn at random.

Each verdict on a sign has a false discovery rate within its paper: the expected share of wrong signs among those whose
p-value is no larger (Benjamini and Hochberg 1995).

A paper may also say that k numbers, each from one training, differ only by their seeds.  It prints their range W, the
largest minus the smallest.  If seeds have a standard deviation of σ, 95 of 100 ranges of k draws are below

    R = q(k, ∞) σ,    q: the 95 % point of the studentized range

The claim is `reversed` if W is larger than s q(k, n − 1), which bounds the range of k more draws at the analysis's
share of α (Tukey's studentized range, exact for normal draws).  It is `supported` if W is no larger than R for every σ
in its χ² interval.  Otherwise it is `unresolved`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.intervals import (
    IntervalEstimate,
    Numbers,
    combine,
    half_width,
    level,
    looks_of_numbers,
    looks_of_plan,
    signed,
    variance_of,
    with_interval,
)
from stages.verdicts.others import fisher_p, newcombe, not_tested
from stages.verdicts.power import WANTED, Power, format_chance
from stages.verdicts.value import NO_SPREAD, at_last_look, explain
from stages.verdicts.verdict import Sample, Status, Verdict

SIGNS = (Status.SUPPORTED, Status.REVERSED, Status.UNRESOLVED)
"""Verdicts that a p-value decides: that of a size or of equal gains tests something else than the verdict."""


@dataclass(frozen=True, kw_only=True)
class PrintedOrder:
    """The order of two models in a table, with its verdict and the printed gain, positive if better.

    `gains` are our gains on this data set, by replicate.
    """

    verdict: Verdict
    printed: float
    dataset: str
    gains: Mapping[int, float]

    @property
    def is_measured(self) -> bool:
        return self.verdict.estimate is not None and self.verdict.stderr is not None


@dataclass(frozen=True, kw_only=True)
class TableSentence:
    """Judgement of a table by the mean gain of its orders.

    `tested` counts the `orders` with evidence, and `ahead` those of them with a positive gain.  `low` to `high` is the
    interval of the gain at `confidence`; `tau`, `p_heterogeneity` and `i2` describe how much orders differ.
    """

    status: Status
    text: str
    orders: int
    tested: int
    ahead: int
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    tau: float | None = None
    p_heterogeneity: float | None = None
    i2: float | None = None


def judge_table(orders: Sequence[PrintedOrder], rules: Rules) -> TableSentence:
    """Judge the mean gain by the side of 0 on which its interval lies; show it only, until every order has evidence."""
    measured = [order for order in orders if order.is_measured]
    ahead = sum((order.verdict.estimate or 0.0) > 0 for order in measured)
    none = f"None of {len(orders)} orders has enough replicates yet."
    nothing = TableSentence(status=Status.NOT_TESTED, text=none, orders=len(orders), tested=len(measured), ahead=ahead)
    if not measured:
        return nothing
    of = f"{len(measured)} of {len(orders)} orders" if len(measured) < len(orders) else f"these {len(orders)} orders"
    won = f"{ahead} of {len(measured)} ahead."
    datasets = [_gains([order for order in measured if order.dataset == name]) for name in _datasets(measured)]
    if min(gains.shape[1] for gains in datasets) < 2:
        mean = fmean(order.verdict.estimate or 0.0 for order in measured)
        text = f"Mean gain of {of} {signed(mean)}; {won} They have fewer than two replicates in common: no interval."
        return dataclasses.replace(nothing, status=Status.UNRESOLVED, text=text)
    fewest = min(gains.shape[1] for gains in datasets)
    datasets = [gains[:, :fewest] for gains in datasets]  # other numbers would be further analyses
    alpha = min(order.verdict.share or 0.0 for order in measured) * rules.alpha_outside / 2
    gain, half = (float(number) for number in mean_gain(datasets, alpha))
    printed = fmean(order.printed for order in measured)
    status = Status.UNRESOLVED
    if len(measured) == len(orders) and abs(gain) > half > 0 and printed:
        status = Status.SUPPORTED if gain * printed > 0 else Status.REVERSED
    waits = ", because it is judged once all orders have run" if len(measured) < len(orders) else ""
    differences = measure_heterogeneity([order.verdict for order in measured])
    interval = IntervalEstimate.around(gain, half, alpha)
    where = f"{of} on {len(datasets)} data set{'s' if len(datasets) > 1 else ''}"
    differ = "They differ by no more than chance." if differences else ""
    if differences and differences.tau:
        differ = f"They differ by τ = {differences.tau:.2g} beyond chance (p = {differences.p_heterogeneity:.2g}, "
        differ += f"I² = {100 * differences.i2:.0f} %)."
    return dataclasses.replace(
        nothing,
        status=status,
        text=f"Mean gain of {where} {with_interval(*interval)}, the paper's "
        f"{signed(printed)}: {status}{waits}. {won} {differ}".rstrip(),
        gain=gain,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        **(vars(differences) if differences else {}),
    )


def _datasets(orders: Sequence[PrintedOrder]) -> list[str]:
    return list(dict.fromkeys(order.dataset for order in orders))


def _gains(orders: Sequence[PrintedOrder]) -> np.ndarray:
    """Return the gains [orders, replicates] on one data set, for the replicates that all of its orders have."""
    n = min(order.verdict.n for order in orders)
    shared = [index for index in range(n) if all(index in order.gains for order in orders)]
    return np.array([[order.gains[index] for index in shared] for order in orders])


def false_discovery_rates(verdicts: Sequence[Verdict]) -> list[float | None]:
    """Return the false discovery rate of each verdict on a sign, and None for other verdicts.

    Unresolved verdicts belong to the family, too, because leaving them out would select it by outcome.  An analysis
    spends only a share of α, so its p-value is divided by that share.
    """
    found: list[float | None] = [None] * len(verdicts)
    tested = {
        number: min(1.0, verdict.p_value / (verdict.share or 1.0))
        for number, verdict in enumerate(verdicts)
        if verdict.p_value is not None and verdict.status in SIGNS
    }
    if tested:
        for number, rate in zip(tested, scipy.stats.false_discovery_control(list(tested.values())), strict=True):
            found[number] = float(rate)
    return found


def tally_tests(claimed: int, of: int) -> tuple[int, int]:
    """Return the divisors of α for "at least `claimed` of them hold" and for its opposite.

    With them, either statement is wrong with a probability of at most α (Benjamini and Heller 2008).  It is enough
    for "at least r of m hold" that r of them pass their tests at α/(m − r + 1) each, however the tests depend on each
    other: if at most r − 1 were true, a test of one of the other m − r + 1 would have to err.  The opposite of
    `claimed` is that r = m − claimed + 1 are reversed.
    """
    return of - claimed + 1, claimed


def judge_tally(claimed: int, at_support: Sequence[Verdict], at_reversal: Sequence[Verdict]) -> Verdict:
    """Judge a statement that holds in `claimed` cases according to the paper ("9 of 9"), given each case's verdict.

    The cases are judged twice, once with each divisor from `tally_tests`.  If the statement needs cases that hold under
    only one of two readings, it holds under that reading only.
    """
    m = len(at_support)
    supported = sum(order.status is Status.SUPPORTED for order in at_support)
    read = sum(order.status is Status.HOLDS_UNDER_READING for order in at_support)
    reversed_ = sum(order.status is Status.REVERSED for order in at_reversal)
    if all(order.p_value is None and order.low is None for order in at_support):
        status = Status.NOT_TESTED
    elif supported >= claimed:
        status = Status.SUPPORTED
    elif supported + read >= claimed:
        status = Status.HOLDS_UNDER_READING
    elif reversed_ > m - claimed:
        status = Status.REVERSED
    else:
        status = Status.UNRESOLVED
    under_reading = f", {read} under a reading" if read else ""
    parts = [f"at α/{parts}" if parts > 1 else "at α" for parts in tally_tests(claimed, m)]
    return Verdict(
        status=status,
        explanation=f"Claimed: {claimed} of {m}. Ours: {supported} supported{under_reading}, each {parts[0]}; "
        f"{reversed_} reversed, each {parts[1]}.",
        estimate=None if status is Status.NOT_TESTED else supported / m,
    )


_UNTESTED = (Status.NOT_TESTED, Status.AGREES, Status.DISAGREES)
"""Orders of which no test says anything: at most short runs indicate a direction."""


def design_effect(orders: Sequence[PrintedOrder]) -> float:
    """Design effect of these orders: the variance of the sum of their standardised gains, divided by their number.

    Orders on one data set share folds and test images, so they tend to be won or lost together.  The effect is 1 if
    orders share nothing.
    """
    sums, count = 0.0, 0
    measured = [order for order in orders if order.is_measured]
    for name in _datasets(measured):
        gains = _gains([order for order in measured if order.dataset == name])
        spread = variance_of(gains) ** 0.5 if gains.shape[1] > 1 else np.zeros(len(gains))
        standardised = gains[spread > 0] / spread[spread > 0, None]
        if len(standardised):
            sums, count = sums + float(np.var(standardised.sum(axis=0), ddof=1)), count + len(standardised)
    return max(1.0, sums / count) if count else 1.0


def judge_wins(
    claimed: int,
    orders: Sequence[Verdict],
    rules: Rules,
    *,
    n: int,
    must_be_significant: bool = False,
    effect: float = 1.0,
) -> Verdict:
    """Judge a paper's count of comparisons in its favour ("15 of 16") by our count under the same criterion.

    A comparison is won if its gain is positive and, with `must_be_significant`, its own p is below α.  A comparison
    with diverged replicates isn't won.  The count is `reproduced` if ours is as large or larger, and `not reproduced`
    if ours is significantly smaller by Fisher's exact test, whose z is divided by the square root of the design
    `effect`.  Otherwise it is `inconclusive`.  The count is taken once, when every comparison has `n` replicates.  The
    estimate and its interval (Newcombe's) are our count minus the paper's.
    """
    m, alpha = len(orders), rules.alpha_outside
    complete = sum(order.n >= n and order.status not in _UNTESTED for order in orders)
    if complete < m or not m:
        return not_tested(
            f"{complete} of {m} comparisons have {n} replicates as printed; the count is taken once, of them all."
        )
    limit = alpha if must_be_significant else math.inf
    won = [order for order in orders if order.p_value is not None and order.p_value < limit and not order.n_diverged]
    ours = sum(order.estimate is not None and order.estimate > 0 for order in won)
    z = scipy.special.ndtri(fisher_p((ours, m), (claimed, m)) / 2) / math.sqrt(effect)
    p, status = float(2 * scipy.special.ndtr(z)), Status.INCONCLUSIVE
    if ours >= claimed:
        status = Status.REPRODUCED
    elif p <= alpha:
        status = Status.NOT_REPRODUCED
    low, high = newcombe((ours, m), (claimed, m), 1 - alpha, effect)
    together = f", as if {effect:.2g} orders were one, since those on one data set share folds" if effect > 1 else ""
    mark = f" at p < {alpha:g}" if must_be_significant else ""
    return Verdict(
        status=status,
        explanation=f"Comparisons that the proposed model wins{mark}: ours {ours} of {m}, the paper's {claimed} of "
        f"{m}; Fisher's exact test, two-sided p = {p:.2g}{together}.",
        estimate=ours - claimed,
        low=m * low,
        high=m * high,
        confidence=1 - alpha,
        n=min(order.n for order in orders),
        p_value=p,
    )


@dataclass(frozen=True, kw_only=True)
class Heterogeneity:
    """Differences between orders beyond their own random error.

    `tau` is their standard deviation, `p_heterogeneity` is of the test that there are none, and `i2` is the part of the
    variance between orders that τ² makes up.
    """

    tau: float
    p_heterogeneity: float
    i2: float


def mean_gain(datasets: Sequence[Numbers], alpha: Numbers) -> tuple[Numbers, Numbers]:
    """Return (gain, half-width) from each data set's gains [..., orders, replicates]; `alpha` is one-sided.

        gain = Σ_d k_d m̄_d / k,    Var = Σ_d (k_d/k)² s²(m_d)/n_d,    df by Welch–Satterthwaite

    m_d holds the mean gain of the k_d orders on data set d in each of n_d replicates.  Orders on one data set share
    folds, test images and arms, so their errors depend on each other; the means over orders take that into
    account.  The result is about these orders only, because a table has too few data sets to speak for others.
    """
    orders = sum(gains.shape[-2] for gains in datasets)
    total, parts = 0.0, []
    for gains in datasets:
        weight, means = gains.shape[-2] / orders, gains.mean(axis=-2)
        total = total + weight * means.mean(axis=-1)
        n = means.shape[-1]
        parts.append((weight**2 * variance_of(means) / n, n - 1.0))
    return total, half_width(*combine(parts), alpha)


def measure_heterogeneity(orders: Sequence[Verdict]) -> Heterogeneity | None:
    """Estimate how much the gains of orders differ; None if there are fewer than two.

        τ² = max(0, s²(g_i) − mean(v_i)),    s²(g)/mean(v_i) follows F(k − 1, df of the mean) if orders don't differ

    g_i and v_i are the gain of an order and its variance.  Correlated errors make τ too small.
    """
    k = len(orders)
    if k < 2:
        return None
    parts = [((order.stderr or 0.0) ** 2 / k, order.n - 1.0) for order in orders]
    within, df = (float(number) for number in combine(parts))
    between = float(variance_of(np.array([order.estimate for order in orders])))
    tau2 = max(between - within, 0.0)
    ratio = between / within if within else math.inf
    return Heterogeneity(
        tau=math.sqrt(tau2),
        p_heterogeneity=float(scipy.special.fdtrc(k - 1, df, ratio)),
        i2=tau2 / (tau2 + within) if within or tau2 else 0.0,
    )


USUAL = 0.95
"""The share of ranges that count as usual for noise."""


@cache
def usual_range(k: int) -> float:
    """Return R/σ for `k` draws."""
    return float(scipy.stats.studentized_range.ppf(USUAL, k, np.inf))


@cache
def decisive_spreads(window: float, k: int, df: int, alpha: float) -> tuple[float, float]:
    """Return the s below which a claim is reversed and the s from which it is supported, each at level `alpha`."""
    least = window / usual_range(k) * math.sqrt(float(scipy.stats.chi2.isf(alpha, df)) / df)
    return window / float(scipy.stats.studentized_range.isf(alpha, k, df)), least


def judge_noise(window: float, k: int, sample: Sample, *, rules: Rules, planned: int | None = None) -> Verdict:
    """Judge by our replicates whether `window`, the range of `k` numbers, is noise; `estimate` is R − `window`."""
    numbers = looks_of_numbers(rules)
    looks = looks_of_plan(numbers, planned)
    found = at_last_look(sample, analyses=numbers, planned=planned)
    if isinstance(found, Verdict):
        return found
    (used,) = found
    n = used.n
    s, df = math.sqrt(float(variance_of(np.array(used.values)))), len(used.values) - 1
    alpha = level(looks, n, rules.alpha_outside / 2)
    most, least = decisive_spreads(window, k, df, alpha)
    low, high = window * s / least, window * s / most
    if not s:
        status, reason = Status.UNRESOLVED, NO_SPREAD
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
    verdict = explain(verdict, compared, sample, looks=looks)
    if status is Status.UNRESOLVED:
        return verdict
    warning = " If the noise isn't normal, such a verdict is wrong in 4 to 8 % of cases, not 2.5 %."
    return dataclasses.replace(verdict, explanation=verdict.explanation + warning)


def power_of_noise(planned: int, window: float, k: int, rules: Rules) -> Power:
    """Power for a range said to be noise: the standard deviations at which a verdict has a probability of 80 %.

    The claim is about the spread itself, so no spread can be assumed.
    """
    looks = looks_of_plan(looks_of_numbers(rules), planned)
    start = f"We plan {planned} replicates; their standard deviation is unknown."
    if not looks:
        text = f"{start} The plan is too short: nothing is judged before {rules.minimum}."
        return Power(planned=planned, explanation=text, can_reproduce=False)
    n = max(looks)
    most, least = decisive_spreads(window, k, n - 1, level(looks, n, rules.alpha_outside / 2))
    below, above = (math.sqrt((n - 1) / float(scipy.stats.chi2.ppf(share, n - 1))) for share in (WANTED, 1 - WANTED))
    return Power(
        planned=planned,
        explanation=f"{start} It is reversed with probability {format_chance(WANTED)} or more if the standard "
        f"deviation is at most {most * below:.2g}, and supported if it is at least {least * above:.2g}.",
    )
