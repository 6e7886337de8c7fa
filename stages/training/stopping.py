"""Early stopping, decided only from the validation losses of the finished epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.run import EarlyStopSpec


def stops_early(history: Sequence[Mapping[str, Any]], spec: EarlyStopSpec | None) -> bool:
    """Return whether a training with these finished epochs is over."""
    if spec is None:
        return False
    best, waited = float("inf"), 0
    for row in history[spec.from_epoch :]:
        if row["val_loss"] < best - spec.min_delta:
            best, waited = row["val_loss"], 0
        else:
            waited += 1
    return waited >= spec.patience
