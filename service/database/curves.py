"""Learning curves of an experiment's arms: mean and span over the replicates that its comparison shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from stages.results import Epoch, ExperimentComparison, Result

Curve = Literal["test_accuracy", "test_loss", "val_accuracy", "val_loss", "train_accuracy", "train_loss"]
CURVES: tuple[Curve, ...] = get_args(Curve)
SIDES = {"train": "training", "val": "validation", "test": "test"}
"""The part of the data that a curve is measured on, by the first word of the curve's name."""

_LOSSES = {"images": ("loss", "nats"), "table": ("mean squared error", ""), "text": ("loss", "nats per token")}


def name_curve(curve: str, kind: str) -> str:
    """`val_loss` of a table: "Validation mean squared error"; `kind` is the data set's."""
    side, _, what = curve.partition("_")
    return f"{SIDES[side].capitalize()} {_LOSSES[kind][0] if what == 'loss' else what}"


def unit_of_curve(curve: str, kind: str) -> str:
    return _LOSSES[kind][1] if curve.endswith("loss") else "fraction"


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One epoch of one arm: mean, lowest and highest of `replicates`."""

    arm: str
    epoch: int
    replicates: int
    mean: float
    low: float
    high: float


def known_curves(session: Session, comparison: ExperimentComparison, *, arm: str | None = None) -> list[Curve]:
    """The curves that were measured, of all arms or of one, in the order of `CURVES`."""
    query = _shown(select(*(func.count(getattr(Epoch, name)) for name in CURVES)), comparison)
    row = session.execute(query if arm is None else query.where(Result.arm == arm)).one()
    return [name for name, count in zip(CURVES, row, strict=True) if count]


def list_curves(
    session: Session, comparison: ExperimentComparison, curve: Curve, arms: Sequence[str]
) -> list[CurvePoint]:
    """Points of these arms, in the order of arms and epochs."""
    value = getattr(Epoch, curve)
    query = (
        select(Result.arm, Epoch.epoch, func.count(value), func.avg(value), func.min(value), func.max(value))
        .where(Result.arm.in_(arms), value.is_not(None))
        .group_by(Result.arm, Epoch.epoch)
    )
    points = [
        CurvePoint(arm=arm, epoch=epoch, replicates=count, mean=mean, low=low, high=high)
        for arm, epoch, count, mean, low, high in session.execute(_shown(query, comparison))
    ]
    position = {arm.arm: number for number, arm in enumerate(comparison.arms)}
    return sorted(points, key=lambda point: (position[point.arm], point.epoch))


def _shown(query: Select[*tuple[Any, ...]], comparison: ExperimentComparison) -> Select[*tuple[Any, ...]]:
    """Restrict the query to the epochs of the results that make up the comparison."""
    return query.join_from(Result, Epoch, Epoch.result_id == Result.id).where(
        Result.experiment == comparison.experiment,
        Result.is_selected,
        Result.profile == comparison.profile,
        Result.conditions == comparison.conditions,
    )
