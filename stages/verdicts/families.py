"""One sentence for a table: how many of its orders hold when all are asked at once.

Holm (1979), step by step: with r orders left, those significant at α/r hold; then again with what is left.  Each order
is held to its own look's share of that level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.rules import Rules
from stages.verdicts.looks import level
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
        now = {number for number, order in open_orders.items() if _is_significant(order, alpha, rules)}
        if not now:
            break
        held |= now
        open_orders = {number: order for number, order in open_orders.items() if number not in now}
    kept = [number in held and order.status is Status.SUPPORTED for number, order in enumerate(orders)]
    tested = sum(order.p_value is not None for order in orders)
    missing = f", {len(orders) - tested} without enough replicates" if tested < len(orders) else ""
    return TableSentence(
        holds=tuple(kept),
        tested=tested,
        text=f"{sum(kept)} of {len(orders)} orders hold (Holm-adjusted, α = {rules.alpha_outside:g}{missing}).",
    )


def _is_significant(order: Verdict, alpha: float, rules: Rules) -> bool:
    return order.p_value is not None and order.p_value / 2 <= level(rules.looks, order.n, alpha)


def judge_tally(claimed: int, orders: Sequence[Verdict]) -> Verdict:
    """A paper's own count, "15 of 16 comparisons in favour", against single verdicts."""
    m = len(orders)
    supported = sum(order.status is Status.SUPPORTED for order in orders)
    reversed_ = sum(order.status is Status.REVERSED for order in orders)
    if not any(order.p_value is not None for order in orders):
        status = Status.NOT_TESTED
    elif supported >= claimed:
        status = Status.SUPPORTED
    elif reversed_ > m - claimed:
        status = Status.REVERSED
    else:
        status = Status.UNRESOLVED
    return Verdict(
        status=status,
        explanation=f"Claimed: {claimed} of {m}. Ours: {supported} supported, {reversed_} reversed, "
        f"{m - supported - reversed_} open; not adjusted for their number.",
        estimate=supported / m if m else None,
    )
