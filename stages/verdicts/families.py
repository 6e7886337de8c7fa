"""Sentences about a table of orders: how many hold when all are asked at once, and a paper's own counts of them.

Holm (1979), step by step: with r orders left, those significant at α/r hold; then again with what is left.  Each order
is held to its own look's share of that level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.rules import Rules
from stages.verdicts.others import fisher_p, newcombe, not_tested
from stages.verdicts.verdict import Status, Verdict


@dataclass(frozen=True, kw_only=True)
class TableSentence:
    """`holds` tells of each order, in their order; `tested` counts those with evidence."""

    holds: tuple[bool, ...]
    tested: int
    text: str


def judge_table(orders: Sequence[Verdict], rules: Rules) -> TableSentence:
    """How many of all orders of the table hold; one without evidence counts as not holding."""
    open_orders = dict(enumerate(orders))
    held: set[int] = set()
    while open_orders:
        alpha = rules.alpha_outside / 2 / len(open_orders)
        now = {number for number, order in open_orders.items() if _is_significant(order, alpha)}
        if not now:
            break
        held |= now
        open_orders = {number: order for number, order in open_orders.items() if number not in now}
    kept = [number in held and order.status is Status.SUPPORTED for number, order in enumerate(orders)]
    tested = sum(order.p_value is not None for order in orders)
    missing = f", {len(orders) - tested} without enough replicates" if tested < len(orders) else ""
    text = f"{sum(kept)} of {len(orders)} orders hold (Holm-adjusted, α = {rules.alpha_outside:g}{missing})."
    return TableSentence(
        holds=tuple(kept),
        tested=tested,
        text=text if tested else f"None of {len(orders)} orders has enough replicates yet.",
    )


def _is_significant(order: Verdict, alpha: float) -> bool:
    return order.p_value is not None and order.share is not None and order.p_value / 2 <= alpha * order.share


def judge_tally(claimed: int, orders: Sequence[Verdict]) -> Verdict:
    """A statement that a paper says to hold in `claimed` cases, "9 of 9", each judged for itself.

    Where some of them hold under one of two readings only, so does the statement.
    """
    m = len(orders)
    supported = sum(order.status is Status.SUPPORTED for order in orders)
    reversed_ = sum(order.status is Status.REVERSED for order in orders)
    read = sum(order.status is Status.HOLDS_UNDER_READING for order in orders)
    if all(order.p_value is None and order.low is None for order in orders):
        status = Status.NOT_TESTED
    elif supported >= claimed:
        status = Status.SUPPORTED
    elif supported + read >= claimed:
        status = Status.HOLDS_UNDER_READING
    elif reversed_ > m - claimed:
        status = Status.REVERSED
    else:
        status = Status.UNRESOLVED
    under_reading = f"{read} under a reading, " if read else ""
    return Verdict(
        status=status,
        explanation=f"Claimed: {claimed} of {m}. Ours: {supported} supported, {under_reading}{reversed_} reversed, "
        f"{m - supported - read - reversed_} open; not adjusted for their number.",
        estimate=None if status is Status.NOT_TESTED else supported / m,
    )


_UNTESTED = (Status.NOT_TESTED, Status.AGREES, Status.DISAGREES)
"""Orders of which no test says anything: at most short runs indicate a direction."""


def judge_wins(
    claimed: int, orders: Sequence[Verdict], rules: Rules, *, n: int, must_be_significant: bool = False
) -> Verdict:
    """A paper's own count of comparisons in its favour, "15 of 16", against ours of the same ones by the same mark.

    The mark is the sign of the gain, or with `must_be_significant` also p < α of each comparison by itself; one with
    diverged replicates is in nobody's favour.  `reproduced`: as many or more.  `not reproduced`: fewer, by more than
    chance makes two such counts differ (Fisher's exact test).  `inconclusive`: fewer, within chance.  One look, when
    every comparison has `n` replicates.  Estimate and interval (Newcombe's) are ours − the paper's, in comparisons.
    """
    m, alpha = len(orders), rules.alpha_outside
    complete = sum(order.n >= n and order.status not in _UNTESTED for order in orders)
    if complete < m or not m:
        return not_tested(
            f"{complete} of {m} comparisons have {n} replicates as printed; the count is taken once, of them all."
        )
    ours = sum(_is_win(order, alpha if must_be_significant else None) for order in orders)
    p, status = fisher_p((ours, m), (claimed, m)), Status.INCONCLUSIVE
    if ours >= claimed:
        status = Status.REPRODUCED
    elif p <= alpha:
        status = Status.NOT_REPRODUCED
    low, high = newcombe((ours, m), (claimed, m), 1 - alpha)
    mark = f" at p < {alpha:g}" if must_be_significant else ""
    return Verdict(
        status=status,
        explanation=f"In favour of the proposed arm{mark}: ours {ours} of {m}, the paper's {claimed} of {m}; Fisher's "
        f"exact test, two-sided p = {p:.2g}.",
        estimate=ours - claimed,
        low=m * low,
        high=m * high,
        confidence=1 - alpha,
        n=min(order.n for order in orders),
        p_value=p,
    )


def _is_win(order: Verdict, alpha: float | None) -> bool:
    if order.estimate is None or order.p_value is None or order.n_diverged:
        return False
    return order.estimate > 0 and (alpha is None or order.p_value < alpha)
