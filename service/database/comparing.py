"""Comparisons, computed once for each content of the database, and what pages make of them: ranks, specs of arms."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cachetools import LRUCache
from sqlalchemy.orm import Session

from stages.results import (
    METRICS,
    SHOWN_METRICS,
    Arm,
    ArmComparison,
    Dataset,
    Experiment,
    ExperimentComparison,
    compare,
)

MAX_REMEMBERED = 64
Provenance = Literal["embedded", "subset", "full"]
"""Of the data behind a result: stand-ins, part of the official data, or all."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The subject of a comparison; None doesn't restrict, the defaults are those of `compare`."""

    dataset: str | None = None
    paper: str | None = None
    profile: str | None = None
    metric: str | None = None
    provenance: Provenance | None = None


class Comparisons:
    """Remembers the latest answers, each for one content of the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: LRUCache[tuple[str, Question], list[ExperimentComparison]] = LRUCache(MAX_REMEMBERED)

    def get(self, session: Session, content: str, question: Question) -> list[ExperimentComparison]:
        """The result of `compare` on a session that reads `content`; errors are not remembered.

        Raises:
            UnknownName: a data set, paper, profile or metric that isn't there.
        """
        with self._lock:
            if (found := self._found.get((content, question))) is not None:
                return found
        answer = compare(session, **vars(question))
        with self._lock:
            self._found[content, question] = answer
        return answer


def real_first(comparisons: Sequence[ExperimentComparison]) -> list[ExperimentComparison]:
    """Experiments in their order, those measured on real data before stand-ins and those not run."""
    return sorted(comparisons, key=lambda comparison: not comparison.is_real)


def first_of_each_dataset(comparisons: Sequence[ExperimentComparison]) -> dict[str, ExperimentComparison]:
    """For each data set, the experiment that `real_first` puts first."""
    return {comparison.dataset: comparison for comparison in reversed(real_first(comparisons))}


def first_with_results(overview: Mapping[str, ExperimentComparison], datasets: Iterable[Dataset]) -> str | None:
    """The first data set with results on real data, else the first one with an experiment; None without any."""
    known = [item.name for item in datasets if item.name in overview]
    return next((name for name in known if overview[name].is_real), next(iter(known), None))


def metrics_of(comparison: ExperimentComparison, kind: str) -> dict[str, str]:
    """Titles of the metrics to choose from: those that the paper prints, then those of its kind of data."""
    names = [*comparison.printed_metrics, *SHOWN_METRICS[kind]]
    if comparison.metric.name not in names:
        names.append(comparison.metric.name)
    return {name: METRICS[name].title for name in names}


@dataclass(frozen=True, kw_only=True)
class SpecRow:
    """One leaf by its dotted name; None on a side that has no such leaf."""

    name: str
    left: object
    right: object

    @property
    def differs(self) -> bool:
        return self.left != self.right


def flatten(value: object, prefix: str = "") -> list[tuple[str, object]]:
    """Nested mappings as dotted names and leaves."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [pair for key, item in value.items() for pair in flatten(item, f"{prefix}.{key}" if prefix else str(key))]


def spec_of(experiment: Experiment, arm: Arm) -> dict[str, object]:
    """Model and protocol of an arm, with its departures from the experiment's protocol filled in."""
    return dict(flatten({"model": arm.model, "protocol": {**experiment.protocol, **arm.protocol}}))


def lay_side_by_side(experiment: Experiment, left: Arm, right: Arm) -> list[SpecRow]:
    """Every leaf of either side, in the order of the left one first."""
    one, other = spec_of(experiment, left), spec_of(experiment, right)
    return [SpecRow(name=name, left=one.get(name), right=other.get(name)) for name in {**one, **other}]


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
TITLES: dict[Column, str] = {
    "result": "Result",
    **{cost: title[0].upper() + title[1:] for cost, title in COSTS.items()},
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model with its number of ours and its comparison; `is_timed` under the conditions of the times shown."""

    comparison: ExperimentComparison
    arm: ArmComparison
    is_timed: bool = True

    def value(self, column: Column) -> float | None:
        if column == "latency_seconds_per_sample" and not self.is_timed:
            return None
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
