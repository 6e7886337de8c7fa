"""Data classes of verdicts: the samples that go in, the status and the numbers that come out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any


class Status(StrEnum):
    """All possible verdicts."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    UNDECIDABLE = "undecidable at this margin"
    SUPPORTED = "supported"
    REVERSED = "reversed"
    UNRESOLVED = "unresolved"
    HOLDS = "holds"
    HOLDS_UNDER_READING = "holds under a reading"
    FAILS = "fails"
    CONTRADICTED = "contradicted"
    SHOWN = "shown"
    AS_PRINTED = "as printed"
    DEVIATES = "deviates"
    AGREES = "indicative: agrees"
    DISAGREES = "indicative: disagrees"
    OTHER_HARDWARE = "not tested (hardware)"
    NOT_TESTED = "not tested"


class Word(StrEnum):
    """A verdict as a headline."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"
    NOT_TESTED = "not tested"


ICONS: Mapping[Word, str] = {Word.HOLDS: "✓", Word.FAILS: "✗", Word.OPEN: "?", Word.NOT_TESTED: "○"}
WORD_OF: Mapping[Status, Word] = {
    **dict.fromkeys((Status.REPRODUCED, Status.SUPPORTED, Status.HOLDS), Word.HOLDS),
    **dict.fromkeys((Status.NOT_REPRODUCED, Status.REVERSED, Status.FAILS, Status.CONTRADICTED), Word.FAILS),
    **dict.fromkeys((Status.HOLDS_UNDER_READING, Status.INCONCLUSIVE, Status.UNRESOLVED), Word.OPEN),
    **dict.fromkeys((Status.UNDECIDABLE, Status.AGREES, Status.DISAGREES), Word.OPEN),
    **dict.fromkeys((Status.SHOWN, Status.AS_PRINTED, Status.DEVIATES, Status.OTHER_HARDWARE), Word.NOT_TESTED),
    Status.NOT_TESTED: Word.NOT_TESTED,
}
"""The word of each status.  A claim that depends on how it is read neither holds nor fails."""


class DuplicateObservation(ValueError):
    """A replicate occurs twice in a sample, but a verdict needs one result for each."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One seed or fold.  `index` counts in the planned order from 0; `value` is None if training diverged.

    `environments` are those in which its trainings ran: one, unless the value is a mean over several arms.
    """

    index: int
    value: float | None
    environments: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sample:
    """The replicates of one arm, in any order.

    Raises:
        DuplicateObservation: an index occurs twice.
        ValueError: a value is not a finite number; None means that training diverged.
    """

    replicates: tuple[Observation, ...]

    def __post_init__(self) -> None:
        twice = [index for index, times in Counter(self.indices).items() if times > 1]
        if twice:
            raise DuplicateObservation(f"replicates {twice} occur twice; choose one result of each")
        infinite = [index for index, value in self.finished.items() if not math.isfinite(value)]
        if infinite:
            raise ValueError(f"replicates {infinite} have no finite value; one that diverged has None")

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Sample:
        """Build replicates 0, 1, 2, … with these values."""
        return cls(tuple(Observation(index=index, value=value) for index, value in enumerate(values)))

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(replicate.index for replicate in self.replicates)

    @property
    def finished(self) -> dict[int, float]:
        """Values by index, in order, without the diverged ones."""
        ordered = sorted(self.replicates, key=lambda replicate: replicate.index)
        return {replicate.index: replicate.value for replicate in ordered if replicate.value is not None}

    @property
    def values(self) -> list[float]:
        return list(self.finished.values())

    @property
    def n(self) -> int:
        """Number of replicates, including the diverged."""
        return len(self.replicates)

    @property
    def n_diverged(self) -> int:
        return self.n - len(self.finished)

    @property
    def environments(self) -> frozenset[str]:
        return frozenset().union(*(replicate.environments for replicate in self.replicates))

    def among(self, indices: Collection[int]) -> Sample:
        """Return the replicates with these indices."""
        return Sample(tuple(replicate for replicate in self.replicates if replicate.index in indices))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Interval in which the paper's own rerun would lie, in the claim's unit; `holds`: the printed number is in it."""

    low: float
    high: float
    confidence: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Part of a grid that a verdict covers.

    If the pairs are whole slices, `factor` names the factor with missing levels; `ran` and `missing` list its levels.
    """

    pairs: Annotated[int, "pairs of models that ran"]
    planned_pairs: Annotated[int | None, "pairs of the whole grid; null if results determine the pairs"] = None
    factor: str | None = None
    ran: tuple[Any, ...] = ()
    missing: tuple[Any, ...] = ()
    models: Annotated[int | None, "models of the grid that ran, if results determine the pairs"] = None
    planned_models: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The `status` at every margin from `start` up to the next stretch."""

    start: float
    status: Status


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one claim and the numbers behind it.

    `estimate` is ours − paper for a value, and proposed − baseline (better positive) for a difference, with the
    interval `low` to `high` at `confidence`.  `n` counts the replicates used, including diverged ones;
    `replicates_expected` is the number at which the present estimate would decide.  `size` judges how large a
    difference is, apart from its sign.  `p_value` is two-sided and not adjusted for other claims.  `spread` is the
    standard deviation of one replicate or, for a gain, of one difference; `stderr` is the standard error of a gain.
    `share` is the part of α that this analysis spends.  `scope`: the part of a grid that the verdict covers, else None.
    `by_margin`: the status at every other margin, empty if none would change it.  `posterior`: the chance, with a flat
    prior, that the truth lies within the margin or, for an order, that the gain has the claimed sign.
    """

    status: Status
    explanation: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    margin: float | None = None
    n: int = 0
    n_diverged: int = 0
    replicates_expected: int | None = None
    p_value: float | None = None
    stderr: float | None = None
    size: Verdict | None = None
    prediction: Prediction | None = None
    spread: float | None = None
    share: float | None = None
    scope: Scope | None = None
    by_margin: tuple[Stretch, ...] = ()
    posterior: float | None = None

    @property
    def ends(self) -> dict[str, float | None]:
        """`low` and `high` for JSON, which has no infinity: None if there is no finite interval."""
        is_finite = self.low is not None and math.isfinite(self.low)
        return {"low": self.low, "high": self.high} if is_finite else {"low": None, "high": None}
