"""The numbers of the rules as recorded, and how sure each question is answered at each look of a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.results.tables import Meta, damaged
from stages.rules import Margins, Rules
from stages.verdicts.looks import level, looks_from, looks_of_plan


@dataclass(frozen=True, kw_only=True)
class Levels:
    """`{look: confidence of its interval}` for each question that a plan's replicates answer.

    `order`: which of two models is better.  `same` and `other`: whether a number, or the size of a difference, is the
    paper's or another; `with_error` is the first of these where the paper prints its own error.
    """

    planned: int
    order: dict[int, float]
    same: dict[int, float]
    with_error: dict[int, float]
    other: dict[int, float]


def read_rules(session: Session) -> Rules:
    """The numbers of the rules by which the verdicts were reached.

    Raises:
        ResultsUnavailable: the database doesn't say.
    """
    found = session.scalar(select(Meta.value).where(Meta.name == "rules"))
    if found is None:
        raise damaged("it doesn't hold the numbers of the rules")
    numbers = json.loads(found)
    looks = {int(n): share for n, share in numbers["looks"].items()}
    return Rules(**{**numbers, "margins": Margins(**numbers["margins"]), "looks": looks})


def levels_of(rules: Rules, planned: int) -> Levels:
    """The confidence of every question at each look of a plan of so many replicates, as `stages.verdicts` asks it."""
    orders = looks_of_plan(rules.looks, planned)
    values, printed = (
        looks_of_plan(looks_from(rules.looks, minimum), planned)
        for minimum in (rules.minimum, rules.minimum_with_error)
    )

    def confidence(looks: dict[int, float], alpha: float) -> dict[int, float]:
        return {n: 1 - level(looks, n, alpha) for n in looks}

    return Levels(
        planned=planned,
        order=confidence(orders, rules.alpha_outside),
        same=confidence(values, 2 * rules.alpha_within),
        with_error=confidence(printed, 2 * rules.alpha_within),
        other=confidence(values, rules.alpha_outside),
    )
