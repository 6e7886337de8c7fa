"""Comparisons, cached for each content of the database, with ranks and specs of arms for pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cachetools import LRUCache
from sqlalchemy.orm import Session

from stages.results import (
    METRICS,
    SHOWN_METRICS,
    ArmComparison,
    ArmRow,
    Dataset,
    ExperimentComparison,
    ExperimentRow,
    Question,
    compare,
)

MAX_ANSWERS, MAX_COMPARED = 64, 256
Answer = Callable[[Question], list[ExperimentComparison]]
"""`compare` on one session, with its cache."""


class Comparisons:
    """Cache of the latest answers and of the comparisons in them, each for one content of the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: LRUCache[tuple[str, Question], list[ExperimentComparison]] = LRUCache(MAX_ANSWERS)
        self._compared: LRUCache[tuple[str, Any], ExperimentComparison] = LRUCache(MAX_COMPARED)

    def get(self, session: Session, content: str, question: Question) -> list[ExperimentComparison]:
        """Return the result of `compare` on a session that reads `content`; errors are not cached.

        Raises:
            UnknownName: the data set, paper, experiment, profile or metric is unknown.
        """
        with self._lock:
            if (found := self._answers.get((content, question))) is not None:
                return found
            known = {key: one for (made_from, key), one in self._compared.items() if made_from == content}
        answer = compare(session, question, known)
        with self._lock:
            self._answers[content, question] = answer
            self._compared.update({(content, key): one for key, one in known.items()})
        return answer


def first_of_each_dataset(comparisons: Sequence[ExperimentComparison]) -> dict[str, ExperimentComparison]:
    """Return for each data set its first experiment with results on real data, else its first one."""
    real_first = sorted(comparisons, key=lambda comparison: not comparison.is_real)
    return {comparison.dataset: comparison for comparison in reversed(real_first)}


def first_with_results(overview: Mapping[str, ExperimentComparison], datasets: Iterable[Dataset]) -> str | None:
    """Return the first data set with results on real data, else the first with an experiment, else None."""
    known = [item.name for item in datasets if item.name in overview]
    return next((name for name in known if overview[name].is_real), next(iter(known), None))


def metrics_of(comparison: ExperimentComparison, kind: str) -> dict[str, str]:
    """Return the titles of the metrics to choose from: the paper's first, then others for this kind of data."""
    names = [*comparison.printed_metrics, *SHOWN_METRICS[kind]]
    if comparison.metric.name not in names:
        names.append(comparison.metric.name)
    known = {**METRICS, comparison.metric.name: comparison.metric}
    return {name: known[name].title if name in known else name for name in names}


@dataclass(frozen=True, kw_only=True)
class SpecRow:
    """A setting with its dotted name; None for a model that lacks it."""

    name: str
    left: object
    right: object

    @property
    def differs(self) -> bool:
        return self.left != self.right


def flatten(value: object, prefix: str = "") -> list[tuple[str, object]]:
    """Flatten nested mappings into dotted names and leaves."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [pair for key, item in value.items() for pair in flatten(item, f"{prefix}.{key}" if prefix else str(key))]


def lay_side_by_side(experiment: ExperimentRow, left: ArmRow, right: ArmRow) -> list[SpecRow]:
    """Return every setting of either model and of its complete protocol, in the left model's order first."""
    one, other = (
        dict(flatten({"model": arm.model, "protocol": {**experiment.protocol, **arm.protocol}}))
        for arm in (left, right)
    )
    return [SpecRow(name=name, left=one.get(name), right=other.get(name)) for name in {**one, **other}]


Cost = Literal["parameters", "flops_per_image", "train_seconds", "peak_memory_bytes", "latency_seconds_per_sample"]
Column = Literal["result", Cost]
"""Sort key: the result or a `Cost`.  One list, so that an error message names all choices."""

COSTS: dict[Cost, str] = {
    "parameters": "parameters",
    "flops_per_image": "FLOP per sample",
    "train_seconds": "training time",
    "peak_memory_bytes": "peak memory",
    "latency_seconds_per_sample": "time per sample",
}
"""Costs to compare with the result: fields of `CostSummary` and their titles."""
TITLES: dict[Column, str] = {
    "result": "Result",
    **{cost: title[0].upper() + title[1:] for cost, title in COSTS.items()},
}


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A model with our number and its comparison; `is_timed`: timed under the selected conditions."""

    comparison: ExperimentComparison
    arm: ArmComparison
    is_timed: bool = True

    def value(self, column: Column) -> float | None:
        if column == "latency_seconds_per_sample" and not self.is_timed:
            return None
        if column == "result":
            return self.arm.ours.value if self.arm.ours else None
        cost: float | None = getattr(self.arm.cost, column)
        return cost


def list_entries(comparisons: Sequence[ExperimentComparison]) -> list[ComparedModel]:
    """Return the models with a result."""
    return [ComparedModel(comparison=item, arm=arm) for item in comparisons for arm in item.arms if arm.ours]


def sizes(entries: Sequence[ComparedModel]) -> list[int]:
    """Return the powers of ten that divide the models by parameters, with some on each side."""
    found = [size for entry in entries if (size := entry.arm.cost.parameters)]
    powers = [10**power for power in range(3, 12)]
    return [most for most in powers if found and min(found) <= most < max(found)]


def rank(entries: Sequence[ComparedModel], *, by: Column, is_reversed: bool = False) -> list[ComparedModel]:
    """Sort the best or the cheapest first; models without that number come last."""
    known = [entry for entry in entries if entry.value(by) is not None]
    is_falling = by == "result" and bool(known) and known[0].comparison.metric.better == "higher"
    known.sort(key=lambda entry: entry.value(by) or 0.0, reverse=is_falling != is_reversed)
    return known + [entry for entry in entries if entry.value(by) is None]


def has(entries: Sequence[ComparedModel], column: Column) -> bool:
    """Return True if any model has a number in this column, so that no column is empty."""
    return any(entry.value(column) is not None for entry in entries)
