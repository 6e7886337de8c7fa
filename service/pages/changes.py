"""What changed in a claim since it was listed: what touched a rule, metric, statement or verdict, and the rest."""

from __future__ import annotations

from collections.abc import Iterable

from stages.results import ClaimChange

REMARKS = ("note", "place")
"""Columns that say more of a claim and decide nothing."""


def sort_changes(changes: Iterable[ClaimChange]) -> tuple[list[ClaimChange], list[ClaimChange]]:
    """(those of this claim's own row or rule that touched what is judged, the others), each by date.

    Of the others are changes of the rules' numbers and of the code for many claims, most of which concern another one.
    That a row was added is no change.
    """
    told = sorted((change for change in changes if _is_told(change)), key=lambda change: change.date)
    return [change for change in told if _touches(change)], [change for change in told if not _touches(change)]


def _is_told(change: ClaimChange) -> bool:
    return change.subject != "claim" or bool(change.changed)


def _touches(change: ClaimChange) -> bool:
    if change.subject != "claim":
        return change.subject == "rule"
    return any(
        _without_spaces(old) != _without_spaces(new)
        for column, (old, new) in change.changed.items()
        if column not in REMARKS
    )


def _without_spaces(value: object) -> str:
    return "".join(str(value).split())
