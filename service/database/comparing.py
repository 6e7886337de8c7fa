"""Comparisons, cached for each content of the database, with the arms' ranks, specs, curves and inner measurements."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Literal, get_args
from urllib.parse import quote

from cachetools import LRUCache
from pydantic import Field
from sqlalchemy import ColumnExpressionArgument, Select, func, select
from sqlalchemy.orm import Session

from service.database import queries
from service.database.schemas import CurvePointOut, Out
from stages.results import (
    METRICS,
    SHOWN_METRICS,
    ArmComparison,
    ArmRow,
    Dataset,
    Epoch,
    ExperimentComparison,
    ExperimentRow,
    JudgedClaim,
    ObservationRow,
    Question,
    Result,
    UnknownName,
    compare,
)

MAX_ANSWERS, MAX_COMPARED = 64, 256
Answer = Callable[[Question], list[ExperimentComparison]]
"""`compare` on one session, with its cache."""


class Comparisons:
    """Cache of the latest answers and of the comparisons in them, each for one content of the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: LRUCache[tuple[str, Question], list[ExperimentComparison]] = LRUCache(MAX_ANSWERS)
        self._compared: LRUCache[tuple[str, Any], ExperimentComparison] = LRUCache(MAX_COMPARED)

    def get(self, session: Session, content: str, question: Question) -> list[ExperimentComparison]:
        """Return the result of `compare` on a session that reads `content`; errors are not cached.

        Raises:
            UnknownName: the data set, paper, experiment, profile or metric is unknown.
        """
        with self._lock:
            if (found := self._answers.get((content, question))) is not None:
                return found
            known = {key: one for (made_from, key), one in self._compared.items() if made_from == content}
        answer = compare(session, question, known)
        with self._lock:
            self._answers[content, question] = answer
            self._compared.update({(content, key): one for key, one in known.items()})
        return answer


def first_of_each_dataset(comparisons: Sequence[ExperimentComparison]) -> dict[str, ExperimentComparison]:
    """Return for each data set its first experiment with results on real data, else its first one."""
    real_first = sorted(comparisons, key=lambda comparison: not comparison.is_real)
    return {comparison.dataset: comparison for comparison in reversed(real_first)}


def first_with_results(overview: Mapping[str, ExperimentComparison], datasets: Iterable[Dataset]) -> str | None:
    """Return the first data set with results on real data, else the first with an experiment, else None."""
    known = [item.name for item in datasets if item.name in overview]
    return next((name for name in known if overview[name].is_real), next(iter(known), None))


def metrics_of(comparison: ExperimentComparison, kind: str) -> dict[str, str]:
    """Return the titles of the metrics to choose from: the paper's first, then others for this kind of data."""
    names = [*comparison.printed_metrics, *SHOWN_METRICS[kind]]
    if comparison.metric.name not in names:
        names.append(comparison.metric.name)
    known = {**METRICS, comparison.metric.name: comparison.metric}
    return {name: known[name].title if name in known else name for name in names}


@dataclass(frozen=True, kw_only=True)
class SpecRow:
    """A setting with its dotted name; None for a model that lacks it."""

    name: str
    left: object
    right: object

    @property
    def differs(self) -> bool:
        return self.left != self.right


def flatten(value: object, prefix: str = "") -> list[tuple[str, object]]:
    """Flatten nested mappings into dotted names and leaves."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [pair for key, item in value.items() for pair in flatten(item, f"{prefix}.{key}" if prefix else str(key))]


def lay_side_by_side(experiment: ExperimentRow, left: ArmRow, right: ArmRow) -> list[SpecRow]:
    """Return every setting of either model and of its complete protocol, in the left model's order first."""
    one, other = (
        dict(flatten({"model": arm.model, "protocol": {**experiment.protocol, **arm.protocol}}))
        for arm in (left, right)
    )
    return [SpecRow(name=name, left=one.get(name), right=other.get(name)) for name in {**one, **other}]


Cost = Literal["parameters", "flops_per_image", "train_seconds", "peak_memory_bytes", "latency_seconds_per_sample"]
Column = Literal["result", Cost]
"""Sort key: the result or a `Cost`.  One list, so that an error message names all choices."""

COSTS: dict[Cost, str] = {
    "parameters": "parameters",
    "flops_per_image": "FLOP per sample",
    "train_seconds": "training time",
    "peak_memory_bytes": "peak memory",
    "latency_seconds_per_sample": "time per sample",
}
"""Costs to compare with the result: fields of `CostSummary` and their titles."""
TITLES: dict[Column, str] = {
    "result": "Result",
    **{cost: title[0].upper() + title[1:] for cost, title in COSTS.items()},
}


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A model with our number and its comparison; `is_timed`: timed under the selected conditions."""

    comparison: ExperimentComparison
    arm: ArmComparison
    is_timed: bool = True

    def value(self, column: Column) -> float | None:
        if column == "latency_seconds_per_sample" and not self.is_timed:
            return None
        if column == "result":
            return self.arm.ours.value if self.arm.ours else None
        cost: float | None = getattr(self.arm.cost, column)
        return cost


def list_entries(comparisons: Sequence[ExperimentComparison]) -> list[ComparedModel]:
    """Return the models with a result."""
    return [ComparedModel(comparison=item, arm=arm) for item in comparisons for arm in item.arms if arm.ours]


def sizes(entries: Sequence[ComparedModel]) -> list[int]:
    """Return the powers of ten that divide the models by parameters, with some on each side."""
    found = [size for entry in entries if (size := entry.arm.cost.parameters)]
    powers = [10**power for power in range(3, 12)]
    return [most for most in powers if found and min(found) <= most < max(found)]


def rank(entries: Sequence[ComparedModel], *, by: Column, is_reversed: bool = False) -> list[ComparedModel]:
    """Sort the best or the cheapest first; models without that number come last."""
    known = [entry for entry in entries if entry.value(by) is not None]
    is_falling = by == "result" and bool(known) and known[0].comparison.metric.better == "higher"
    known.sort(key=lambda entry: entry.value(by) or 0.0, reverse=is_falling != is_reversed)
    return known + [entry for entry in entries if entry.value(by) is None]


def has(entries: Sequence[ComparedModel], column: Column) -> bool:
    """Return True if any model has a number in this column, so that no column is empty."""
    return any(entry.value(column) is not None for entry in entries)


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
        address=f"/experiments/{quote(found.name)}?arm={quote(arm)}",
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


_QUANTITIES: Mapping[str, str] = {
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
    return _QUANTITIES.get(quantity, quantity.replace("_", " "))


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
