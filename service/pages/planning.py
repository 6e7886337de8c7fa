"""What the planned runs can show about a claim, conclusion first, in the claim's own units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.pages.amounts import GAINS, in_terms_of, unit_of
from service.pages.formats import percent
from service.pages.rules_table import name_share
from stages.results import Claim, VerdictRow

WANTED = 0.8
"""As in `stages.verdicts.power`, whose `needed` are replicates for this chance."""


def plan_in_words(claim: Claim, verdict: VerdictRow) -> tuple[str, list[str]] | None:
    """(conclusion, further sentences) from the power of the plan; None without one, or where it is in spreads alone."""
    power = verdict.power
    if power is None or (power["supported"] is None and power["reproduced"] is None and power["can_reproduce"]):
        return None
    runs = f"the {power['planned']} planned runs" + ("" if claim.baseline_arm is None else " of each model")
    is_assumed = power["source"] == "assumed"
    if power["supported"] is None:
        return _of_number(claim, power, runs)
    if claim.kind == "equivalence":
        what = "confirm that they are comparable"
        said = _sentence("the models are alike", runs, what, power["supported"], is_assumed=is_assumed)
        return said, _needed(power["supported"], power["needed"])
    chance = "the gain is as printed" if claim.kind != "failures" else "the shares that fail are as printed"
    what = "confirm which model " + ("fails less often" if claim.kind == "failures" else "is better")
    conclusion = _sentence(chance, runs, what, power["supported"], is_assumed=is_assumed)
    more = _needed(power["supported"], power["needed"]) if claim.kind != "failures" else []
    if power["supported_at_half"] is not None:
        at_half = _chance(power["supported_at_half"], is_assumed=is_assumed)
        more.insert(0, f"If the gain is half as large, that chance is {at_half}.")
    if power["reproduced"] is None and power["can_reproduce"]:
        return conclusion, more
    _, of_size = _of_number(claim, power, runs)
    size = f"Its size they confirm with a chance of {_chance(power['reproduced'] or 0.0, is_assumed=is_assumed)}."
    if not power["can_reproduce"]:
        size = "Its size can’t be confirmed, however many runs are made."
    return conclusion, [*more, size, *of_size]


def _of_number(claim: Claim, power: Mapping[str, Any], runs: str) -> tuple[str, list[str]]:
    """Of a printed number: the chance of confirming it, what more runs would bring, the margin."""
    chance = power["reproduced"] or 0.0
    is_lost, needed = not power["can_reproduce"], power["needed" if power["supported"] is None else "needed_for_size"]
    is_uniform = claim.kind == "uniform"
    where, what = ("the gains are alike", "confirm it") if is_uniform else ("the paper is right", "confirm its number")
    is_assumed = power["source"] == "assumed"
    conclusion = _sentence(where, runs, what, chance, is_assumed=is_assumed)
    if is_lost:
        conclusion = "However many runs are made, this number can’t be confirmed."
    more = []
    margin = None if power["margin"] is None else distance(power["margin"], claim)
    error = None if power["paper_error"] is None else distance(power["paper_error"], claim)
    of_runs = f"of {claim.n} runs" if (claim.n or 1) > 1 else "taken as of one run"  # few papers say how many
    if is_lost and power["reproduced"] is None:
        more.append(f"It is no larger than the margin of {margin}, so no gain at all would count as this gain, too.")
    elif is_lost and error:
        more.append(f"The paper’s own number, {of_runs}, is itself uncertain by {error}, and the margin is {margin}.")
    elif needed is None and power["most"] is not None and chance < WANTED and error:
        uncertain = f"since the paper’s own number, {of_runs}, is itself uncertain by {error}"
        most = _chance(power["most"], is_assumed=is_assumed)
        more.append(f"More runs would raise that to {most} at most, {uncertain}.")
    elif chance < WANTED and needed:
        more += _needed(chance, needed)
    if margin and not is_lost:
        more.append(f"The margin is ± {margin}{_share_of(claim, power['margin'])}.")
    if margin and power["not_reproduced"] is not None:
        off = _chance(power["not_reproduced"], is_assumed=is_assumed)
        more.append(
            f"If the truth is two margins away from the paper’s number, the runs refute it with a chance of {off}."
        )
    return conclusion, more


def _sentence(where: str, runs: str, what: str, chance: float, *, is_assumed: bool) -> str:
    """As "If the paper is right and our set-up is the paper’s, the 5 planned runs will …, by an assumed spread."."""
    said = f"If {where} and our set-up is the paper’s, {runs} will {what} with a chance of"
    by = ", by an assumed spread of the runs" if is_assumed else ""
    return f"{said} {_chance(chance, is_assumed=is_assumed)}{by}."


def _needed(chance: float, needed: int | None) -> list[str]:
    if chance >= WANTED:
        return []
    return (
        [f"A chance of {percent(WANTED, 0)} takes {needed} runs."] if needed else ["No number of runs makes it 80 %."]
    )


def _chance(chance: float, *, is_assumed: bool) -> str:
    """A chance in percent; one from an assumed spread is told no closer to certainty than 95 %."""
    most = 0.95 if is_assumed else 0.995
    if chance < 1 - most:
        return "less than 5 %" if is_assumed else "less than 1 %"
    if chance > most:
        return "more than 95 %" if is_assumed else "more than 99 %"
    return percent(chance, 0)


def _share_of(claim: Claim, margin: float) -> str:
    """What share of a printed difference its margin is, and what that asks of ours; "" of other numbers."""
    is_difference = claim.kind in (*GAINS, "ratio") and claim.value
    if not is_difference:
        return ""
    share = margin / abs(claim.value or 1.0)
    least, most = (percent(end, 0) for end in (1 - share, 1 + share))
    return f", {name_share(share)} of the paper’s number: ours may be {least} to {most} of it"


def distance(value: float, claim: Claim) -> str:
    """A difference in the claim's unit: of fractions in percentage points."""
    if unit_of(claim) == "fraction":
        digits = 2 if value >= 0.001 else 3
        return f"{100 * value:.{digits}f} pp"
    return in_terms_of(float(f"{value:.3g}"), claim)
