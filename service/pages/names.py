"""Short names of claims, made of the titles of their data sets and models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from service.database.queries import list_datasets
from service.pages.wording import name_claim
from stages.results import Experiment, JudgedClaim


def name_claims(session: Session, judged: Iterable[JudgedClaim], experiments: Sequence[Experiment]) -> dict[str, str]:
    """`{claim: short phrase}`, using the titles of the arms of `experiments`."""
    titles, arms = titles_of(session, experiments)
    return {row.claim.id: name_claim(row, titles, arms) for row in judged}


def titles_of(session: Session, experiments: Sequence[Experiment]) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Titles of the data sets, and of each (experiment, arm), as `name_claim` needs them."""
    return (
        {item.name: item.title for item in list_datasets(session)},
        {(experiment.name, arm.name): arm.title for experiment in experiments for arm in experiment.arms},
    )
