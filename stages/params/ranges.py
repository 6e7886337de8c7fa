"""The range of each protocol field that allows training, wherever a file sets the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

# (bound, whether it is itself allowed, what the number stays below)
Bounds = tuple[float, str, float]
_POSITIVE: Bounds = (0, "above", math.inf)
_NOT_NEGATIVE: Bounds = (0, "at least", math.inf)
_COUNT: Bounds = (1, "at least", math.inf)
_SHARE: Bounds = (0, "at least", 1)

PROTOCOL: Mapping[str, Bounds] = {
    "batch_size": _COUNT,
    "epochs": _COUNT,
    "train_images": _COUNT,
    "steps_per_epoch": _COUNT,
    "std": _POSITIVE,
    "optimizer.lr": _POSITIVE,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.betas": _SHARE,
    "optimizer.momentum": _SHARE,
    "optimizer.damping": _POSITIVE,
    "optimizer.cg_iterations": _COUNT,
    "optimizer.cg_tolerance": _NOT_NEGATIVE,
    "optimizer.factor_decay": _SHARE,
    "optimizer.update_interval": _COUNT,
    "optimizer.kl_clip": _POSITIVE,
    "optimizer.rest_lr": _POSITIVE,
    "schedule.warmup_steps": _NOT_NEGATIVE,
    "schedule.floor": _NOT_NEGATIVE,
    "schedule.milestones": _SHARE,
    "schedule.factor": _POSITIVE,
    "augmentation.crop_padding": _NOT_NEGATIVE,
    "early_stop.from_epoch": _NOT_NEGATIVE,
    "early_stop.patience": _COUNT,
    "early_stop.min_delta": _NOT_NEGATIVE,
}


def out_of_range(protocol: Any) -> tuple[str, Any, str] | None:
    """(field, value, what was expected) of the first number that doesn't allow training; None if all do."""
    for name, (least, relation, below) in PROTOCOL.items():
        value = _follow(protocol, name)
        for number in value if isinstance(value, tuple) else (value,):
            is_low = number is not None and (number < least or (relation == "above" and number == least))
            if is_low or (number is not None and number >= below):
                upper = "" if math.isinf(below) else f" and below {below:g}"
                return name, value, f"expected {relation} {least:g}{upper}"
    return None


def _follow(value: Any, path: str) -> Any:
    """The field at a dotted path; None if a step on the way is not set."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def not_finite(value: Any, key_path: str = "") -> Iterator[tuple[str, float]]:
    """(dotted path of keys, value) of every NaN and infinity in a file's content."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from not_finite(item, f"{key_path}.{name}".strip("."))
    elif isinstance(value, list):
        for item in value:
            yield from not_finite(item, key_path)
    elif isinstance(value, float) and not math.isfinite(value):
        yield key_path, value
