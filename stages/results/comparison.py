"""Our numbers compared to the paper's, one experiment at a time.

Only results under equal conditions (same protocol, same data) share a table, so that a pair differs only in its arms.
The best conditions are shown: real data before placeholder data, then several arms before one in a shortened run, then
the stronger profile, then more arms and replicates.  The number of placeholder data says nothing about the claim, so it
has no mean, difference, gain or rank.  The number of a shortened run is ours, but it has no difference and no gain
(`why_no_difference`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from sqlalchemy import JSON, ColumnElement, Select, func, select, type_coerce
from sqlalchemy.orm import Session, aliased, selectinload

from stages.results import tables
from stages.results.claims import TAIL, arm_verdicts, gain_between
from stages.results.database import (
    UnknownDataset,
    UnknownExperiment,
    UnknownMetric,
    UnknownPaper,
    UnknownProfile,
    known_metrics,
)
from stages.results.estimates import (
    COST_COLUMNS,
    FIRST_METRICS,
    PLACEHOLDER,
    ArmComparison,
    ArmVerdict,
    CostSummary,
    Difference,
    Estimate,
    ExperimentComparison,
    Gain,
    Order,
    Population,
    Printed,
    Ratio,
    cut_of_all,
    cut_of_each,
    describe_fidelity,
    describe_stopwatch,
    why_no_difference,
)
from stages.results.tables import ClaimExperiment
from stages.runs.evidence import Provenance
from stages.verdicts.intervals import t_quantile, wilson
from stages.verdicts.metrics import METRICS, MetricInfo


class Run(NamedTuple):
    """Columns of a result and of its cost, published `revision`, parameters and operations; None without a value."""

    id: int
    run_key: str
    experiment: str
    arm: str
    replicate: int
    source: str
    machine_digest: str
    status: str
    profile: str
    provenance: Provenance
    cut: str
    conditions: str
    group_position: int
    test_images: int
    excluded_test_images: int
    train_seconds: float | None
    train_tokens_per_second: float | None
    peak_memory_bytes: int | None
    latency_seconds_per_sample: float | None
    latency_batch_size: int | None
    latency_warmup: int | None
    latency_repeats: int | None
    latency_device: str | None
    latency_threads: int | None
    revision: str | None
    parameters: float | None
    flops_per_image: float | None


_TIMING = ("latency_batch_size", "latency_warmup", "latency_repeats", "latency_device", "latency_threads")
"""Columns of a cost that describe how it was timed."""
_MADE = attrgetter("machine_digest", "revision")
_TIMED = attrgetter("machine_digest", "revision", *_TIMING)
_COUNTED = attrgetter(
    "parameters", "flops_per_image", "train_seconds", "peak_memory_bytes", "latency_seconds_per_sample"
)


def _select_runs(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Select the columns of `Run`."""
    parameters, operations = aliased(tables.Metric), aliased(tables.Metric)
    *names, _, _, _ = Run._fields
    columns = [getattr(tables.Cost if hasattr(tables.Cost, name) else tables.Result, name) for name in names]
    revision = type_coerce(tables.Result.origin, JSON)["revision"].as_string()
    query = select(*columns, revision, parameters.value, operations.value).outerjoin(tables.Result.cost)
    for name, metric in (("parameters", parameters), ("flops_per_image", operations)):
        query = query.outerjoin(metric, (metric.result_id == tables.Result.id) & (metric.metric == name))
    return query.where(*conditions).order_by(tables.Result.group_position, tables.Result.id)


@dataclass(frozen=True)
class ComparisonRows:
    """The rows behind comparisons: selected results by experiment, the strongest group first.

    `numbers` are value and samples of the metrics by (metric, split) and result.  `changed` is the code that changed
    since a result was measured.
    `claims` are printed values by (metric, experiment, arm), `gains` printed differences between two arms.  `wholes`
    are metrics of arms as wholes by (metric, experiment, arm, profile, conditions).
    """

    runs: Mapping[str, list[Run]]
    numbers: Mapping[tuple[str, str | None], Mapping[int, tuple[float, int | None]]]
    changed: Mapping[int, list[str]]
    claims: Mapping[tuple[str, str, str], tables.Claim]
    gains: Mapping[tuple[str, str, str], tables.Claim]
    wholes: Mapping[tuple[str, str, str, str, str], tables.ArmMetricRow]
    checkpoints: Mapping[int, list[str]]
    verdicts: Mapping[tuple[str, str], tuple[ArmVerdict, ...]]


