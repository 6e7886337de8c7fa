"""Settings and counts that a paper prints, compared with the params files."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.claims.lines import ClaimLine
from stages.params.experiment import DatasetSource, Experiment, Params
from stages.run import Replicate, steps_per_epoch, training_counts
from stages.verdicts import Status, Verdict, judge_count, not_tested

_EXTREME = re.compile(r"(min|max)\((.+)\)")


class Unresolved(LookupError):
    """The params files don't contain this setting; the message says so."""


def param_values(claim: ClaimLine, params: Params) -> list[Any]:
    """The values of the claim's metric in the params files, over all experiments and arms, each once.

    `min(…)` and `max(…)` are the smallest and the largest of them.

    Raises:
        Unresolved: the params files don't contain it.
    """
    extreme = _EXTREME.fullmatch(claim.metric)
    metric = extreme[2] if extreme else claim.metric
    experiments = [params.experiments[name] for name in fnmatch.filter(params.experiments, claim.experiment or "")]
    values = [value for experiment in experiments for value in _values(metric, experiment, params)]
    known = list(dict.fromkeys(value for value in values if value is not None))
    if not known and not values:
        raise Unresolved(f"the params files don't hold {metric}")
    if extreme:
        return [(min if extreme[1] == "min" else max)(known)]
    return known or [None]


def _values(metric: str, experiment: Experiment, params: Params) -> list[Any]:
    source = params.datasets[experiment.dataset]
    if metric in _DERIVED:
        return [_DERIVED[metric](experiment, source, params)]
    part, _, path = metric.partition(".")
    if part == "model":
        table = [arm for arm in experiment.arms.values() if arm.role in ("baseline", "proposed")]
        keys = ("width", "last_width") if path == "width" else (path,)  # a pyramid is as narrow as its last layer
        return [arm.model[key] for arm in table for key in keys if key in arm.model]
    if part == "protocol":
        return [_follow(experiment.printed, path)]
    if part == "dataset":
        return [_follow(source, path)] if path in {field.name for field in dataclasses.fields(source)} else []
    return []


def _follow(held: Any, path: str) -> Any:
    """A field below `held` by its dotted path, where a number is an index into a list; None if one is not set."""
    for name in path.split("."):
        if held is None or (name.isdecimal() and int(name) >= len(held)):
            return None
        held = held[int(name)] if name.isdecimal() else getattr(held, name)
    return held


def _rows(source: DatasetSource) -> int:
    return source.train + source.test


def _held_out(experiment: Experiment, source: DatasetSource) -> float:
    """Rows of the training set held out for validation: a whole number for a fraction, an average for folds."""
    split = experiment.printed.split
    return source.train / split.folds if split.folds else round(source.train * (split.fraction or 0))


def _steps(experiment: Experiment, source: DatasetSource, params: Params) -> int:
    """Steps of a run on the first fold, as the loop takes them: the last batch of an epoch may be smaller."""
    protocol = experiment.printed
    replicate = Replicate(seed=0, fold=0 if protocol.split.kind == "folds" else None)
    return protocol.epochs * steps_per_epoch(training_counts(source.train, protocol, replicate)[0], protocol)


def _native_size(experiment: Experiment, source: DatasetSource, params: Params) -> int:
    return params.datasets[source.folder or experiment.dataset].shape[1]


Derive = Callable[[Experiment, DatasetSource, Params], Any]
_DERIVED: Mapping[str, Derive] = {
    "steps": _steps,
    # The gradient of c·w² is 2c·w, which is what weight decay adds.
    "l2_coefficient": lambda experiment, source, params: experiment.printed.optimizer.weight_decay / 2,
    "protocol.schedule.warmup_steps": lambda experiment, source, params: experiment.printed.schedule.warmup_steps or 0,
    "protocol.split.train": lambda experiment, source, params: (
        (source.train - _held_out(experiment, source)) / _rows(source)
    ),
    "protocol.split.val": lambda experiment, source, params: _held_out(experiment, source) / _rows(source),
    "protocol.split.test": lambda experiment, source, params: source.test / _rows(source),
    "dataset.size": lambda experiment, source, params: source.shape[1],
    "dataset.native_size": _native_size,
    "dataset.images": lambda experiment, source, params: _rows(source),
    "dataset.rows": lambda experiment, source, params: _rows(source),
    "dataset.inputs": lambda experiment, source, params: source.shape[0],
    "dataset.response_min": lambda experiment, source, params: source.response_range and source.response_range[0],
    "dataset.response_max": lambda experiment, source, params: source.response_range and source.response_range[1],
}


def judge_setting(claim: ClaimLine, params: Params) -> Verdict:
    """Judge a setting: `as printed` if every experiment and arm has the printed value."""
    try:
        used = param_values(claim, params)
    except Unresolved as error:
        return not_tested(f"{str(error)[0].upper()}{str(error)[1:]}.")
    return agree(claim, used)


def agree(claim: ClaimLine, used: Sequence[Any]) -> Verdict:
    """`as printed` if every value agrees to the printed rounding; otherwise the estimate is the first that doesn't."""
    departing = [value for value in used if not _is_printed(value, claim)]
    first = (departing or used)[0]
    listed = ", ".join("not set" if value is None else f"{value:g}" for value in used)
    return Verdict(
        status=Status.DEVIATES if departing else Status.AS_PRINTED,
        explanation=f"Printed {claim.value:g}; ours {listed}.",
        estimate=None if first is None or claim.value is None else first - claim.value,
    )


def _is_printed(used: Any, claim: ClaimLine) -> bool:
    if used is None or claim.value is None:
        return False
    return math.isclose(used, claim.value) or abs(used - claim.value) <= (claim.precision or 0.0) / 2


_WORST_FIRST = (Status.FAILS, Status.HOLDS_UNDER_READING, Status.HOLDS)


def judge_counted(claim: ClaimLine, params: Params) -> Verdict:
    """Judge a count or range of the data as declared; `fetch` and `preprocess` check the files against it."""
    try:
        used = param_values(claim, params)
    except Unresolved as error:
        return not_tested(f"{str(error)[0].upper()}{str(error)[1:]}.")
    assert claim.value is not None, f"{claim.id} counts nothing"
    verdicts = [judge_count(claim.value, float(value)) for value in used]
    return min(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.status))
