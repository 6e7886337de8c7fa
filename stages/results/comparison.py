"""Our numbers compared to the paper's, one experiment at a time.

Only results under equal conditions (same protocol, same data) share a table, so that a pair differs only in its arms.
The best conditions are shown: real data before stand-ins, then the stronger profile, then more arms and replicates.
Placeholder data's number says nothing about the claim and isn't used as ours: no mean, no difference, no gain, no rank.
A shortened run's number is ours, but has no difference and no gain (`fidelity.why_no_difference`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from stages.results import tables
from stages.results.claims import gain_between
from stages.results.comparison_rows import (
    ComparedRun,
    ComparisonRows,
    estimate,
    load_facts,
    printed_metrics,
    values_of,
    why_none,
)
from stages.results.database import UnknownDataset, UnknownMetric, UnknownPaper, UnknownProfile
from stages.results.estimates import (
    FIRST_METRICS,
    ArmComparison,
    CostSummary,
    Difference,
    ExperimentComparison,
    Gain,
    Measured,
    Order,
    Printed,
    Ratio,
    cut_of_all,
    cut_of_each,
    describe_fidelity,
    describe_stopwatch,
    why_no_difference,
)
from stages.runs.evidence import Provenance
from stages.verdicts.metrics import METRICS, MetricInfo


def fidelity_of(result: tables.Result | None) -> str:
    """`describe_fidelity` of one result, or of none: it says nothing of how many there are."""
    if result is None:
        return describe_fidelity(None, None, None)
    return describe_fidelity(
        result.provenance, result.profile, cut_of_each(result.cut), result.test_images, result.excluded_test_images
    )


def compare(
    session: Session,
    *,
    dataset: str | None = None,
    paper: str | None = None,
    profile: str | None = None,
    metric: str | None = None,
    provenance: Provenance | None = None,
) -> list[ExperimentComparison]:
    """Every experiment that fits, in the order of params.yaml, each under its best conditions.

    `profile` and `provenance` cut these to theirs.  `metric` None: the one that the paper prints of the experiment's
    arms; where it prints none, the first of those that its kind of data is compared by and its results hold.
    """
    if metric is not None and metric not in METRICS:
        raise UnknownMetric(metric, METRICS)
    _require(session, UnknownDataset, tables.Dataset, dataset)
    _require(session, UnknownPaper, tables.Paper, paper)
    _require(session, UnknownProfile, tables.ProfileRow, profile)
    query = (
        select(tables.ExperimentRow)
        .options(selectinload(tables.ExperimentRow.arms))
        .order_by(tables.ExperimentRow.position)
    )
    if dataset is not None:
        query = query.where(tables.ExperimentRow.dataset == dataset)
    if paper is not None:
        query = query.where(tables.ExperimentRow.paper == paper)
    experiments = session.scalars(query).all()
    kinds = {row.name: row.kind for row in session.execute(select(tables.Dataset.name, tables.Dataset.kind))}
    printed = printed_metrics(session, [item.name for item in experiments])
    chosen = {}
    for item in experiments:
        first = (metric,) if metric else printed[item.name][:1] or FIRST_METRICS[kinds[item.dataset]]
        chosen[item.name] = [METRICS[name] for name in first]
    facts = load_facts(session, chosen)
    asked = Asked(profile, provenance)
    return [_compare_experiment(item, facts, chosen[item.name], printed[item.name], asked) for item in experiments]


def _require(
    session: Session, error: type[UnknownDataset | UnknownPaper | UnknownProfile], table: type, name: str | None
) -> None:
    if name is None:
        return
    order = table.rank if table is tables.ProfileRow else table.position  # type: ignore[attr-defined]
    known = session.scalars(select(table.name).order_by(order)).all()  # type: ignore[attr-defined]
    if name not in known:
        raise error(name, known)


_PAIR = ("baseline", "proposed")


@dataclass(frozen=True)
class Asked:
    """Filters of the results; None filters nothing."""

    profile: str | None
    provenance: Provenance | None

    def fits(self, result: ComparedRun) -> bool:
        return self.profile in (None, result.profile) and self.provenance in (None, result.provenance)

    def __str__(self) -> str:
        profile = f" under the profile {self.profile}" if self.profile else ""
        return profile + (f" on data of provenance {self.provenance}" if self.provenance else "")


def _compare_experiment(
    experiment: tables.ExperimentRow,
    facts: ComparisonRows,
    metrics: Sequence[MetricInfo],
    printed: tuple[str, ...],
    asked: Asked,
) -> ExperimentComparison:
    by_position = defaultdict(list)
    for result in facts.runs.get(experiment.name, []):
        by_position[result.group_position].append(result)
    groups = [by_position[position] for position in sorted(by_position)]  # the strongest first
    profiles = tuple(dict.fromkeys(group[0].profile for group in groups))
    group = next((group for group in groups if asked.fits(group[0])), [])
    first = group[0] if group else None
    metric = next(
        (item for item in metrics if any((item.name, item.split) in result.numbers for result in group)), metrics[0]
    )
    shown = {result.arm for result in group} | {arm for _, name, arm in facts.claims if name == experiment.name}
    for (name, where, arm), claim in facts.gains.items():
        shown |= {arm, str(claim.baseline_arm)} if (name, where) == (metric.name, experiment.name) else set()
    by_arm = defaultdict(list)
    for result in group:
        by_arm[result.arm].append(result)
    table = ArmTable(experiment, by_arm, facts, metric, str(asked))
    arms = [
        table.compare(arm)
        for arm in experiment.arms
        # What wasn't trained and has no printed number is no gap in a table.
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
    results: Mapping[str, Sequence[ComparedRun]]
    facts: ComparisonRows
    metric: MetricInfo
    asked: str

    def real(self, arm: str | None) -> list[ComparedRun]:
        """Return an arm's results on real data: a stand-in's number doesn't count as ours."""
        return [result for result in self.results.get(arm or "", ()) if result.provenance != "embedded"]

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
            gain=self._gain(arm, is_told=no_difference is None),
            ratio=self._ratio(arm, metric) if is_cost else None,
            rank_ours=None,
            rank_printed=None,
            cost=_cost(mine, self._ratio(arm, METRICS["inference_time"]), facts),
            checkpoints=tuple(name for result in mine for name in facts.checkpoints.get(result.id, [])),
            run_keys=tuple(result.run_key for result in mine),
            sources=tuple(sorted({result.source for result in mine})),
            changed_code=tuple(sorted({name for result in mine for name in result.changed_code})),
            verdicts=facts.verdicts.get((self.experiment.name, arm.name), ()),
        )

    def _gain(self, arm: tables.ArmRow, *, is_told: bool) -> Gain | None:
        """Return the printed gain of the arm over another one, and ours if it `is_told`; None if none is printed."""
        claim = self.facts.gains.get((self.metric.name, self.experiment.name, arm.name))
        printed = _printed(claim)
        if claim is None or claim.baseline_arm is None or printed is None:
            return None
        sides = (self.real(name) for name in (arm.name, claim.baseline_arm))
        ours, theirs = (values_of(side, self.metric, self.facts) for side in sides)
        better: Literal["higher", "lower"] = "higher" if self.metric.better == "higher" else "lower"
        found = gain_between(ours, theirs, better, is_folded=self.experiment.protocol["split"]["kind"] == "folds")
        measured = Measured(value=found.gain, low=found.low, high=found.high, n=found.n) if found and is_told else None
        return Gain(against=claim.baseline_arm, printed=printed, ours=measured)

    def _ratio(self, arm: tables.ArmRow, metric: MetricInfo) -> Ratio | None:
        """Return the arm's cost over the baseline's: ours if both were measured in the same way, and the paper's."""
        if arm.against is None:
            return None
        mine, theirs = self.real(arm.name), self.real(arm.against)
        if metric.name == "inference_time":
            mine, theirs = _timed(mine), _timed(theirs)
        same = len({_stopwatch(result, metric) for result in (*mine, *theirs)}) == 1
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


