"""Our numbers of one arm in one metric: each replicate's value, their mean with its errors, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

from stages.results import tables
from stages.results.comparison_rows import ComparedRun, ComparisonRows
from stages.results.estimates import Estimate, Population
from stages.results.metrics import COST_COLUMNS, MetricInfo
from stages.verdicts.intervals import t_quantile, wilson

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


def _whole(results: Sequence[ComparedRun], metric: MetricInfo, facts: ComparisonRows) -> tables.ArmMetric | None:
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
    sizes = _sizes([result for result in results if result.replicate in by_replicate], metric)
    n_test = min(sizes) if sizes else None
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


def _sizes(results: Sequence[ComparedRun], metric: MetricInfo) -> set[int]:
    """The numbers of test samples behind the values."""
    if metric.split is None:
        return set()
    if metric.of_arm:
        return {result.test_images for result in results}
    found = {result.numbers[metric.name, metric.split][1] for result in results}
    return {n for n in found if n is not None}


def why_none(by_arm: Mapping[str, Sequence[ComparedRun]], arm: str, metric: MetricInfo, asked: str) -> str:
    """Why an arm has no number of ours.  `by_arm` are all results shown, `asked` is how they were filtered."""
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
