"""Regression on a table: one number per row of standardised features.

N rows in all, B in a batch, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows are narrow, so calling operators would take most of the time in batches as small as those of images.
_LEAST_ROWS = 4096


@dataclass(frozen=True)
class TableRows:
    """Features float32 [N, D] and targets float32 [N], on one device."""

    features: Tensor
    targets: Tensor


class Regression:
    """Mean squared error over `data`; training sees the rows as they are."""

    scores: tuple[str, ...] = ("loss",)

    def __init__(self, data: TableRows) -> None:
        self.data = data
        self.device = data.targets.device

    def __len__(self) -> int:
        return len(self.data.targets)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return features [B, D] and targets [B] of `rows` (int64 [B], on the device); `generator` is unused."""
        return self.data.features[rows], self.data.targets[rows]

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same, in order."""
        for part in rows.split(max(batch_size, _LEAST_ROWS)):
            yield self.data.features[part], self.data.targets[part]

    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of predictions [B, 1], float32."""
        return F.mse_loss(predictions.float().squeeze(1), targets)

    def sums(self, predictions: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """`scores` summed over the batch, float64 [1]; `loss` is the batch mean."""
        return (loss.double() * len(targets)).reshape(1)
