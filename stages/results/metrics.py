"""The metrics that can be compared, and which of them a reader sees first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """A metric that can be compared.  `unit` is fraction, nats, count, flop, bytes, seconds or a rate.

    `of_arm`: one number of all folds together, whose epoch is chosen on their curves.
    """

    name: str
    title: str
    unit: str
    better: str
    split: Annotated[str | None, Field(exclude=True)]
    of_arm: Annotated[bool, Field(exclude=True)] = False


_INFOS = (
    MetricInfo(name="accuracy", title="Test accuracy, last epoch", unit="fraction", better="higher", split="test"),
    MetricInfo(
        name="best_epoch_accuracy", title="Test accuracy, best epoch", unit="fraction", better="higher", split="test"
    ),
    MetricInfo(
        name="min_error",
        title="Lowest test error of any epoch",
        unit="fraction",
        better="lower",
        split="test",
        of_arm=True,
    ),
    MetricInfo(
        name="window_error",
        title="Test error around the best validation epoch",
        unit="fraction",
        better="lower",
        split="test",
        of_arm=True,
    ),
    MetricInfo(name="loss", title="Test loss", unit="nats", better="lower", split="test"),
    MetricInfo(name="calibration_error", title="Calibration error", unit="fraction", better="lower", split="test"),
    MetricInfo(name="mse", title="Test mean squared error, last epoch", unit="", better="lower", split="test"),
    MetricInfo(
        name="log_mse",
        title="Log of the test mean squared error, last epoch",
        unit="nats",
        better="lower",
        split="test",
    ),
    MetricInfo(
        name="selected_mse",
        title="Test mean squared error, best validation epoch",
        unit="",
        better="lower",
        split="test",
    ),
    MetricInfo(
        name="selected_log_mse",
        title="Log of the test mean squared error, best validation epoch",
        unit="nats",
        better="lower",
        split="test",
    ),
    MetricInfo(
        name="accuracy_after_inversion",
        title="Test accuracy after inversion of the prototypes",
        unit="fraction",
        better="higher",
        split="test",
    ),
    MetricInfo(name="parameters", title="Parameters", unit="count", better="lower", split="none"),
    MetricInfo(name="flops_per_image", title="FLOPs per image", unit="flop", better="lower", split="none"),
    MetricInfo(name="flops_per_row", title="FLOPs per row", unit="flop", better="lower", split="none"),
    MetricInfo(name="perplexity", title="Test perplexity", unit="", better="lower", split="test"),
    MetricInfo(name="validation_loss", title="Validation loss", unit="nats per token", better="lower", split="test"),
    MetricInfo(name="flops_per_token", title="FLOPs per token", unit="flop", better="lower", split="none"),
    MetricInfo(name="train_seconds", title="Training time", unit="seconds", better="lower", split=None),
    MetricInfo(
        name="train_tokens_per_second",
        title="Tokens per second in training",
        unit="tokens per second",
        better="higher",
        split=None,
    ),
    MetricInfo(name="peak_memory_bytes", title="Peak memory", unit="bytes", better="lower", split=None),
    MetricInfo(name="inference_time", title="Inference time per sample", unit="seconds", better="lower", split=None),
)
METRICS: Mapping[str, MetricInfo] = {info.name: info for info in _INFOS}
"""`split` None marks a cost, of which every machine has its own number."""

SHOWN_METRICS: Mapping[str, tuple[str, ...]] = {
    "images": ("accuracy", "best_epoch_accuracy", "loss", "calibration_error", "inference_time"),
    "table": ("selected_log_mse", "log_mse", "selected_mse", "mse", "inference_time"),
    "text": ("loss", "perplexity", "inference_time"),
}
"""What a reader compares models by, for each kind of data, beside what the paper prints."""

FIRST_METRICS: Mapping[str, tuple[str, ...]] = {
    "images": ("accuracy",),
    "table": ("selected_log_mse", "log_mse"),
    "text": ("loss",),
}
"""Where a paper prints none of an experiment's metrics: the first of these that the compared results hold."""

COST_COLUMNS = {
    "train_seconds": "train_seconds",
    "train_tokens_per_second": "train_tokens_per_second",
    "peak_memory_bytes": "peak_memory_bytes",
    "inference_time": "latency_seconds_per_sample",
}
