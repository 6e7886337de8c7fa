"""The rows behind comparisons, read by column: a comparison of thousands of runs needs few of their numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.results import tables
from stages.results.claim_tables import ClaimExperiment
from stages.results.claims import arm_verdicts
from stages.results.estimates import ArmVerdict
from stages.results.metrics import METRICS, MetricInfo

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
    provenance: str
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
    wholes: Mapping[tuple[str, str, str, str, str], tables.ArmMetric]
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
    return ComparisonRows(
        runs=_runs(session, list(experiments), {*COST_OF_EVERY_ARM, *metrics}),
        claims=printed["value"],
        gains=printed["difference"],
        wholes=_wholes(session, list(experiments), {name for name in metrics if METRICS[name].of_arm}),
        checkpoints=_checkpoints(session, list(experiments)),
        verdicts=arm_verdicts(session, list(experiments)),
    )


def printed_metrics(session: Session, experiments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each experiment, the metrics of its paper's claims: values of arms first, costs last, in printed order."""
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


def _wholes(
    session: Session, experiments: Sequence[str], metrics: set[str]
) -> dict[tuple[str, str, str, str, str], tables.ArmMetric]:
    whole = tables.ArmMetric
    rows = session.scalars(select(whole).where(whole.experiment.in_(experiments), whole.metric.in_(metrics)))
    return {(row.metric, row.experiment, row.arm, row.profile, row.conditions): row for row in rows}


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
