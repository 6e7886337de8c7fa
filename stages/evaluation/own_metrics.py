"""Computes metrics of a user's own on all test rows, each on its own, so that a failing one doesn't stop the others."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

from stages.params.metrics import OwnMetric
from stages.params.stage_inputs import code_digests
from stages.runs.evidence import Measurement

_TRUE = ("target", "targets", "y_true", "labels", "true")
"""Second parameters of functions that get predictions first, as those of torch and torchmetrics do."""


def origin_of(metric: OwnMetric) -> dict[str, Any]:
    """Return the metric's definition and the digests of its `code`, for installed packages their versions."""
    return metric.definition | {"code": dict(code_digests((metric.address.partition(":")[0],), ()))}


def measure_own(
    metrics: Mapping[str, OwnMetric], rows: Mapping[str, np.ndarray], measured: list[Measurement], n: int
) -> tuple[list[Measurement], dict[str, str]]:
    """Return the metrics' numbers of the rows, and by metric why there is none.

    `rows` has the `true` ones and those that a metric `takes`.  `measured`: other numbers of the same run, whose names
    are taken.  `n`: the number of test samples.
    """
    found, faults, taken = list[Measurement](), dict[str, str](), {row.metric for row in measured}
    for name, metric in metrics.items():
        try:
            if name in taken:
                raise ValueError("evaluation has a metric of this name; choose another")
            value = _number(_call(metric, rows["true"].copy(), rows[metric.takes].copy()))
            if not metric.holds(value):
                raise ValueError(f"it is {value:g}, outside of its range {list(metric.range)}")
        except Exception as error:  # noqa: BLE001  (a user's code may raise anything)
            reason = next(iter(str(error).splitlines()), "")
            faults[name] = reason if isinstance(error, ValueError) and reason else f"{type(error).__name__}: {reason}"
            continue
        found.append(Measurement(metric=name, split="test", value=value, n=n, by=origin_of(metric)))
    return found, faults


def _call(metric: OwnMetric, true: np.ndarray, predicted: np.ndarray) -> Any:
    """Call a metric: scikit-learn's get arrays, those of torch tensors, a class of torchmetrics its `update`.

    Raises:
        ValueError: there is no such callable.
    """
    module, _, name = metric.address.partition(":")
    call: Any = getattr(import_module(module), name)
    tensors = [torch.from_numpy(each) for each in (predicted, true)]
    if not callable(call):
        raise ValueError(f"{metric.address} can't be called")
    if inspect.isclass(call):
        made: Any = call(**metric.arguments)
        made.update(*tensors)
        return made.compute()
    names = [*inspect.signature(call).parameters]
    if names[1:2] and names[1] in _TRUE:
        return call(*tensors, **metric.arguments)
    return call(true, predicted, **metric.arguments)


def _number(value: Any) -> float:
    """Return the one finite number that a metric gives.

    Raises:
        ValueError: it gives something else.
    """
    found = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    if found.size != 1 or not np.issubdtype(found.dtype, np.number) or np.iscomplexobj(found):
        given = f"an array of shape {list(found.shape)}" if found.size > 1 else repr(value)[:60]
        raise ValueError(f"it gives {given}; expected one number, such as a mean over the classes")
    if not math.isfinite(number := float(found.item())):
        raise ValueError(f"it is {number}; it may be undefined on these rows")
    return number
