"""Metrics of a user's own: functions and classes of other packages, as an experiment's file names them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter

from stages.params.callables import first_parameters
from stages.params.schema import ParamsError, address_of, check_keywords, validate
from stages.run import STRICT, canonical_json

Takes = Literal["predictions", "probabilities", "positive"]


@dataclass(frozen=True, kw_only=True)
class OwnMetric:
    """A metric that `evaluate` computes by calling `address`, a `package.module:name`, with its `arguments`.

    `takes`: what it gets besides the true classes, labels, pixels or numbers: `predictions` of them, `probabilities` of
    all classes or labels, or of two classes those of the second, the `positive` one.  `range`: smallest and largest
    possible value, None if there is no limit.
    """

    __pydantic_config__: ClassVar = STRICT
    address: str
    takes: Takes
    unit: str
    better: Literal["higher", "lower"]
    range: tuple[float | None, float | None]
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def definition(self) -> dict[str, Any]:
        """Return what determines the number; two results that differ in it have different metrics, even of one name."""
        fields = {"address": self.address, "takes": self.takes, "arguments": dict(self.arguments)}
        definition: dict[str, Any] = json.loads(canonical_json(fields))  # as a result line gives it back
        return definition

    def holds(self, value: float) -> bool:
        """Return True if the value is in the range, up to rounding."""
        low, high = self.range
        return (low is None or value >= low - 1e-6) and (high is None or value <= high + 1e-6)


_NAME = re.compile(r"[a-z][a-z0-9_]*")
TAKEN = {
    *("accuracy", "accuracy_after_inversion", "auroc", "best_epoch_accuracy", "calibration_error", "error"),
    *("exact_match", "failed", "flops_per_image", "flops_per_row", "flops_per_token", "inference_time", "log_mse"),
    *("loss", "macro_f1", "mae", "mean_average_precision", "mean_iou", "min_error", "min_log_mse", "mse"),
    *("parameters", "peak_memory_bytes", "perplexity", "pixel_accuracy", "rmse", "selected_log_mse", "selected_mse"),
    *("train_seconds", "train_tokens_per_second", "validation_loss", "window_error"),
}
"""Names of metrics that all experiments have; a second meaning would change the pages of all of them."""
_AT_EPOCH = re.compile(r"epoch_\d+_.*")
_OWN = {field.name for field in dataclasses.fields(OwnMetric)} - {"address", "arguments"}


_WORDS: Sequence[tuple[Literal["predicted", "true"], Sequence[str]]] = (
    ("predicted", ("pred", "preds", "prediction", "predictions", "predicted", "output", "outputs", "hat")),
    ("predicted", ("ypred", "yhat", "estimate", "estimates", "estimated", "forecast", "forecasts", "guess", "guesses")),
    ("true", ("true", "truth", "target", "targets", "actual", "actuals", "gold", "gt", "reference", "references")),
    ("true", ("ytrue", "ground", "expected", "observed")),
    ("predicted", ("score", "scores", "prob", "probs", "proba", "probas", "probability", "probabilities")),
    ("predicted", ("logit", "logits", "input", "inputs")),
    ("true", ("label", "labels")),
)
"""Values that a parameter gets, by the words in its name; the first row with such a word decides."""


def predictions_come_first(parameters: Sequence[str]) -> bool | None:
    """Return True if a metric's function takes what is predicted before what is true, None if its names don't say.

    Raises:
        ValueError: both of its first parameters are named as if they took the same.
    """
    named = [{word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)} for name in parameters[:2]]
    found = [next((what for what, words in _WORDS if not of_name.isdisjoint(words)), None) for of_name in named]
    if len(found) < 2 or found == [None, None]:
        return None
    if found[0] == found[1]:
        raise ValueError(
            f"its first parameters are {parameters[0]} and {parameters[1]}, which may both be {found[0]}; call the one "
            "that gets what is true y_true, and the other y_pred"
        )
    return found[0] == "predicted" or found[1] == "true"


def read_metrics(written: Mapping[str, Mapping[str, Any]], source: Any, path: Path) -> dict[str, OwnMetric]:
    """Read the metrics of an experiment on the data set `source`; keys that aren't ours are arguments.

    Raises:
        ParamsError: a name can't be used, there is no such callable, it has no such argument, or the data lack what it
            takes.
    """
    return {name: _read(name, fields, source, path) for name, fields in written.items()}


def _read(key: str, fields: Mapping[str, Any], source: Any, path: Path) -> OwnMetric:
    place = f"metrics.{key}"
    if not _NAME.fullmatch(key):
        raise ParamsError(f"{path}: {place}: a metric's name has small letters, digits and underscores")
    if key in TAKEN or _AT_EPOCH.fullmatch(key):
        raise ParamsError(f"{path}: {place}: every experiment has a metric of this name; choose another")
    if "name" not in fields:
        raise ParamsError(f"{path}: {place}.name is missing; expected package.module:name")
    address = address_of("metrics", str(fields["name"]), (), path, f"{place}.name")
    arguments = {name: value for name, value in fields.items() if name not in {"name", *_OWN}}
    own = {name: value for name, value in fields.items() if name in _OWN}
    metric = validate(TypeAdapter(OwnMetric), {"address": address, "arguments": arguments, **own}, path, place)
    # A class is built with the arguments alone; a function gets the rows as its first two.
    rows = first_parameters(address, 2)
    check_keywords(address, arguments, path, place, given=rows)
    try:
        predictions_come_first(rows or ())
    except ValueError as error:
        raise ParamsError(f"{path}: {place}.name is {address!r}: {error}") from None
    low, high = metric.range
    if low is not None and high is not None and low >= high:
        raise ParamsError(f"{path}: {place}.range is {[low, high]}; expected the smaller number first")
    if metric.unit == "fraction" and metric.range != (0, 1):
        raise ParamsError(f"{path}: {place}.range is {[low, high]}; a fraction's is [0, 1]; another unit may be ''")
    if source.kind == "text":
        raise ParamsError(f"{path}: {place}: texts have no metrics of one's own, but loss and perplexity")
    has_shares = source.kind == "images" and source.task is None
    takes = ["predictions"]
    takes += ["probabilities"] if has_shares or source.task == "multi-label" else []
    takes += ["positive"] if has_shares and source.classes == 2 else []
    if metric.takes not in takes:
        known = " or ".join(takes)
        raise ParamsError(f"{path}: {place}.takes is {metric.takes!r}; these data have {known}")
    return metric
