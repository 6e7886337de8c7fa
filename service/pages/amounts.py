"""Numbers of a claim with what they are of: the way of a difference in words, the unit in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.database.observed import name_quantity
from service.pages.formats import NONE, from_to, plain, points, value_in
from stages.results import METRICS, Claim

GAINS = ("order", "difference", "gap", "equivalence")
"""Kinds of claims whose number is a gain of one arm over another, better positive."""
SIDES_OF_A_SIZE = {"ahead_from": "better from {} on", "behind_up_to": "worse up to {}"}
"""Kinds of claims about networks on one side of a number of parameters."""
RELATIVE = ("relative gain", "relative reduction")

_OBSERVED = {"kernel_width_gap": "ln σ(feed-forward) − ln σ(attention)"}
_TALLIED = {"orders": "comparisons"}


def unit_of(claim: Claim) -> str:
    """The unit of the finding: a gain among networks of so many parameters is in the unit of its metric."""
    return METRICS[claim.metric].unit if claim.kind in SIDES_OF_A_SIZE else claim.unit or ""


def in_terms_of(value: float | None, claim: Claim, write: Callable[[float], str] = plain) -> str:
    """A number in the terms of `claim`: gains and ranges of fractions in points, all else in the claim's unit."""
    unit = unit_of(claim)
    is_gain = claim.kind in GAINS and unit == "fraction"
    if claim.kind == "noise" and unit == "fraction":
        return points(value).removeprefix("+")
    return points(value) if is_gain else value_in(unit, write)(value)


def is_of_the_other(claim: Claim) -> bool:
    """True if the number tells how much more the other model needs: a gain in time is relative to ours."""
    return claim.unit == "relative gain" and claim.better == "lower"


def in_its_way(value: float | None, claim: Claim, write: Callable[[float], str] = plain) -> str:
    """A number of ours or of the paper in the claim's terms, a difference by its way: 0.36 pp lower, 36 % longer.

    The way is that of the metric of the model named first, whichever way is better; `is_of_the_other` says which is
    named first.
    """
    is_relative = claim.unit in RELATIVE
    if value is None or not (claim.kind in GAINS or is_relative):
        return in_terms_of(value, claim, write)
    size = value_in("relative", write)(abs(value)).strip() if is_relative else in_terms_of(abs(value), claim, write)
    return f"{size.removeprefix('+')} {_way(value, claim)}" if value else f"{size.removeprefix('+')}: no difference"


def _way(value: float, claim: Claim) -> str:
    is_up = (value > 0) == (claim.better != "lower" or is_of_the_other(claim))
    is_time = claim.metric in METRICS and METRICS[claim.metric].unit == "seconds"
    return {(True, False): "higher", (False, False): "lower", (True, True): "longer"}.get((is_up, is_time), "shorter")


def print_value(claim: Claim, write: Callable[[float], str]) -> str:
    """The paper's number as printed there: with its error, as a range, or as k of n; none where the paper prints none.

    `write` formats with all the digits that a paper prints.
    """
    if claim.kind == "equivalence":
        loss = None if claim.value is None else in_terms_of(claim.value, claim).removeprefix("+")
        return f"comparable, with losses up to {loss}" if loss else "comparable"
    if claim.value is None or claim.kind == "observed":
        return NONE
    if claim.kind in SIDES_OF_A_SIZE:
        return SIDES_OF_A_SIZE[claim.kind].format(value_in(claim.unit or "", write)(claim.value))
    value = in_its_way(claim.value, claim, write)
    if claim.kind == "noise":
        return f"{value} between the largest and the smallest of {claim.trials:g}"
    if claim.trials is not None:
        return f"{claim.value:g} of {claim.trials:g} {_TALLIED.get(claim.unit or '', claim.unit or '')}".rstrip()
    if claim.high is not None:
        return from_to(value, in_its_way(claim.high, claim, write))
    if claim.stderr is not None:
        error = in_terms_of(claim.stderr, claim, write).removeprefix("+")
        number, unit, way = value.partition(" pp ")
        return f"{number} ± {error} {way}" if unit else f"{value} ± {error}"
    return value


def by_reading(claim: Claim) -> list[tuple[str, str]]:
    """(reading, what comes out under it) of a claim whose readings have a number or a brief each, not all the same."""
    finding = claim.finding or {}
    if finding.get("status") not in ("holds", "holds under a reading"):
        return []
    found = [(row["name"], _under(row, claim)) for row in finding["readings"]]
    told = [(name, text) for name, text in found if text]
    return told if len({text for _, text in told}) > 1 else []


def _under(reading: dict[str, Any], claim: Claim) -> str:
    """The number of a reading in the claim's terms, or its brief; "" without either."""
    if reading["ours"] is not None:
        return in_its_way(reading["ours"], claim)
    return reading["brief"] or ""


def imply(claim: Claim) -> str | None:
    """What an observation would be if the paper's words are true, which print no number; None of other claims."""
    if claim.kind != "observed" or claim.value is None:
        return None
    side = {"higher": "above ", "lower": "below "}.get(claim.better or "", "equal to ")
    return f"{_OBSERVED.get(claim.metric) or name_quantity(claim.metric)} {side}{plain(claim.value)}"
