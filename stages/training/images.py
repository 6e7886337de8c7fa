"""Image classification: the batches that the loop trains on, and its measurements.

N images in all, B in a batch, C channels, H x W pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.ops.normalize import Normalization
from stages.run import Protocol
from stages.training.augment import BatchAugmenter


@dataclass(frozen=True)
class LabelledImages:
    """uint8 [N, C, H, W] and int64 [N], on one device."""

    images: Tensor
    labels: Tensor


class ImageClassification:
    """Cross entropy and accuracy over `data`; training batches are augmented by the protocol."""

    scores: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, data: LabelledImages, protocol: Protocol) -> None:
        self.data, self.protocol = data, protocol
        self.device = data.images.device
        self._normalize = Normalization(protocol.mean, protocol.std, data.images.shape[1:], self.device)

    def __len__(self) -> int:
        return len(self.data.labels)

    @cached_property
    def _augmenter(self) -> BatchAugmenter:
        return BatchAugmenter(self.data.images, self.protocol.augmentation)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs float32 [B, C, H, W] and labels int64 [B] of `rows` (int64 [B], on the device)."""
        return self._normalize(self._augmenter.batch(rows, generator)), self.data.labels[rows]

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same without augmentation, in order."""
        for part in rows.split(batch_size):
            yield self._normalize(self.data.images.index_select(0, part)), self.data.labels[part]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of logits [B, K], float32."""
        return F.cross_entropy(logits.float(), labels)

    def sums(self, logits: Tensor, labels: Tensor, loss: Tensor) -> Tensor:
        """`scores` summed over the batch, float64 [2]; `loss` is the batch mean."""
        correct = (logits.argmax(1) == labels).sum()
        return torch.stack([loss.double() * len(labels), correct.double()])
