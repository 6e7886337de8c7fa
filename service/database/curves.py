"""Learning curves of arms and measurements inside their networks, over the compared replicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Literal, get_args

from pydantic import Field
from sqlalchemy import ColumnExpressionArgument, Select, func, select
from sqlalchemy.orm import Session

from service.database import queries
from service.database.comparing import Answer
from service.database.schemas import CurvePointOut, Out
from stages.results import (
    ArmRow,
    Epoch,
    ExperimentComparison,
    JudgedClaim,
    ObservationRow,
    Question,
    Result,
    UnknownName,
)

Curve = Literal["test_accuracy", "test_loss", "val_accuracy", "val_loss", "train_accuracy", "train_loss"]
CURVES: tuple[Curve, ...] = get_args(Curve)
SIDES = {"train": "training", "val": "validation", "test": "test"}
"""Part of the data that a curve is measured on, by the first word of its name."""

_LOSSES = {
    "images": ("loss", "nats"),
    "table": ("mean squared error", ""),
    "text": ("loss", "nats per token"),
    "multi-label": ("loss", "nats"),
    "regression": ("mean squared error", ""),
    "segmentation": ("loss", "nats per pixel"),
    "other": ("loss", ""),
}


def name_curve(curve: str, kind: str) -> str:
    """Name a curve, as "Validation mean squared error" for `val_loss`; `kind` is that of the data set."""
    side, _, what = curve.partition("_")
    return f"{SIDES[side].capitalize()} {_LOSSES[kind][0] if what == 'loss' else what}"


def unit_of_curve(curve: str, kind: str) -> str:
    return _LOSSES[kind][1] if curve.endswith("loss") else "fraction"


def known_curves(session: Session, comparison: ExperimentComparison, *, arm: str | None = None) -> list[Curve]:
    """Return the measured curves of all arms or of one, in the order of `CURVES`.

    A training measures a curve after every epoch or after none, so the first one shows it.
    """
    counted = select(*(func.count(getattr(Epoch, name)) for name in CURVES)).where(Epoch.epoch == 1)
    query = _shown(counted, comparison, Epoch)
    row = session.execute(query if arm is None else query.where(Result.arm == arm)).one()
    return [name for name, count in zip(CURVES, row, strict=True) if count]


def list_curves(
    session: Session, comparison: ExperimentComparison, curve: Curve, arms: Sequence[str]
) -> list[CurvePointOut]:
    """Return the points of these arms, ordered by arm and epoch."""
    value = getattr(Epoch, curve)
    query = select(Result.arm, Epoch.epoch, func.count(value).label("replicates"), *_summary_of(value))
    wanted = query.where(Result.arm.in_(arms), value.is_not(None)).group_by(Result.arm, Epoch.epoch)
    points = [CurvePointOut(**row._mapping) for row in session.execute(_shown(wanted, comparison, Epoch))]
    position = {arm.arm: number for number, arm in enumerate(comparison.arms)}
    return sorted(points, key=lambda point: (position[point.arm], point.epoch))


def _summary_of(value: Any) -> list[Any]:
    return [func.avg(value).label("mean"), func.min(value).label("low"), func.max(value).label("high")]


def _shown(
    query: Select[*tuple[Any, ...]], comparison: ExperimentComparison, table: type[Epoch | ObservationRow]
) -> Select[*tuple[Any, ...]]:
    """Restrict the query to the rows of `table` whose results make up the comparison."""
    return query.join_from(Result, table, table.result_id == Result.id).where(*are_of(comparison))


def are_of(comparison: ExperimentComparison) -> tuple[ColumnExpressionArgument[bool], ...]:
    """Return the conditions that select the comparison's results."""
    return (
        Result.experiment == comparison.experiment,
        Result.is_selected,
        Result.profile == comparison.profile,
        Result.conditions == comparison.conditions,
    )


@dataclass(frozen=True, kw_only=True)
class ComparedLine:
    """A model or a run; `name` is `<experiment>.<arm>` or the beginning of a run key.

    `curves` are those measured on real data.
    """

    name: str
    title: str
    model: str
    experiment: str
    address: str
    kind: str
    provenance: str | None
    cut: str | None
    curves: tuple[Curve, ...]
    points: Callable[[Curve], list[CurvePointOut]]


def find_line(session: Session, name: str, compare: Answer) -> ComparedLine:
    """Find the line of this name.

    Raises:
        UnknownExperiment, UnknownArm: there is no such model.
        UnknownRun: no run key begins like that, or several do.
    """
    if "." not in name:
        run = queries.find_run(session, name)[0]
        experiment = queries.find_experiment(session, run.experiment)
        title = next(arm.title for arm in experiment.arms if arm.name == run.arm)
        curves = curves_of_run(run) if run.provenance != "embedded" else {}
        return ComparedLine(
            name=name,
            model=title,
            title=f"{title}, run {run.run_key[: queries.KEY_DIGITS]} ({experiment.name})",
            experiment=experiment.name,
            address=f"/runs/{run.run_key}",
            kind=queries.find_dataset(session, experiment.dataset).kind,
            provenance=run.provenance,
            cut=run.cut,
            curves=tuple(curves),
            points=curves.__getitem__,
        )
    of, _, arm = name.partition(".")
    found = queries.find_experiment(session, of[:80])
    asked, (comparison,) = queries.find_arm(found, arm), compare(Question(experiment=found.name))
    is_drawn = comparison.is_real and any(item.arm == arm and item.run_keys for item in comparison.arms)
    return ComparedLine(
        name=name,
        title=f"{asked.title} ({found.name})",
        model=asked.title,
        experiment=found.name,
        address=f"/experiments/{found.name}?arm={arm}",
        kind=queries.find_dataset(session, found.dataset).kind,
        provenance=comparison.provenance,
        cut=comparison.cut,
        curves=tuple(known_curves(session, comparison, arm=arm)) if is_drawn else (),
        points=lambda curve: list_curves(session, comparison, curve, [arm]),
    )


