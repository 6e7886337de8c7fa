"""How far from the paper's number still counts as the same number.  Fixed in params before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# For the reader of the params files: a key that isn't a field is an error.
STRICT = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Margins:
    """`…_points` are absolute, in the metric's unit (0.01 is one percentage point); `…_share` is of the paper's number.

    An error or accuracy has the smaller of its two, a difference between arms the larger.
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

    def error(self, error: float, precision: float) -> float:
        """For an error rate, or for the accuracy 1 − error."""
        return max(min(self.error_points, self.error_share * error), precision)

    def accuracy(self, accuracy: float, precision: float) -> float:
        return self.error(1 - accuracy, precision)

    def difference(self, gain: float) -> float:
        """Between two arms, of an error or accuracy."""
        return max(self.difference_share * abs(gain), self.difference_points)

    def comparable(self) -> float:
        """Two arms that a paper calls comparable."""
        return self.comparable_points

    def loss(self, loss: float, precision: float) -> float:
        return max(self.loss_share * loss, precision)

    def log_mse(self, change: float) -> float:
        """A change of the logarithm of a mean squared error."""
        return self.log_mse_share * abs(change)

    def flops(self, flops: float, precision: float) -> float:
        return max(self.flops_share * flops, precision)

    def memory(self, memory: float, precision: float) -> float:
        return max(self.memory_share * memory, precision)
