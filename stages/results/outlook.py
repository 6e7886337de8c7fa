"""What the planned trainings can show of the claims that wait for them, by the power of each plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NO_BETTER_THAN_CHANCE = 0.05
"""A plan that confirms a right number no more often than its test may confirm a wrong one shows nothing."""
EVEN = 0.5


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the planned trainings can show of the `waiting` claims that training decides, if the paper is right.

    `hopeless`: confirmed with a chance below 5 %; `order_only`: the order may be, the size of the difference not;
    `unlikely`: of all others, confirmed with a chance below 50 %.  `unknown`: no size is printed or no spread is known.
    `assumed` of all these rest on a spread of the runs that is neither measured nor printed.
    """

    waiting: int
    hopeless: int
    order_only: int
    unlikely: int
    unknown: int
    assumed: int


def foresee_waiting(powers: Sequence[dict[str, Any] | None]) -> Outlook:
    """Sort waiting claims by the chance that the plan confirms them, an order apart from its size."""
    counts = Counter(map(_prospect, powers))
    kinds = ("hopeless", "order_only", "unlikely", "unknown")
    assumed = sum(
        power is not None and _prospect(power) != "unknown" and power["source"] == "assumed" for power in powers
    )
    return Outlook(waiting=len(powers), **{kind: counts[kind] for kind in kinds}, assumed=assumed)


def _prospect(power: dict[str, Any] | None) -> str:
    if power is None:
        return "unknown"
    size = power["reproduced"] if power["can_reproduce"] else 0.0
    chance = size if power["supported"] is None else power["supported"]
    if chance is None:
        return "unknown"
    if chance < NO_BETTER_THAN_CHANCE:
        return "hopeless"
    if power["supported"] is not None and size is not None and size < NO_BETTER_THAN_CHANCE:
        return "order_only"
    return "unlikely" if chance < EVEN else "likely"
