"""Metrics of arms as wholes, as rows: computed for each comparison, they would need every epoch of every run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from stages.results import ArmMetric, Base
from stages.runs.curves import as_curves
from stages.runs.evidence import ResultLine
from stages.runs.trial import Trial
from stages.verdicts import ARM_METRICS, NoCurves, arm_metric

_NEEDED = "test_accuracy"
"""All of `ARM_METRICS` are taken from it: curves without it needn't be gone through."""


def arm_metric_rows(selected: Iterable[Trial]) -> list[Base]:
    """One row for each metric that the curves of an arm's finished results under equal conditions give."""
    groups: dict[tuple[str, str, str, str], list[ResultLine]] = defaultdict(list)
    for item in selected:
        line = item.result
        if line.status == "finished":
            groups[line.experiment, line.arm, line.profile, item.conditions].append(line)
    rows: list[Base] = []
    for (experiment, arm, profile, conditions), lines in groups.items():
        if not all(any(value is not None for value in as_curves(line.curves).column(_NEEDED)) for line in lines):
            continue
        for name in ARM_METRICS:
            try:
                metric = arm_metric(name, [line.curves for line in lines])
            except NoCurves:
                continue
            shares = [[line.replicate, share] for line, share in zip(lines, metric.folds, strict=True)]
            rows.append(
                ArmMetric(
                    experiment=experiment,
                    arm=arm,
                    profile=profile,
                    conditions=conditions,
                    metric=name,
                    value=metric.value,
                    stderr=metric.stderr,
                    epoch=metric.epoch,
                    shares=shares,
                )
            )
    return rows
