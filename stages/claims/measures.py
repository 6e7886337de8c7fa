"""From results to samples: the value of each replicate of an arm in a claim's metric.

Most metrics are in a result line or in its cost; `epoch_2_test_loss` is read from its curves.  Some belong to an arm as
a whole and choose an epoch from the curves of all its folds; their sample is each fold's share of the metric
(`pseudo_values`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median

from stages.runs.curves import as_curves
from stages.runs.trial import Trial
from stages.verdicts import ARM_METRICS, ArmMetric, NoCurves, Observation, Sample, arm_metric
from stages.verdicts.looks import Looks, complete_look

COSTS = ("train_seconds", "samples_per_second", "train_tokens_per_second", "peak_memory_bytes")
_AT_EPOCH = re.compile(r"epoch_([1-9]\d*)_(train_loss|test_loss|test_accuracy)")
"""A metric that a paper prints for a given epoch, counted from 1."""
FAILED_FACTOR = 10.0
"""A training failed when it diverged or its error is this many times the median of its size; DAC gives no level."""
_FAILED_METRIC = "selected_mse"


class NotMeasured(LookupError):
    """No result has this metric; the message says why."""


def measure(metric: str, trials: Sequence[Trial], looks: Looks) -> Sample:
    """The sample of one arm's `trials`; a result without the metric is a missing replicate.

    Raises:
        NotMeasured: no trial has the metric.
    """
    if metric in ARM_METRICS:
        return _measure_arm(metric, trials, looks)
    replicates = []
    for trial in trials:
        value = None if trial.result.status == "diverged" else _read(metric, trial)
        if trial.result.status == "diverged" or value is not None:
            replicates.append(_replicate(trial, value))
    if not any(replicate.value is not None for replicate in replicates) and not _all_diverged(trials):
        raise NotMeasured(f"no result holds {metric}")
    return Sample(tuple(replicates))


def _replicate(trial: Trial, value: float | None) -> Observation:
    ran_in = frozenset({trial.result.machine_digest})
    return Observation(index=trial.result.replicate, value=value, environments=ran_in)


def _all_diverged(trials: Sequence[Trial]) -> bool:
    return bool(trials) and all(trial.result.status == "diverged" for trial in trials)


def _read(metric: str, trial: Trial) -> float | None:
    if metric in COSTS:
        value = None if trial.cost is None else getattr(trial.cost, metric)
        return None if value is None else float(value)
    found = {row.split: row.value for row in trial.result.metrics if row.metric == metric}
    for split in ("test", "val", "none", "train"):
        if split in found:
            return found[split]
    if metric == "error":
        accuracy = _read("accuracy", trial)
        return None if accuracy is None else 1 - accuracy
    if metric == "min_log_mse":
        errors = [row.test_loss for row in trial.result.curves if row.test_loss is not None]
        return math.log(min(errors)) if "log_mse" in {row.metric for row in trial.result.metrics} and errors else None
    if metric == "validation_loss" and trial.result.curves:
        return trial.result.curves[-1].val_loss
    at_epoch = _AT_EPOCH.fullmatch(metric)
    if at_epoch and len(trial.result.curves) >= int(at_epoch[1]):
        return as_curves(trial.result.curves).column(at_epoch[2])[int(at_epoch[1]) - 1]
    return None


def choose_epoch(metric: str, trials: Sequence[Trial], looks: Looks) -> ArmMetric:
    """The metric of the trials that are judged, at the epoch that they choose together.

    Raises:
        NotMeasured: fewer than two of them have finished, or their curves lack what the metric needs.
    """
    finished = [trial.result for trial in judged_of(trials, looks) if trial.result.status == "finished"]
    if len(finished) < 2:
        raise NotMeasured(f"{metric} is one number of all folds, and fewer than two have finished")
    try:
        return arm_metric(metric, [result.curves for result in finished])
    except NoCurves as error:
        raise NotMeasured(str(error)) from None


def judged_of(trials: Sequence[Trial], looks: Looks) -> list[Trial]:
    """The replicates of the last complete look, the only ones judged; all of them if no look is complete."""
    n = complete_look((trial.result.replicate for trial in trials), looks)
    return [trial for trial in trials if n is None or trial.result.replicate < n]


def _measure_arm(metric: str, trials: Sequence[Trial], looks: Looks) -> Sample:
    used = judged_of(trials, looks)
    if _all_diverged(used):
        return Sample(tuple(_replicate(trial, None) for trial in used))
    shares = iter(choose_epoch(metric, trials, looks).folds)
    values = [next(shares) if trial.result.status == "finished" else None for trial in used]
    return Sample(tuple(_replicate(trial, value) for trial, value in zip(used, values, strict=True)))


def average(samples: Sequence[Sample]) -> Sample:
    """One sample of several arms: each replicate's mean over them if all have it; diverged if it diverged in one."""
    shared = set.intersection(*(set(sample.indices) for sample in samples))
    replicates = []
    for index in sorted(shared):
        mine = [replicate for sample in samples for replicate in sample.replicates if replicate.index == index]
        values = [replicate.value for replicate in mine if replicate.value is not None]
        replicates.append(
            Observation(
                index=index,
                value=sum(values) / len(values) if len(values) == len(mine) else None,
                environments=frozenset().union(*(replicate.environments for replicate in mine)),
            )
        )
    return Sample(tuple(replicates))


def count_failed(trials: Sequence[Trial], peers: Sequence[Trial]) -> tuple[int, int]:
    """(failed, all) of `trials`; the reference is the median test error of them and their `peers` of similar size."""
    errors = [value for trial in (*trials, *peers) if (value := _read(_FAILED_METRIC, trial)) is not None]
    if not errors:
        raise NotMeasured(f"no result holds {_FAILED_METRIC}, so nothing tells a failed training")
    limit = FAILED_FACTOR * median(errors)
    failed = 0
    for trial in trials:
        value = _read(_FAILED_METRIC, trial)
        failed += trial.result.status == "diverged" or value is None or value > limit
    return failed, len(trials)