def load_facts(
    session: Session, experiments: Mapping[str, Sequence[MetricInfo]], arms: Iterable[str] | None = None
) -> ComparisonRows:
    """Read the rows of these experiments, each compared by one of its metrics; `arms`: runs of these alone."""
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
        tables.ArmMetricRow.metric.in_({info.name for infos in experiments.values() for info in infos if info.of_arm}),
    )
    selected = tables.Result.experiment.in_(experiments) & tables.Result.is_selected
    if arms is not None:
        selected &= tables.Result.arm.in_(arms)
    row, result, connection = tables.Metric, tables.Result, session.connection()  # faster than the ORM for plain rows
    runs = defaultdict[str, list[Run]](list)
    for run in map(Run._make, connection.execute(_select_runs(selected)).all()):
        runs[run.experiment].append(run)
    numbers = defaultdict[tuple[str, str | None], dict[int, tuple[float, int | None]]](dict)
    measured = select(row.result_id, row.metric, row.split, row.value, row.n).join(result).where(selected)
    for number, name, split, value, n in connection.execute(measured.where(row.metric.in_(metrics))).all():
        numbers[name, split][number] = value, n
    changed = select(result.id, result.changed_code).where(selected, func.json_array_length(result.changed_code) > 0)
    checkpoints = defaultdict[int, list[str]](list)
    held = select(tables.Checkpoint.id, tables.Checkpoint.result_id).join(tables.Result).where(selected)
    for checkpoint, number in session.execute(held.order_by(tables.Checkpoint.position)):
        checkpoints[number].append(checkpoint)
    return ComparisonRows(
        runs=runs,
        numbers=numbers,
        changed=dict(session.execute(changed).all()),
        claims=printed["value"],
        gains=printed["difference"],
        wholes={
            (row.metric, row.experiment, row.arm, row.profile, row.conditions): row
            for row in session.scalars(arm_metrics)
        },
        checkpoints=checkpoints,
        verdicts=arm_verdicts(session, list(experiments)),
    )


def printed_metrics(
    session: Session, experiments: Sequence[str], known: Mapping[str, MetricInfo]
) -> dict[str, tuple[str, ...]]:
    """List for each experiment the metrics of its paper's claims: values first, costs last, in printed order."""
    query = (
        select(ClaimExperiment.experiment, tables.Claim.metric, tables.Claim.kind)
        .join(tables.Claim, tables.Claim.id == ClaimExperiment.claim)
        .where(ClaimExperiment.experiment.in_(experiments), tables.Claim.metric.in_(known))
        .order_by(tables.Claim.position)
    )
    rows = sorted(session.execute(query), key=lambda row: (known[row.metric].split is None, row.kind != "value"))
    found: dict[str, dict[str, None]] = {name: {} for name in experiments}
    for row in rows:
        found[row.experiment][row.metric] = None
    return {name: tuple(metrics) for name, metrics in found.items()}


_TAKES = {
    "min_error": "test errors of every epoch",
    "window_error": "validation and test errors of five epochs or more",
}


_t_quantile = cache(t_quantile)


def t_interval(mean: float, std: float, n: int) -> tuple[float, float]:
    """Student's 95 % interval of the mean of `n` values, at least two."""
    half = float(_t_quantile(n - 1, TAIL)) * std / math.sqrt(n)
    return mean - half, mean + half


def values_of(runs: Sequence[Run], metric: MetricInfo, facts: ComparisonRows) -> dict[int, float]:
    """Values by replicate; for a metric of the arm as a whole, each fold's share of it."""
    if metric.of_arm:
        whole = _whole(runs, metric, facts)
        return dict(whole.shares) if whole else {}
    if metric.split is None:
        costs = {run.replicate: getattr(run, COST_COLUMNS[metric.name]) for run in runs}
        return {replicate: float(value) for replicate, value in costs.items() if value is not None}
    numbers = facts.numbers.get((metric.name, metric.split), {})
    return {run.replicate: numbers[run.id][0] for run in runs if run.id in numbers}


