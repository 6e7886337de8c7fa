"""The rules that are fixed before any run: margins, interim analyses and levels.

Their digest is stored with every verdict.  They are `verdicts:` in params.yaml, read by `stages.params.experiment`, and
separate from `stages.verdicts` so that reading params loads no statistics.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

ANYTIME: Mapping[int, float] = dict.fromkeys(range(3, 1001), 1.0)
"""Looks at every number of replicates, each with all of α; their intervals hold at all of them (`verdicts.anytime`)."""
# The reader of the params files treats a key that isn't a field as an error.
STRICT = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Distances from the paper's number within which a result counts as the same number.

    `…_points` are absolute, for shares and ratios alone (0.01 is one percentage point); `…_share` is relative to the
    paper's number.  An error or accuracy has the smaller of its two margins, a difference between arms the larger.
    All are at least the `precision`, the rounding of the printed number.
    """

    __pydantic_config__: ClassVar = STRICT
    error_points: float
    error_share: float
    difference_points: float
    difference_share: float
    comparable_points: float
    loss_share: float
    log_mse_share: float
    flops_share: float
    memory_share: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not 0 <= getattr(self, field.name) < math.inf:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}; expected a finite number from 0")

    def error(self, error: float, precision: float) -> float:
        """Return the margin of an error rate, or of the accuracy 1 − error."""
        return max(min(self.error_points, self.error_share * error), precision)

    def accuracy(self, accuracy: float, precision: float) -> float:
        return self.error(1 - accuracy, precision)

    def difference(self, gain: float, precision: float, *, is_share: bool) -> float:
        """Return the margin of a difference between arms in a share, such as an accuracy, or in another unit."""
        return max(self.difference_share * abs(gain), self.difference_points if is_share else 0.0, precision)

    def comparable(self, level: float, precision: float, *, is_share: bool) -> float:
        """Return the margin of two arms that a paper calls comparable; `level` is the baseline's number."""
        return max(self.comparable_points, precision) if is_share else self.loss(abs(level), precision)

    def loss(self, loss: float, precision: float) -> float:
        return max(self.loss_share * loss, precision)

    def log_mse(self, change: float, precision: float) -> float:
        """Return the margin of a change in the logarithm of a mean squared error."""
        return max(self.log_mse_share * abs(change), precision)

    def flops(self, flops: float, precision: float) -> float:
        return max(self.flops_share * flops, precision)

    def memory(self, memory: float, precision: float) -> float:
        return max(self.memory_share * memory, precision)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The verdicts block of params.yaml.

    looks: interim analyses, as numbers of replicates, each with its share of α; `ANYTIME` if no number is planned.
    alpha_within: each of the two one-sided tests behind `reproduced` (0.05: a 90 % interval).
    alpha_outside: both sides together for `not reproduced`, `supported` and `reversed` (0.05: a 95 % interval).
    minimum: replicates that a value needs; minimum_with_error: the same if the paper prints its own error.
    indicative_share: the share of the printed epochs from which real data may indicate an order.
    families: tables of orders, each with a sentence over all of them.
    """

    __pydantic_config__: ClassVar = STRICT
    margins: Margins
    looks: Mapping[int, float]
    alpha_within: float
    alpha_outside: float
    minimum: int
    minimum_with_error: int
    indicative_share: float
    families: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers, shares = list(self.looks), list(self.looks.values())
        if not numbers or numbers != sorted(numbers) or numbers[0] < 2:
            raise ValueError(f"looks are at {numbers}; expected rising numbers of replicates from 2")
        if min(shares) <= 0 or not (self.is_anytime or math.isclose(sum(shares), 1)):
            raise ValueError(f"looks share α as {shares}; expected positive shares that sum to 1")
        for name in ("alpha_within", "alpha_outside"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a level between 0 and 0.5")
        if not 0 < self.indicative_share <= 1:
            raise ValueError(f"indicative_share is {self.indicative_share}; expected a share above 0, at most 1")
        for name in ("minimum", "minimum_with_error"):
            if not 1 <= getattr(self, name) <= numbers[-1]:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 to {numbers[-1]}, the last analysis")

    @property
    def is_anytime(self) -> bool:
        """True if evidence is judged at any number of replicates, by intervals that allow that."""
        return self.looks == ANYTIME

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()
