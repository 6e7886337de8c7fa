"""Short names of claims, made of the titles of their data sets and models."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.queries import list_datasets
from service.pages.wording import name_claim
from stages.results import Arm, JudgedClaim


def name_claims(session: Session, judged: Iterable[JudgedClaim]) -> dict[str, str]:
    """`{claim: short phrase}`."""
    titles, arms = titles_of(session)
    return {row.claim.id: name_claim(row, titles, arms) for row in judged}


def titles_of(session: Session) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Titles of the data sets, and of each (experiment, arm), as `name_claim` needs them."""
    return (
        {item.name: item.title for item in list_datasets(session)},
        {(row.experiment, row.name): row.title for row in session.execute(select(Arm.experiment, Arm.name, Arm.title))},
    )
