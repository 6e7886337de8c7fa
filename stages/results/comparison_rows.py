"""The rows behind comparisons, read by column: a comparison of thousands of runs needs few of their numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.results import tables
from stages.results.claims import arm_verdicts
from stages.results.estimates import COST_COLUMNS, ArmVerdict, Estimate, Population
from stages.results.tables import ClaimExperiment
from stages.runs.evidence import Provenance
from stages.verdicts.intervals import t_quantile, wilson
from stages.verdicts.metrics import METRICS, MetricInfo

COST_OF_EVERY_ARM = ("parameters", "flops_per_image")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A selected result.  `numbers` holds value and samples by (metric, split), `cost` its row of `costs`.

    `origin` says where evidence was made, and is None for a result of this working tree.
    """

    id: int
    run_key: str
    machine_digest: str
    origin: Mapping[str, Any] | None
    experiment: str
    arm: str
    replicate: int
    source: str
    changed_code: list[str]
    profile: str
    provenance: Provenance
    cut: str
    conditions: str
    group_position: int
    status: str
    test_images: int
    excluded_test_images: int
    numbers: Mapping[tuple[str, str], tuple[float, int | None]]
    cost: Any


@dataclass(frozen=True)
class ComparisonRows:
    """The rows behind comparisons, with runs by experiment.

    `claims` are printed values by (metric, experiment, arm), `gains` printed differences between two arms.  `wholes`
    are metrics of arms as wholes by (metric, experiment, arm, profile, conditions).
    """

    runs: Mapping[str, list[ComparedRun]]
    claims: Mapping[tuple[str, str, str], tables.Claim]
    gains: Mapping[tuple[str, str, str], tables.Claim]
    wholes: Mapping[tuple[str, str, str, str, str], tables.ArmMetricRow]
    checkpoints: Mapping[int, list[str]]
    verdicts: Mapping[tuple[str, str], tuple[ArmVerdict, ...]]


def load_facts(session: Session, experiments: Mapping[str, Sequence[MetricInfo]]) -> ComparisonRows:
    """The rows of these experiments, each compared by one of its metrics."""
    metrics = {info.name for infos in experiments.values() for info in infos}
    claims = session.scalars(
        select(tables.Claim)
        .where(
            tables.Claim.experiment.in_(experiments),
            tables.Claim.metric.in_({"inference_time", *metrics}),
            tables.Claim.kind.in_(("value", "difference")),
        )
        .order_by(tables.Claim.position.desc())
    )
    printed: dict[str, dict[tuple[str, str, str], tables.Claim]] = {"value": {}, "difference": {}}
    for claim in claims:
        if claim.experiment and claim.arm and claim.value is not None:
            printed[claim.kind][claim.metric, claim.experiment, claim.arm] = claim
    arm_metrics = select(tables.ArmMetricRow).where(
        tables.ArmMetricRow.experiment.in_(experiments),
        tables.ArmMetricRow.metric.in_({name for name in metrics if METRICS[name].of_arm}),
    )
    return ComparisonRows(
        runs=_runs(session, list(experiments), {*COST_OF_EVERY_ARM, *metrics}),
        claims=printed["value"],
        gains=printed["difference"],
        wholes={
            (row.metric, row.experiment, row.arm, row.profile, row.conditions): row
            for row in session.scalars(arm_metrics)
        },
        checkpoints=_checkpoints(session, list(experiments)),
        verdicts=arm_verdicts(session, list(experiments)),
    )


