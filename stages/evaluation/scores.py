"""Scores of a trained network on the test set of its kind of data."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.checkpoint.predictor import Predictor
from stages.datasets.packed import ImageSet, PackedInfo, TokenSet
from stages.evaluation.cost import count_parameters
from stages.evaluation.metrics import accuracy, confusion_matrix, correctness, cross_entropy, expected_calibration_error
from stages.run import Protocol
from stages.runs.evidence import Measurement, pack_confusion, pack_correct
from stages.training.kinds import RowSet, make_task
from stages.training.loop import measure


def cut_info(info: PackedInfo, test_rows: int | None) -> PackedInfo:
    """The packed set's info when `test_rows` of its test rows are scored; a text's rows are windows of tokens."""
    kept = info.test_images
    if test_rows is not None:
        kept = min(kept, test_rows * info.shape[0] + 1 if info.kind == "text" else test_rows)
    if kept == info.test_images:
        return info
    return dataclasses.replace(
        info,
        test_images=kept,
        excluded_test_images=info.excluded_test_images + info.test_images - kept,
        provenance="subset" if info.provenance == "full" else info.provenance,
    )


def cut_rows(rows: RowSet, kept: int) -> RowSet:
    """The first `kept` tokens of a text; otherwise rows evenly spread over the set, which may be ordered by class."""
    if kept >= len(rows):
        return rows
    chosen = np.arange(kept) if isinstance(rows, TokenSet) else np.linspace(0, len(rows) - 1, kept).astype(int)
    return type(rows)(*(getattr(rows, field.name)[chosen] for field in dataclasses.fields(rows)))


_LARGEST_EXPONENT = math.log(sys.float_info.max)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Metrics of a run; for images also which test images were classified correctly, and the predicted classes."""

    metrics: tuple[Measurement, ...] = ()
    correct: str | None = None
    confusion: str | None = None


def score(
    predictor: Predictor,
    test_set: RowSet,
    info: PackedInfo,
    protocol: Protocol,
    history: Sequence[Mapping[str, Any]],
    flops: int,
) -> Scores:
    """Score `predictor` on the packed set's test split; `history` are the run's epochs, `flops` those of one row."""
    parameters = Measurement(metric="parameters", split="none", value=count_parameters(predictor.network))
    if isinstance(test_set, ImageSet):
        cost = Measurement(metric="flops_per_image", split="none", value=flops)
        return _score_images(predictor, test_set, history, (parameters, cost))
    task = make_task(test_set, info, protocol, predictor.device)
    loss = measure(predictor.network, task)["loss"]
    measured = _of_table(loss, info, history) if info.kind == "table" else _of_text(loss, len(task) * info.shape[0])
    per, parts = ("row", 1) if info.kind == "table" else ("token", info.shape[0])
    cost = Measurement(metric=f"flops_per_{per}", split="none", value=flops / parts)
    return Scores(metrics=(*measured, parameters, cost))


def _of_table(loss: float, info: PackedInfo, history: Sequence[Mapping[str, Any]]) -> list[Measurement]:
    """Mean squared error, in squares of the target's unit, and its natural logarithm, which the DAC paper compares.

    Both for the last epoch's weights, and for the epoch with the lowest validation error if the curves have both.
    """
    errors = {"": loss}
    watched = [row for row in history if "val_loss" in row and "test_loss" in row]
    if watched:
        errors["selected_"] = float(min(watched, key=lambda row: row["val_loss"])["test_loss"])
    n = info.test_images
    return [
        Measurement(metric=f"{epoch}{metric}", split="test", value=value, n=n)
        for epoch, error in errors.items()
        for metric, value in (("mse", error), ("log_mse", math.log(error)))
    ]


def _of_text(loss: float, tokens: int) -> list[Measurement]:
    """Cross entropy in nats per token over `tokens` of the held-out text, which papers call their validation loss."""
    values = {"loss": loss, "validation_loss": loss}
    if loss < _LARGEST_EXPONENT:
        values["perplexity"] = math.exp(loss)
    return [Measurement(metric=name, split="test", value=value, n=tokens) for name, value in values.items()]


def _score_images(
    predictor: Predictor,
    test_set: ImageSet,
    history: Sequence[Mapping[str, Any]],
    of_the_model: tuple[Measurement, ...],
) -> Scores:
    labels, n = test_set.labels, len(test_set)
    probabilities = predictor.probabilities(test_set.images)
    calibration = expected_calibration_error(probabilities, labels)
    metrics = [
        Measurement(metric="accuracy", split="test", value=accuracy(probabilities, labels), n=n),
        Measurement(metric="loss", split="test", value=cross_entropy(probabilities, labels), n=n),
        Measurement(metric="calibration_error", split="test", value=calibration, n=n),
        *of_the_model,
    ]
    observed = [row["test_accuracy"] for row in history if "test_accuracy" in row]
    if observed:
        metrics.append(Measurement(metric="best_epoch_accuracy", split="test", value=max(observed), n=n))
    return Scores(
        metrics=tuple(metrics),
        correct=pack_correct(correctness(probabilities, labels)),
        confusion=pack_confusion(confusion_matrix(probabilities, labels)),
    )
