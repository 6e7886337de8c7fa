"""Every model of every paper on one data set, in one table: result and cost, sorted by any column, up to a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stages.results import ArmComparison, ExperimentComparison

Cost = Literal["parameters", "flops_per_image", "train_seconds", "peak_memory_bytes", "latency_seconds_per_sample"]
Column = Literal[
    "result", "parameters", "flops_per_image", "train_seconds", "peak_memory_bytes", "latency_seconds_per_sample"
]
"""The result or a `Cost`, in one list: whoever asks for another one is told all of them."""

COSTS: dict[Cost, str] = {
    "parameters": "parameters",
    "flops_per_image": "FLOP per sample",
    "train_seconds": "training time",
    "peak_memory_bytes": "peak memory",
    "latency_seconds_per_sample": "time per sample",
}
"""The costs that a result can be held against: fields of `CostSummary` in words."""

UNITS: dict[Cost, str] = {"train_seconds": "s", "peak_memory_bytes": "B", "latency_seconds_per_sample": "s"}
TITLES: dict[Column, str] = {
    "result": "Result",
    **{cost: title[0].upper() + title[1:] for cost, title in COSTS.items()},
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model with its number of ours, and the comparison that it stands in."""

    comparison: ExperimentComparison
    arm: ArmComparison

    def value(self, column: Column) -> float | None:
        if column != "result":
            found: float | None = getattr(self.arm.cost, column)
            return found
        return self.arm.ours.value if self.arm.ours else None


def list_entries(comparisons: Sequence[ExperimentComparison]) -> list[Entry]:
    """The models with a result."""
    return [Entry(comparison=comparison, arm=arm) for comparison in comparisons for arm in comparison.arms if arm.ours]


def sizes(entries: Sequence[Entry]) -> list[int]:
    """Powers of ten of parameters that part the models: each leaves some in and some out."""
    found = [size for entry in entries if (size := entry.arm.cost.parameters)]
    powers = [10**power for power in range(3, 12)]
    return [most for most in powers if found and min(found) <= most < max(found)]


def no_larger(entries: Sequence[Entry], most: int | None) -> list[Entry]:
    """Those of at most so many parameters; of a model whose size nobody counted nothing is known, so it is left out."""
    return [entry for entry in entries if most is None or (entry.arm.cost.parameters or math.inf) <= most]


def rank(entries: Sequence[Entry], *, by: Column, is_reversed: bool = False) -> list[Entry]:
    """The best or the cheapest first; those without the number sorted by come last."""
    known = [entry for entry in entries if entry.value(by) is not None]
    is_falling = by == "result" and bool(known) and known[0].comparison.metric.better == "higher"
    known.sort(key=lambda entry: entry.value(by) or 0.0, reverse=is_falling != is_reversed)
    return known + [entry for entry in entries if entry.value(by) is None]


def has(entries: Sequence[Entry], column: Column) -> bool:
    """True if any model has a number there: no column of dashes."""
    return any(entry.value(column) is not None for entry in entries)