def _timed(results: Sequence[ComparedRun]) -> list[ComparedRun]:
    """The results with an inference time: only one replicate of an arm is timed."""
    return [result for result in results if result.cost and result.cost.latency_seconds_per_sample is not None]


def _stopwatch(result: ComparedRun, metric: MetricInfo) -> tuple[object, ...]:
    """Conditions under which two costs may be divided: equal machine, published revision and timing method.

    Code that a run key leaves out because it changes no result can still change times.
    """
    made = result.machine_digest, (result.origin or {}).get("revision")
    if metric.name != "inference_time" or result.cost is None:
        return made
    cost = result.cost
    return (
        *made,
        *(cost.latency_device, cost.latency_threads, cost.latency_batch_size),
        *(cost.latency_warmup, cost.latency_repeats),
    )


def _cost(mine: Sequence[ComparedRun], latency: Ratio | None, facts: ComparisonRows) -> CostSummary:
    counted = ("parameters", "flops_per_image", "train_seconds", "peak_memory_bytes", "inference_time")
    parameters, flops, train, memory, seconds = (
        list(values_of(mine, METRICS[name], facts).values()) for name in counted
    )
    timed = next((result.cost for result in _timed(mine)), None)
    names = ("batch_size", "warmup", "repeats", "device", "threads")
    method = {f"latency_{name}": getattr(timed, f"latency_{name}") if timed else None for name in names}
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
    """Ranks from 1 (best) among the arms of the paper's table that both sides have; equal values share the better rank.

    Where the paper has none, ranks among our arms.
    """
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
        replace(arm, rank_ours=_position(sides[0], arm.arm), rank_printed=_position(sides[1], arm.arm)) for arm in arms
    ]
    # a cost differs on every machine: the paper's order of times says nothing about ours
    agrees = (order_ours == order_printed) if is_complete and metric.split is not None else None
    return ranked, Order(of_ours=order_ours, of_printed=order_printed, agrees=agrees)


def _position(side: Mapping[str, float], name: str) -> int | None:
    return 1 + sum(value < side[name] for value in side.values()) if name in side else None