def _whole(runs: Sequence[Run], metric: MetricInfo, facts: ComparisonRows) -> tables.ArmMetricRow | None:
    if not runs:
        return None
    first = runs[0]
    return facts.wholes.get((metric.name, first.experiment, first.arm, first.profile, first.conditions))


def estimate(results: Sequence[Run], metric: MetricInfo, facts: ComparisonRows) -> Estimate | None:
    """Estimate the metric of one arm from its `results` under equal conditions; None if none of them has it."""
    by_replicate = values_of(results, metric, facts)
    values, whole = list(by_replicate.values()), _whole(results, metric, facts) if metric.of_arm else None
    if not values:
        return None
    measured = [result for result in results if result.replicate in by_replicate]
    n_test = std = low = high = population = None
    if metric.split is not None:  # numbers of test samples behind the values
        key = metric.name, metric.split
        sizes = (result.test_images if metric.of_arm else facts.numbers[key][result.id][1] for result in measured)
        n_test = min((n for n in sizes if n is not None), default=None)
    if len(values) >= 2:
        std = stdev(values)
        low, high = t_interval(fmean(values), std, len(values))
    if n_test is not None and metric.name == "accuracy":
        bounds = wilson(fmean(values), n_test, TAIL)
        population = Population(low=bounds[0], high=bounds[1], n_test=n_test)
    return Estimate(
        value=whole.value if whole else fmean(values),
        std=None if whole else std,
        stderr=whole.stderr if whole else None if std is None else std / math.sqrt(len(values)),
        low=low,
        high=high,
        interval_missing=None if len(values) >= 2 else "one replicate: an interval needs two",
        n=len(values),
        n_diverged=sum(result.status == "diverged" for result in results),
        n_test=n_test,
        epoch=whole.epoch if whole else None,
        population=population,
    )


def why_none(by_arm: Mapping[str, Sequence[Run]], arm: str, metric: MetricInfo, asked: str) -> str:
    """Explain why an arm has no number of ours.  `by_arm` are all results shown, `asked` is the filter."""
    mine = by_arm.get(arm, ())
    if not by_arm:
        return f"not run yet{asked}"
    if any(result.provenance == "embedded" for results in by_arm.values() for result in results):
        return PLACEHOLDER
    if not mine:
        return "not trained under the conditions that are shown"
    if all(result.status == "diverged" for result in mine):
        return f"diverged: {len(mine)} of {len(mine)} trainings"
    title = metric.title[0].lower() + metric.title[1:]
    what = f"{title}, which takes {_TAKES[metric.name]}" if metric.of_arm else title
    return f"its runs have no {what}"


def fidelity_of(result: tables.Result | None) -> str:
    """Describe how faithful one result is, without the number of results."""
    if result is None:
        return describe_fidelity(None, None, None)
    return describe_fidelity(
        result.provenance, result.profile, cut_of_each(result.cut), result.test_images, result.excluded_test_images
    )


@dataclass(frozen=True, kw_only=True)
class Question:
    """The experiments and results to compare; None means no restriction.

    `profile` and `provenance` restrict the conditions.  Without `metric`, experiments are compared in the one that the
    paper prints for their arms.  If it prints none, it is the first of `FIRST_METRICS` that the results hold.
    """

    dataset: str | None = None
    paper: str | None = None
    experiment: str | None = None
    profile: str | None = None
    metric: str | None = None
    provenance: Provenance | None = None

    def fits(self, result: Run) -> bool:
        return self.profile in (None, result.profile) and self.provenance in (None, result.provenance)

    @property
    def conditions(self) -> str:
        """The conditions in words, as " under the profile quick"; empty if there are none."""
        profile = f" under the profile {self.profile}" if self.profile else ""
        return profile + (f" on data of provenance {self.provenance}" if self.provenance else "")


