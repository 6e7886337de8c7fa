"""Queries of the routes to claims; a name that isn't there is an error, not an empty list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.queries import find_dataset, find_paper, require_experiment
from stages.results import (
    Claim,
    ClaimFilter,
    Deviation,
    Experiment,
    JudgedClaim,
    Result,
    Tally,
    UnknownName,
    list_families,
    list_judged,
    tally,
)


class UnknownKind(UnknownName):
    kind = "kind"


class UnknownFamily(UnknownName):
    kind = "family"


def list_claims(session: Session, wanted: ClaimFilter, *, limit: int, offset: int) -> list[JudgedClaim]:
    """The claims that match, with their verdicts, in their order.

    Raises:
        UnknownPaper, UnknownDataset, UnknownExperiment, UnknownKind, UnknownFamily: what the filter names isn't there.
    """
    check_filter(session, wanted)
    return list_judged(session, wanted, limit=limit, offset=offset)


def tally_claims(session: Session, wanted: ClaimFilter) -> list[Tally]:
    """Count verdicts for each paper; raises as `list_claims`."""
    check_filter(session, wanted)
    found = tally(session, wanted)
    return [counts for counts in found if wanted.paper in (None, counts.paper)]


def tally_of(session: Session, paper: str) -> Tally | None:
    """The counts of one paper; None if it has no claims."""
    return next(iter(tally_claims(session, ClaimFilter(paper=paper))), None)


def list_deviations(session: Session, paper: str) -> Sequence[Deviation]:
    """Everything in which we depart from a paper, in the order of its records."""
    return session.scalars(select(Deviation).where(Deviation.paper == paper).order_by(Deviation.position)).all()


def list_mentioned(session: Session, claim: Claim) -> list[JudgedClaim]:
    """The claims of the same paper whose ids its note names: what bears on it."""
    named = set(re.findall(r"\w+(?:\.\w+)+", claim.note or ""))
    if not named:
        return []
    return [row for row in list_judged(session, ClaimFilter(paper=claim.paper)) if row.claim.id in named]


def lacking_test_images(session: Session, experiments: Iterable[str]) -> dict[str, tuple[int, int]]:
    """`{data set: (official test images, those that no result here is scored on)}` where our source lacks some."""
    query = (
        select(Experiment.dataset, Result.test_images, Result.excluded_test_images)
        .join(Result, Result.experiment == Experiment.name)
        .where(Experiment.name.in_(list(experiments)), Result.is_selected, Result.excluded_test_images > 0)
        .distinct()
    )
    return {row[0]: (row[1] + row[2], row[2]) for row in session.execute(query)}


def check_filter(session: Session, wanted: ClaimFilter) -> None:
    if wanted.paper is not None:
        find_paper(session, wanted.paper)
    if wanted.dataset is not None:
        find_dataset(session, wanted.dataset)
    if wanted.experiment is not None:
        require_experiment(session, wanted.experiment)
    if wanted.kind is not None:
        kinds = session.scalars(select(Claim.kind).distinct().order_by(Claim.kind)).all()
        if wanted.kind not in kinds:
            raise UnknownKind(wanted.kind[:80], kinds)
    if wanted.family is not None:
        families = [family.name for family in list_families(session)]
        if wanted.family not in families:
            raise UnknownFamily(wanted.family[:80], families)
