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


_OF_ARM = ("min_error", "window_error")
_ROWS = (  # name, title, unit, better, split
    ("accuracy", "Test accuracy, last epoch", "fraction", "higher", "test"),
    ("best_epoch_accuracy", "Test accuracy, best epoch", "fraction", "higher", "test"),
    ("min_error", "Lowest test error of any epoch", "fraction", "lower", "test"),
    ("window_error", "Test error around the best validation epoch", "fraction", "lower", "test"),
    ("loss", "Test loss", "nats", "lower", "test"),
    ("calibration_error", "Calibration error", "fraction", "lower", "test"),
    ("mse", "Test mean squared error, last epoch", "", "lower", "test"),
    ("log_mse", "Log of the test mean squared error, last epoch", "nats", "lower", "test"),
    ("selected_mse", "Test mean squared error, best validation epoch", "", "lower", "test"),
    ("selected_log_mse", "Log of the test mean squared error, best validation epoch", "nats", "lower", "test"),
    ("accuracy_after_inversion", "Test accuracy after inversion of the prototypes", "fraction", "higher", "test"),
    ("parameters", "Parameters", "count", "lower", "none"),
    ("flops_per_image", "FLOPs per image", "flop", "lower", "none"),
    ("flops_per_row", "FLOPs per row", "flop", "lower", "none"),
    ("perplexity", "Test perplexity", "", "lower", "test"),
    ("validation_loss", "Validation loss", "nats per token", "lower", "test"),
    ("flops_per_token", "FLOPs per token", "flop", "lower", "none"),
    ("train_seconds", "Training time", "seconds", "lower", None),
    ("train_tokens_per_second", "Tokens per second in training", "tokens per second", "higher", None),
    ("peak_memory_bytes", "Peak memory", "bytes", "lower", None),
    ("inference_time", "Inference time per sample", "seconds", "lower", None),
)
METRICS: Mapping[str, MetricInfo] = {
    name: MetricInfo(name=name, title=title, unit=unit, better=better, split=split, of_arm=name in _OF_ARM)
    for name, title, unit, better, split in _ROWS
}
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