EVERYTHING = Question()


def compare(
    session: Session, asked: Question = EVERYTHING, known: MutableMapping[Any, ExperimentComparison] | None = None
) -> list[ExperimentComparison]:
    """Compare every experiment that fits, in the order of params.yaml, each under its best conditions.

    `known` has comparisons that were made from the same content; new ones are added.

    Raises:
        UnknownName: the data set, paper, experiment, profile or metric is unknown.
    """
    found = {} if known is None else known
    infos = known_metrics(session)
    if asked.metric is not None and asked.metric not in infos:
        raise UnknownMetric(asked.metric, infos)
    row = tables.ExperimentRow
    for error, of, order, name in (
        (UnknownDataset, tables.Dataset.name, tables.Dataset.position, asked.dataset),
        (UnknownPaper, tables.Paper.name, tables.Paper.position, asked.paper),
        (UnknownExperiment, row.name, row.position, asked.experiment),
        (UnknownProfile, tables.ProfileRow.name, tables.ProfileRow.rank, asked.profile),
    ):
        if name is not None and name not in (names := session.scalars(select(of).order_by(order)).all()):
            raise error(name, names)
    query = select(row.name, tables.Dataset.kind).join(tables.Dataset, tables.Dataset.name == row.dataset)
    for column, name in ((row.dataset, asked.dataset), (row.paper, asked.paper), (row.name, asked.experiment)):
        query = query if name is None else query.where(column == name)
    kinds = dict(session.execute(query.order_by(row.position)).all())
    printed = printed_metrics(session, list(kinds), infos)
    keys = {
        name: (name, asked.profile, asked.provenance, (asked.metric,) if asked.metric else first)
        for name, kind in kinds.items()
        for first in [printed[name][:1] or FIRST_METRICS[kind]]
    }
    chosen = {key[0]: [infos[metric] for metric in key[-1]] for key in keys.values() if key not in found}
    if chosen:
        facts = load_facts(session, chosen)
        missing = select(row).options(selectinload(row.arms)).where(row.name.in_(chosen))
        for item in session.scalars(missing):
            compared = _compare_experiment(item, facts, chosen[item.name], printed[item.name], asked)
            found[keys[item.name]] = compared
    return [found[key] for key in keys.values()]


_PAIR = ("baseline", "proposed")


def _compare_experiment(
    experiment: tables.ExperimentRow,
    facts: ComparisonRows,
    metrics: Sequence[MetricInfo],
    printed: tuple[str, ...],
    asked: Question,
) -> ExperimentComparison:
    by_position = defaultdict(list)
    for result in facts.runs.get(experiment.name, []):
        by_position[result.group_position].append(result)
    groups = list(by_position.values())  # the strongest first
    profiles = tuple(dict.fromkeys(group[0].profile for group in groups))
    fitting = [group for group in groups if asked.fits(group[0])]
    # A shortened run alone compares with nothing, so weaker conditions are shown if several models ran under them.
    real = [group for group in fitting if group[0].provenance != "embedded"]
    several = (group for group in real if not group[0].cut or len({result.arm for result in group}) > 1)
    group = next(several, next(iter(fitting), []))
    first = group[0] if group else None
    metric = next(
        (item for item in metrics if any(run.id in facts.numbers.get((item.name, item.split), ()) for run in group)),
        metrics[0],
    )
    shown = {result.arm for result in group} | {arm for _, name, arm in facts.claims if name == experiment.name}
    for (name, where, arm), claim in facts.gains.items():
        shown |= {arm, str(claim.baseline_arm)} if (name, where) == (metric.name, experiment.name) else set()
    by_arm = defaultdict(list)
    for result in group:
        by_arm[result.arm].append(result)
    table = ArmTable(experiment, by_arm, facts, metric, asked.conditions)
    arms = [
        table.compare(arm)
        for arm in experiment.arms
        # An arm without training and without a printed number isn't missing from a table.
        if arm.name in shown or (not group and arm.role in _PAIR)
    ]
    reasons = dict.fromkeys(arm.reason for arm in arms if arm.reason)
    arms, order = _rank(arms, metric)
    cut, label = None, describe_fidelity(None, None, None)
    if first is not None:
        cut = cut_of_all(first.cut, max(map(len, by_arm.values())), experiment.replicates)
        label = describe_fidelity(first.provenance, first.profile, cut, first.test_images, first.excluded_test_images)
    compared = [arm.name for arm in experiment.arms if arm.role in _PAIR]
    trained = sum(name in by_arm for name in compared)
    if first is not None and first.provenance != "embedded" and trained < len(compared):
        label += f"; {trained} of its {len(compared)} models were trained"
    return ExperimentComparison(
        experiment=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        dataset=experiment.dataset,
        metric=metric,
        printed_metrics=printed,
        profile=first.profile if first else None,
        cut=cut,
        provenance=first.provenance if first else None,
        conditions=first.conditions if first else None,
        label=label,
        trained_models=trained,
        planned_models=len(compared),
        reason=None if any(arm.ours for arm in arms) else "; ".join(reasons) or None,
        profiles=profiles,
        arms=tuple(arms),
        order=order,
    )