def curves_of_run(run: Result) -> dict[Curve, list[CurvePointOut]]:
    """Return the measured curves of one run, in the order of `CURVES`."""
    found: dict[Curve, list[CurvePointOut]] = {}
    for epoch in run.epochs:
        for curve in CURVES:
            if (value := getattr(epoch, curve)) is not None:
                point = CurvePointOut(
                    arm=run.run_key, epoch=epoch.epoch, replicates=1, mean=value, low=value, high=value
                )
                found.setdefault(curve, []).append(point)
    return {curve: found[curve] for curve in CURVES if curve in found}


def curves_of(lines: Sequence[ComparedLine]) -> list[Curve]:
    """Return the curves that any line has: those of most lines first, else in the order of `CURVES`."""
    counts = Counter(curve for line in lines for curve in line.curves)
    return sorted(counts, key=lambda curve: (-counts[curve], CURVES.index(curve)))


def drawn_together(lines: Sequence[ComparedLine], curve: Curve) -> list[ComparedLine]:
    """Return the lines that have this curve in the same quantity, because nats and squared errors share no axis."""
    have = [line for line in lines if curve in line.curves]
    return [line for line in have if name_curve(curve, line.kind) == name_curve(curve, have[0].kind)]


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
"""Titles of quantities whose own names say too little."""

BEHIND: Mapping[str, tuple[str, ...]] = {
    "kernel_width_gap": ("attention_sigma", "feedforward_sigma"),
    "metric_distance_from_identity": ("attention_metric_change", "feedforward_metric_change"),
}
"""Quantities behind a claim's metric; other metrics are quantities themselves."""


class UnknownQuantity(UnknownName): ...


class ObservedPointOut(Out):
    """A quantity inside one block of an arm's networks, over heads and replicates."""

    experiment: str
    arm: str
    quantity: str = Field(examples=["attention_sigma"])
    moment: str = Field(description="start (the initial weights) or trained")
    block: int = Field(description="from 1")
    replicates: int
    mean: float
    low: float = Field(description="lowest of all heads and replicates")
    high: float


def name_quantity(quantity: str) -> str:
    return TITLES.get(quantity, quantity.replace("_", " "))


def known_quantities(session: Session, comparison: ExperimentComparison) -> list[str]:
    """Return the quantities that were measured for this comparison, sorted by name."""
    return sorted(session.scalars(_shown(select(ObservationRow.quantity).distinct(), comparison, ObservationRow)))


def list_observed(
    session: Session, comparison: ExperimentComparison, *, quantities: Sequence[str], arms: Sequence[str]
) -> list[ObservedPointOut]:
    """Return points of these quantities and arms, in this order; initial before trained, by block."""
    key = (Result.arm, ObservationRow.quantity, ObservationRow.moment, ObservationRow.block)
    value, many = ObservationRow.value, func.count(Result.id.distinct()).label("replicates")
    query: Select[*tuple[Any, ...]] = select(*key, many, *_summary_of(value)).group_by(*key)
    wanted = query.where(ObservationRow.quantity.in_(quantities), Result.arm.in_(arms), value.is_not(None))
    points = [
        ObservedPointOut(experiment=comparison.experiment, **row._mapping)
        for row in session.execute(_shown(wanted, comparison, ObservationRow))
    ]
    return sorted(
        points,
        key=lambda point: (quantities.index(point.quantity), arms.index(point.arm), point.moment, point.block),
    )


def points_of(result: Result, quantity: str) -> list[ObservedPointOut]:
    """Summarise one result's numbers of a quantity over the heads of each block."""
    values: dict[tuple[str, int], list[float]] = {}
    for row in result.observations:
        if row.quantity == quantity and row.value is not None:
            values.setdefault((row.moment, row.block), []).append(row.value)
    return [
        ObservedPointOut(
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


def list_behind(
    session: Session, record: JudgedClaim, arms: Iterable[ArmRow], compare: Answer
) -> list[ObservedPointOut]:
    """Return the points behind a claim's metric, for the `arms` that it concerns, on real data."""
    claim, own = record.claim, list(arms)
    quantities = BEHIND.get(claim.metric, (claim.metric,))
    is_there = select(ObservationRow.quantity).where(ObservationRow.quantity.in_(quantities)).limit(1)
    if session.scalar(is_there) is None:
        return []
    points = []
    for name in record.experiments:
        (comparison,) = compare(Question(experiment=name))
        about = [arm.name for arm in own if arm.experiment == name and fnmatchcase(arm.name, claim.arm or "*")]
        if comparison.is_real:
            points += list_observed(session, comparison, quantities=quantities, arms=about)
    return points
