"""Numbers from inside trained networks: the quantities there are, and their mean and span over heads and replicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.database.comparing import Question
from stages.results import Arm, ExperimentComparison, JudgedClaim, ObservationRow, Result, UnknownName

Answer = Callable[[Question], list[ExperimentComparison]]

TITLES: Mapping[str, str] = {
    "attention_metric_change": "‖WᵀW − I‖ / ‖I‖ of attention",
    "attention_sigma": "σ of attention",
    "displacement_over_steps": "squared displacement over squared steps",
    "dobrushin": "Dobrushin coefficient of P",
    "feedforward_metric_change": "‖WᵀW − I‖ / ‖I‖ of the feed-forward",
    "feedforward_sigma": "σ of the feed-forward",
    "gaussian_distance": "total variation between P and the Gaussian walk",
    "norm_error": "distance of tokens from the sphere, in radii",
    "second_eigenvalue": "second eigenvalue of P",
    "self_probability": "probability of staying",
    "share_of_sphere": "spread of tokens, 1 for independent ones",
}
"""Quantities that have a better name than their own."""

BEHIND: Mapping[str, tuple[str, ...]] = {
    "kernel_width_gap": ("attention_sigma", "feedforward_sigma"),
    "metric_distance_from_identity": ("attention_metric_change", "feedforward_metric_change"),
}
"""Quantities behind a claim's metric; another metric stands on the quantity of its own name."""


class UnknownQuantity(UnknownName):
    kind = "quantity"


@dataclass(frozen=True, kw_only=True)
class ObservedPoint:
    """A quantity in one block of an arm's networks: mean, lowest and highest over heads and `replicates`.

    `moment`: at the start, with the initial weights of the same replicates, or trained.
    """

    experiment: str
    arm: str
    quantity: str
    moment: str
    block: int
    replicates: int
    mean: float
    low: float
    high: float


def name_quantity(quantity: str) -> str:
    return TITLES.get(quantity, quantity.replace("_", " "))


def known_quantities(session: Session, comparison: ExperimentComparison) -> list[str]:
    """The quantities that the compared results hold, by name."""
    return sorted(name for (name,) in session.execute(_shown(select(ObservationRow.quantity).distinct(), comparison)))


def list_observed(
    session: Session, comparison: ExperimentComparison, *, quantities: Sequence[str], arms: Sequence[str]
) -> list[ObservedPoint]:
    """Points of these quantities and arms, in their order, initial before trained, block by block."""
    key = (Result.arm, ObservationRow.quantity, ObservationRow.moment, ObservationRow.block)
    value = ObservationRow.value
    numbers = (func.count(Result.id.distinct()), func.avg(value), func.min(value), func.max(value))
    query: Select[*tuple[Any, ...]] = select(*key, *numbers).group_by(*key)
    wanted = query.where(ObservationRow.quantity.in_(quantities), Result.arm.in_(arms), value.is_not(None))
    points = [
        ObservedPoint(
            experiment=comparison.experiment,
            arm=arm,
            quantity=quantity,
            moment=moment,
            block=block,
            replicates=count,
            mean=mean,
            low=low,
            high=high,
        )
        for arm, quantity, moment, block, count, mean, low, high in session.execute(_shown(wanted, comparison))
    ]
    return sorted(
        points,
        key=lambda point: (quantities.index(point.quantity), arms.index(point.arm), point.moment, point.block),
    )


def points_of(result: Result, quantity: str) -> list[ObservedPoint]:
    """One result's numbers for a quantity: over the heads of each block."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in result.observations:
        if row.quantity == quantity and row.value is not None:
            values.setdefault((row.moment, row.block), []).append(row.value)
    return [
        ObservedPoint(
            experiment=result.experiment,
            arm=result.arm,
            quantity=quantity,
            moment=moment,
            block=block,
            replicates=1,
            mean=fmean(own),
            low=min(own),
            high=max(own),
        )
        for (moment, block), own in values.items()
    ]


def list_behind(session: Session, record: JudgedClaim, arms: Iterable[Arm], compare: Answer) -> list[ObservedPoint]:
    """Points behind a claim's metric, for those of `arms` that it is about, in its experiments on real data."""
    claim, own = record.claim, list(arms)
    quantities = BEHIND.get(claim.metric, (claim.metric,))
    is_there = select(ObservationRow.quantity).where(ObservationRow.quantity.in_(quantities)).limit(1)
    if session.scalar(is_there) is None:
        return []
    compared = [item for dataset in record.datasets for item in compare(Question(dataset=dataset))]
    about = {
        name: [arm.name for arm in own if arm.experiment == name and fnmatchcase(arm.name, claim.arm or "*")]
        for name in record.experiments
    }
    return [
        point
        for comparison in compared
        if comparison.experiment in about and comparison.provenance not in (None, "embedded")
        for point in list_observed(session, comparison, quantities=quantities, arms=about[comparison.experiment])
    ]


def _shown(query: Select[*tuple[Any, ...]], comparison: ExperimentComparison) -> Select[*tuple[Any, ...]]:
    """Restrict the query to the results that make up the comparison."""
    return query.join_from(Result, ObservationRow, ObservationRow.result_id == Result.id).where(
        Result.experiment == comparison.experiment,
        Result.is_selected,
        Result.profile == comparison.profile,
        Result.conditions == comparison.conditions,
    )