@dataclass(frozen=True)
class ArmTable:
    """Results of one experiment under equal conditions, by arm, to be compared with the paper's in one metric."""

    experiment: tables.ExperimentRow
    results: Mapping[str, Sequence[Run]]
    facts: ComparisonRows
    metric: MetricInfo
    asked: str

    def real(self, arm: str | None) -> Sequence[Run]:
        """Return an arm's results on real data; those under equal conditions have one provenance."""
        runs = self.results.get(arm or "", ())
        return () if runs and runs[0].provenance == "embedded" else runs

    def compare(self, arm: tables.ArmRow) -> ArmComparison:
        facts, metric, mine = self.facts, self.metric, self.results.get(arm.name, ())
        is_cost = metric.split is None
        no_difference = why_no_difference(mine[0].provenance, mine[0].cut) if mine else None
        ours = estimate(self.real(arm.name), metric, facts)
        printed = _printed(facts.claims.get((metric.name, self.experiment.name, arm.name)))
        difference = None
        if ours and printed and printed.unit == metric.unit and not (is_cost or no_difference):
            low, high = (None if end is None else end - printed.value for end in (ours.low, ours.high))
            difference = Difference(value=ours.value - printed.value, low=low, high=high)
        return ArmComparison(
            arm=arm.name,
            title=arm.title,
            role=arm.role,
            ours=ours,
            reason=why_none(self.results, arm.name, metric, self.asked) if ours is None else None,
            printed=printed,
            difference=difference,
            no_difference=no_difference,
            gain=self._gain(arm, is_comparable=no_difference is None),
            ratio=self._ratio(arm, metric) if is_cost else None,
            rank_ours=None,
            rank_printed=None,
            cost=_cost(mine, self._ratio(arm, METRICS["inference_time"])),
            checkpoints=tuple(name for result in mine for name in facts.checkpoints.get(result.id, [])),
            run_keys=tuple(result.run_key for result in mine),
            sources=tuple(sorted({result.source for result in mine})),
            changed_code=tuple(sorted({name for result in mine for name in facts.changed.get(result.id, ())})),
            verdicts=facts.verdicts.get((self.experiment.name, arm.name), ()),
        )

    def _gain(self, arm: tables.ArmRow, *, is_comparable: bool) -> Gain | None:
        """Return the printed gain of the arm, and ours if it `is_comparable`; None if no gain is printed."""
        claim = self.facts.gains.get((self.metric.name, self.experiment.name, arm.name))
        printed = _printed(claim)
        if claim is None or claim.baseline_arm is None or printed is None:
            return None
        sides = (self.real(name) for name in (arm.name, claim.baseline_arm))
        ours, theirs = (values_of(side, self.metric, self.facts) for side in sides)
        better: Literal["higher", "lower"] = "higher" if self.metric.better == "higher" else "lower"
        found = gain_between(ours, theirs, better, is_folded=self.experiment.protocol["split"]["kind"] == "folds")
        return Gain(against=claim.baseline_arm, printed=printed, ours=found if is_comparable else None)

    def _ratio(self, arm: tables.ArmRow, metric: MetricInfo) -> Ratio | None:
        """Return the arm's cost over the baseline's: ours if both were measured in the same way, and the paper's."""
        if arm.against is None:
            return None
        mine, theirs = self.real(arm.name), self.real(arm.against)
        if metric.name == "inference_time":
            mine, theirs = _timed(mine), _timed(theirs)
        # The machine, revision and timing method of both costs must be equal: code that a run key leaves out because it
        # changes no result can still change times.
        stopwatch = _TIMED if metric.name == "inference_time" else _MADE
        same = len({*map(stopwatch, mine), *map(stopwatch, theirs)}) == 1
        values, reference = (list(values_of(side, metric, self.facts).values()) for side in (mine, theirs))
        claims = [self.facts.claims.get((metric.name, self.experiment.name, name)) for name in (arm.name, arm.against)]
        printed = [claim.value for claim in claims if claim is not None and claim.value]
        return Ratio(
            baseline=arm.against,
            of_ours=fmean(values) / fmean(reference) if same and values and reference and fmean(reference) else None,
            of_printed=printed[0] / printed[1] if len(printed) == 2 else None,
        )


