"""Comparisons, computed once for each content of the database, since each of them uses all selected runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cachetools import LRUCache
from sqlalchemy.orm import Session

from stages.results import METRICS, SHOWN_METRICS, ExperimentComparison, compare

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


def metrics_of(comparison: ExperimentComparison, kind: str) -> dict[str, str]:
    """Titles of the metrics to choose from: those that the paper prints, then those of its kind of data."""
    names = [*comparison.printed_metrics, *SHOWN_METRICS[kind]]
    if comparison.metric.name not in names:
        names.append(comparison.metric.name)
    return {name: METRICS[name].title for name in names}