def printed_metrics(session: Session, experiments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """List for each experiment the metrics of its paper's claims: values first, costs last, in printed order."""
    query = (
        select(ClaimExperiment.experiment, tables.Claim.metric, tables.Claim.kind)
        .join(tables.Claim, tables.Claim.id == ClaimExperiment.claim)
        .where(ClaimExperiment.experiment.in_(experiments), tables.Claim.metric.in_(METRICS))
        .order_by(tables.Claim.position)
    )
    rows = sorted(session.execute(query), key=lambda row: (METRICS[row.metric].split is None, row.kind != "value"))
    found: dict[str, dict[str, None]] = {name: {} for name in experiments}
    for row in rows:
        found[row.experiment][row.metric] = None
    return {name: tuple(metrics) for name, metrics in found.items()}


def _runs(session: Session, experiments: Sequence[str], metrics: set[str]) -> dict[str, list[ComparedRun]]:
    selected = tables.Result.experiment.in_(experiments) & tables.Result.is_selected
    number = tables.Metric
    query = select(number.result_id, number.metric, number.split, number.value, number.n)
    numbers = defaultdict[int, dict[tuple[str, str], tuple[float, int | None]]](dict)
    joined = query.join(tables.Result, tables.Result.id == number.result_id).where(selected, number.metric.in_(metrics))
    for result_id, metric, split, value, n in session.execute(joined):
        numbers[result_id][metric, split] = value, n
    columns = [column for column in tables.Cost.__table__.columns if column.name != "epoch_seconds"]
    timed = select(*columns).join(tables.Result, tables.Result.id == tables.Cost.result_id).where(selected)
    costs = {row.result_id: row for row in session.execute(timed)}
    names = [name for name in ComparedRun.__slots__ if name not in ("numbers", "cost")]
    found = defaultdict(list)
    wanted = select(*(getattr(tables.Result, name) for name in names)).where(selected).order_by(tables.Result.id)
    for row in session.execute(wanted):
        run = ComparedRun(**row._mapping, numbers=numbers[row.id], cost=costs.get(row.id))
        found[run.experiment].append(run)
    return found


def _checkpoints(session: Session, experiments: Sequence[str]) -> dict[int, list[str]]:
    """Ids of checkpoints by result."""
    found = defaultdict(list)
    query = (
        select(tables.Checkpoint.id, tables.Checkpoint.result_id)
        .join(tables.Result)
        .where(tables.Result.experiment.in_(experiments), tables.Result.is_selected)
        .order_by(tables.Checkpoint.position)
    )
    for row in session.execute(query):
        found[row.result_id].append(row.id)
    return found


STAND_IN = "placeholder data: its number says nothing about the claim"

_TAKES = {
    "min_error": "test errors of every epoch",
    "window_error": "validation and test errors of five epochs or more",
}

_ALPHA = 0.025  # on each side of a 95 % interval


@cache
def _t_quantile(freedom: int) -> float:
    return float(t_quantile(freedom, _ALPHA))


def t_interval(values: Sequence[float], *, std: float | None = None) -> tuple[float, float]:
    """Student's 95 % interval of the mean; needs two values.  `std` is their standard deviation, where it is known."""
    spread = stdev(values) if std is None else std
    half = _t_quantile(len(values) - 1) * spread / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def wilson_interval(fraction: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a fraction seen in n draws."""
    return wilson(fraction, n, _ALPHA)


def values_of(results: Sequence[ComparedRun], metric: MetricInfo, facts: ComparisonRows) -> dict[int, float]:
    """Values by replicate; for a metric of the arm as a whole, each fold's share of it."""
    if metric.of_arm:
        whole = _whole(results, metric, facts)
        return dict(whole.shares) if whole else {}
    if metric.split is None:
        costs = {result.replicate: getattr(result.cost, COST_COLUMNS[metric.name], None) for result in results}
        return {replicate: float(value) for replicate, value in costs.items() if value is not None}
    key = metric.name, metric.split
    return {result.replicate: result.numbers[key][0] for result in results if key in result.numbers}


def _whole(results: Sequence[ComparedRun], metric: MetricInfo, facts: ComparisonRows) -> tables.ArmMetricRow | None:
    if not results:
        return None
    first = results[0]
    return facts.wholes.get((metric.name, first.experiment, first.arm, first.profile, first.conditions))


def estimate(results: Sequence[ComparedRun], metric: MetricInfo, facts: ComparisonRows) -> Estimate | None:
    """The estimate from `results` of one arm under equal conditions; None if none of them has the metric."""
    by_replicate = values_of(results, metric, facts)
    values, whole = list(by_replicate.values()), _whole(results, metric, facts) if metric.of_arm else None
    if not values:
        return None
    measured = [result for result in results if result.replicate in by_replicate]
    sizes: set[int | None] = set()  # numbers of test samples behind the values
    if metric.split is not None and metric.of_arm:
        sizes = {result.test_images for result in measured}
    elif metric.split is not None:
        sizes = {result.numbers[metric.name, metric.split][1] for result in measured}
    n_test = min((n for n in sizes if n is not None), default=None)
    std = low = high = population = None
    missing: str | None = "one replicate: an interval needs two"
    if len(values) >= 2:
        std, missing = stdev(values), None
        low, high = t_interval(values, std=std)
    if n_test is not None and metric.name == "accuracy":
        bounds = wilson_interval(fmean(values), n_test)
        population = Population(low=bounds[0], high=bounds[1], n_test=n_test)
    return Estimate(
        value=whole.value if whole else fmean(values),
        std=None if whole else std,
        stderr=whole.stderr if whole else None if std is None else std / math.sqrt(len(values)),
        low=low,
        high=high,
        interval_missing=missing,
        n=len(values),
        n_diverged=sum(result.status == "diverged" for result in results),
        n_test=n_test,
        epoch=whole.epoch if whole else None,
        population=population,
    )


def why_none(by_arm: Mapping[str, Sequence[ComparedRun]], arm: str, metric: MetricInfo, asked: str) -> str:
    """Explain why an arm has no number of ours.  `by_arm` are all results shown, `asked` is the filter."""
    mine = by_arm.get(arm, ())
    if not by_arm:
        return f"not run yet{asked}"
    if any(result.provenance == "embedded" for results in by_arm.values() for result in results):
        return STAND_IN
    if not mine:
        return "not trained under the conditions that are shown"
    if all(result.status == "diverged" for result in mine):
        return f"diverged: {len(mine)} of {len(mine)} trainings"
    title = metric.title[0].lower() + metric.title[1:]
    what = f"{title}, which takes {_TAKES[metric.name]}" if metric.of_arm else title
    return f"its runs have no {what}"