def _printed(claim: tables.Claim | None) -> Printed | None:
    if claim is None or claim.value is None:
        return None
    same = ("value", "unit", "place", "stderr", "n", "precision", "note")
    return Printed(claim=claim.id, **{name: getattr(claim, name) for name in same})


def _timed(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with an inference time, because only one replicate of an arm is timed."""
    return [run for run in runs if run.latency_seconds_per_sample is not None]


def _cost(mine: Sequence[Run], latency: Ratio | None) -> CostSummary:
    columns = zip(*map(_COUNTED, mine), strict=True) if mine else [()] * 5
    parameters, flops, train, memory, seconds = ([value for value in column if value is not None] for column in columns)
    timed = next(iter(_timed(mine)), None)
    method = {name: getattr(timed, name) if timed else None for name in _TIMING}
    return CostSummary(
        train_seconds=fmean(train) if train else None,
        parameters=int(parameters[0]) if parameters else None,
        flops_per_image=flops[0] if flops else None,
        peak_memory_bytes=int(max(memory)) if memory else None,
        latency_seconds_per_sample=fmean(seconds) if seconds else None,
        **method,
        latency_method=describe_stopwatch(*method.values()) if timed else None,
        latency_ratio=latency.of_ours if latency else None,
        printed_latency_ratio=latency.of_printed if latency else None,
        latency_baseline=latency.baseline if latency else None,
    )


def _rank(arms: Sequence[ArmComparison], metric: MetricInfo) -> tuple[list[ArmComparison], Order]:
    """Rank the arms of the paper's table that both sides have, from 1 (best); equal values share the better rank.

    If the paper prints no number, our arms are ranked.
    """

    def position(side: Mapping[str, float], name: str) -> int | None:
        return 1 + sum(value < side[name] for value in side.values()) if name in side else None

    sign = -1 if metric.better == "higher" else 1
    table = [arm for arm in arms if arm.role in _PAIR or arm.printed is not None]
    ours = {arm.arm: sign * arm.ours.value for arm in table if arm.ours is not None}
    printed = {arm.arm: sign * arm.printed.value for arm in arms if arm.printed is not None}
    order_ours, order_printed = (tuple(sorted(side, key=lambda name: side[name])) for side in (ours, printed))
    is_complete = len(ours) == len(printed) == len(table) > 1
    sides = [
        {name: side[name] for name in side if name in ours and (name in printed or not printed)}
        for side in (ours, printed)
    ]
    ranked = [
        replace(arm, rank_ours=position(sides[0], arm.arm), rank_printed=position(sides[1], arm.arm)) for arm in arms
    ]
    # a cost differs on every machine: the paper's order of times says nothing about ours
    agrees = (order_ours == order_printed) if is_complete and metric.split is not None else None
    return ranked, Order(of_ours=order_ours, of_printed=order_printed, agrees=agrees)
