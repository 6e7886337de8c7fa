"""Deviations that may explain what a paper compares: a sentence above its table, and whether it was tested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.comparing import Question
from service.pages.formats import value_in
from stages.results import ClaimDeviation, Deviation, ExperimentComparison, JudgedClaim


def first_places(
    session: Session, deviations: Iterable[Deviation], groups: Mapping[str, Sequence[JudgedClaim]]
) -> dict[str, list[Deviation]]:
    """`{place: deviations}`: each that explains something, at the first place with a claim that it touches."""
    found: dict[str, list[Deviation]] = {place: [] for place in groups}
    for deviation in deviations:
        if deviation.explains is None:
            continue
        touched = set(session.scalars(select(ClaimDeviation.claim).where(ClaimDeviation.deviation == deviation.id)))
        first = next((place for place, rows in groups.items() if touched & {row.claim.id for row in rows}), None)
        if first is not None:
            found[first].append(deviation)
    return found


def tell_tests(
    deviations: Iterable[Deviation],
    arms: Mapping[tuple[str, str], str],
    compare: Callable[[Question], list[ExperimentComparison]],
) -> dict[str, str]:
    """`{deviation: sentence}`: what the model that tests it reached, or that it was not trained yet.

    `arms` are the titles of each (experiment, arm).
    """
    told = {}
    for deviation in deviations:
        if deviation.tested_by is None:
            continue
        comparisons = compare(Question(paper=deviation.paper))
        title = next(
            (
                arms[item.experiment, deviation.tested_by]
                for item in comparisons
                if (item.experiment, deviation.tested_by) in arms
            ),
            deviation.tested_by,
        )
        reached = [
            f"{value_in(item.metric.unit)(arm.ours.value)} in {item.title}"
            for item in comparisons
            for arm in item.arms
            if arm.arm == deviation.tested_by and arm.ours is not None
        ]
        told[deviation.id] = f"{title} reached {'; '.join(reached)}." if reached else f"{title} was not trained yet."
    return told
