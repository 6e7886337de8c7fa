"""The metrics in which claims are made and models are compared: their titles, units, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.verdicts.curves import ARM_METRICS


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """A metric that can be compared.  `unit` is fraction, nats, count, flop, bytes, seconds or a rate.

    `of_arm`: one number of all folds together, whose epoch is chosen on their curves.
    """

    name: str
    title: str
    unit: str
    better: str
    split: str | None = field(metadata={"exclude": True})
    of_arm: bool = field(default=False, metadata={"exclude": True})


_ROWS = (  # name, title, unit, better, split
    ("accuracy", "Test accuracy, last epoch", "fraction", "higher", "test"),
    ("best_epoch_accuracy", "Test accuracy, best epoch", "fraction", "higher", "test"),
    ("min_error", "Lowest test error of any epoch", "fraction", "lower", "test"),
    ("window_error", "Test error around the best validation epoch", "fraction", "lower", "test"),
    ("loss", "Test loss", "nats", "lower", "test"),
    ("calibration_error", "Calibration error", "fraction", "lower", "test"),
    ("macro_f1", "F1, mean over the classes", "fraction", "higher", "test"),
    ("auroc", "Area under the ROC curve, mean over the classes", "fraction", "higher", "test"),
    ("mean_average_precision", "Average precision, mean over the labels", "fraction", "higher", "test"),
    ("exact_match", "Share with all labels right", "fraction", "higher", "test"),
    ("mean_iou", "Intersection over union, mean over the classes", "fraction", "higher", "test"),
    ("pixel_accuracy", "Share of pixels with the right class", "fraction", "higher", "test"),
    ("rmse", "Root of the test mean squared error", "", "lower", "test"),
    ("mae", "Test mean absolute error", "", "lower", "test"),
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
    name: MetricInfo(name=name, title=title, unit=unit, better=better, split=split, of_arm=name in ARM_METRICS)
    for name, title, unit, better, split in _ROWS
}
"""`split` None marks a cost, of which every machine has its own number."""
_CLAIMED: Mapping[str, tuple[str, str]] = {
    **{name: (info.unit, info.better) for name, info in METRICS.items() if info.split != "none"},
    "error": ("fraction", "lower"),
    "min_log_mse": ("nats", "lower"),
    "failed": ("trainings", "lower"),
    "inference_time": ("ns", "lower"),
}
CLAIMED_METRICS = tuple(_CLAIMED)
"""Names of the metrics in which a claim can be made, besides those of a given epoch."""
_AT_EPOCH = re.compile(r"epoch_\d+_(?:test|train)_(accuracy|loss)")


def find_unit(metric: str) -> tuple[str, str] | None:
    """Return the unit of a claim in this metric and which way is better; None if trainings don't give the metric."""
    at_epoch = _AT_EPOCH.fullmatch(metric)
    return _CLAIMED.get(at_epoch[1] if at_epoch else metric)


def is_share(metric: str, unit: str | None) -> bool:
    """Return True if numbers in the metric are shares in [0, 1]; the `unit` says it of a metric of the user's own."""
    known = find_unit(metric)
    return (known[0] if known else unit) == "fraction"
