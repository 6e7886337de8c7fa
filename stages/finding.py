"""What an analysis without training says of a claim: an identity, a count, a ratio, a theorem, an inconsistency.

Papers return a list of these (`stages.papers.<paper>.findings`); the ledger sets them beside what the paper prints.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# holds: computed and as stated.  fails: computed and not so.  contradicted: the paper's own numbers exclude it.
Status = Literal["holds", "fails", "contradicted"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`claim` is an id of the claims file; `computed` are named numbers in the units that the names tell.

    `explanation` says in one or two sentences how they were computed and why they give this status.  `ours` is the
    number that stands against the paper's, in the claim's unit, where there is one.
    """

    claim: str
    status: Status
    computed: dict[str, float]
    explanation: str
    ours: float | None = None


def judged(as_stated: bool) -> Status:
    """The status of a claim whose numbers are computed here."""
    return "holds" if as_stated else "fails"


def prints_as(computed: float, printed: float, unit: float) -> bool:
    """Whether `computed` is the printed number: within half a unit of its last printed place; 0: exactly."""
    return abs(computed - printed) <= unit / 2 * (1 + 1e-12)
