"""Compare the models of one data set: the answer in a sentence, and a table with marks for each experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.database.comparing import metrics_of
from service.database.curves import Curve
from service.pages.formats import listed, span, value_in, value_with
from service.pages.plots import Axis, Ink, Mark, axis_of, mark_of
from stages.results import ArmComparison, ArmRow, Estimate, ExperimentComparison, MetricInfo

MOST_LINES = 8  # more can't be told apart by colour


@dataclass(frozen=True, kw_only=True)
class Row:
    arm: ArmComparison
    ink: Ink
    mark: Mark | None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One experiment: its models by our rank, then those without a number of ours in the paper's order."""

    comparison: ExperimentComparison
    rows: tuple[Row, ...]
    axis: Axis | None
    choices: Mapping[str, str]


def lay_panels(
    comparisons: Sequence[ExperimentComparison], inks: Mapping[str, Ink], kind: str, metric: str | None
) -> list[Panel]:
    """Return a panel for each experiment; with a `metric`, all panels share one axis."""
    shared = [arm for item in comparisons for arm in item.arms] if metric else []
    panels = []
    for item in comparisons:
        axis = axis_of(shared or item.arms, item.metric)
        ranked = sorted(item.arms, key=lambda arm: (arm.rank_ours is None, arm.rank_ours or 0))
        rows = tuple(
            Row(arm=arm, ink=inks[arm.title], mark=mark_of(arm, item.metric, axis) if axis else None) for arm in ranked
        )
        panels.append(Panel(comparison=item, rows=rows, axis=axis, choices=metrics_of(item, kind)))
    return panels


def answer_best(comparisons: Sequence[ExperimentComparison]) -> str:
    """Name the best model by full-length runs alone, as "Not known yet: no model was trained in full. …"."""
    planned = sum(item.planned_models for item in comparisons)
    real = [item for item in comparisons if item.is_real and item.order.of_ours]
    full = [item for item in real if not item.cut]
    if not real:
        return f"Not known yet: none of {planned} models has been trained." if planned else "No model is planned."
    if not full:
        ahead = [
            f"{arm.title} ({value_in(item.metric.unit)(arm.ours.value)})"  # NiNformer (21.19 %)
            for item in real
            if len(item.order.of_ours) > 1
            for arm in item.arms
            if arm.ours and arm.arm == item.order.of_ours[0]
        ]
        each = ", each in its own experiment" if len(ahead) > 1 else ""
        leads = f" In shortened runs {listed(ahead)} {'are' if each else 'is'} ahead{each}." if ahead else ""
        return f"Not known yet: none of {planned} planned models has been trained in full.{leads}"
    missing = planned - sum(item.trained_models for item in full)
    left = f" {missing} of {planned} planned models have not been trained in full yet." if missing else ""
    return f"{' '.join(_name_best(full))}{left}"


def _name_best(full: Sequence[ExperimentComparison]) -> Iterator[str]:
    """Name the best model by each metric, as "Yat perceptron is the best of 6 models trained in full: 97.31 % (…)."."""
    by_metric: dict[str, list[tuple[ExperimentComparison, ArmComparison, Estimate]]] = {}
    for item in full:
        by_metric.setdefault(item.metric.name, []).extend((item, arm, arm.ours) for arm in item.arms if arm.ours)
    for models in filter(None, by_metric.values()):
        best = max if models[0][0].metric.better == "higher" else min
        item, arm, ours = best(models, key=lambda model: model[2].value)
        write = value_with(ours.low, ours.high, item.metric.unit)
        interval = "" if ours.low is None or ours.high is None else f"{span(ours.low, ours.high, item.metric.unit)}, "
        of = f"is the best of {len(models)} models" if len(models) > 1 else "is the only model"
        yield f"{arm.title} {of} trained in full: {write(ours.value)} ({interval}n = {ours.n})."


def first_shown(arms: Sequence[ArmRow], trained: Sequence[str]) -> list[str]:
    """Return all arms if a chart can show them, else the middle pair: a proposed arm and its baseline."""
    if len(trained) <= MOST_LINES:
        return list(trained)
    pairs = [(item.against, item.name) for item in arms if item.role == "proposed"]
    whole = [pair for pair in pairs if set(pair) <= set(trained)]
    first = whole[len(whole) // 2] if whole else trained[:2]
    return [name for name in trained if name in first]


def curve_for(metric: MetricInfo, curves: Sequence[Curve]) -> Curve | None:
    """Choose the learning curve for a metric: accuracy for fractions, else loss; test data first."""
    what, sides = "accuracy" if metric.unit in ("fraction", "seconds") else "loss", ("test", "val", "train")
    return min(curves, key=lambda it: (not it.endswith(what), sides.index(it.partition("_")[0])), default=None)
