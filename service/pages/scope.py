"""The part of a grid that a verdict is of, in words, and what a part can say of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.pages.formats import listed
from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER, JudgedClaim, VerdictRow

A_PART = (
    "a part of a grid speaks for itself alone, and what compares means over the whole grid is judged once, "
    "when all of it has run"
)
_LEVELS = {"depth": "layers", "width": "units"}
"""What the levels of a grid's factor count."""
MOST_SIZES = 5
"""More sizes than these are told by the least and the largest."""


def is_part(verdict: VerdictRow) -> bool:
    """True if models of the verdict's grid, which were planned, have not run."""
    scope = verdict.scope
    if scope is None:
        return False
    return (scope["planned_pairs"] or 0) > scope["pairs"] or (scope["planned_models"] or 0) > (scope["models"] or 0)


def part_of(judged: JudgedClaim) -> str:
    """As "at 5 and 8 layers", "at 144,000 and 164,000 parameters", "14 of 35 pairs"; "" of a whole grid or of none."""
    scope = judged.verdict.scope
    if scope is None or not is_part(judged.verdict):
        return ""
    if scope["factor"]:
        return f"at {levels(scope['factor'], scope['ran'])}"
    if judged.sizes:
        return f"at {sizes(judged.sizes)}"
    if scope["planned_pairs"]:
        return f"{scope['pairs']} of {scope['planned_pairs']} pairs"
    return f"{scope['models']} of {scope['planned_models']} models"


def levels(factor: str, values: Iterable[Any]) -> str:
    """5 and 8 layers; of a factor without a word of its own: depth 5 and 8"""
    told = listed([f"{value}" for value in values])
    return f"{told} {_LEVELS[factor]}" if factor in _LEVELS else f"{factor} {told}"


def sizes(numbers: tuple[int, ...]) -> str:
    """Numbers of parameters, rising, to three digits: 144,000 and 164,000 parameters."""
    told = [f"{float(f'{number:.3g}'):,.0f}" for number in numbers]
    many = len(told) > MOST_SIZES
    return (f"{len(told)} sizes from {told[0]} to {told[-1]}" if many else listed(told)) + " parameters"


def tell_part(judged: JudgedClaim) -> str:
    """Why a part of a grid is enough for the verdict, or isn't; "" of a whole grid."""
    part, status = part_of(judged), judged.verdict.status
    if not part:
        return ""
    if status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER):
        return f"So “{status}” is said {part} alone: {A_PART}."
    return f"That is not enough for a verdict on all: {A_PART}."
