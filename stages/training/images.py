"""Image classification: batches of crops and flips that the loop trains on, and its measurements.

N images in all, B in a batch, C channels, H x W pixels, K classes; P lines and columns of padding on each side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.ops.normalize import Normalization
from stages.run import AugmentationSpec, Protocol


class BatchAugmenter:
    """Zero padding and a random crop, then a random horizontal flip, like torchvision's but for a whole batch.

    Only the batch is padded.  Reads copy lines of W pixels or whole images as blocks; a flip takes each image either
    from the batch or from its mirror image.
    """

    def __init__(self, images: Tensor, spec: AugmentationSpec) -> None:
        """`images`: uint8 [N, C, H, W]."""
        self.images, self.spec = images, spec
        channels, height, width = images.shape[1:]
        rows, self._columns = (size + 2 * spec.crop_padding for size in (height, width))
        lines = torch.arange(channels * rows, device=images.device).view(channels, rows)[:, :height]
        self._starts = lines.flatten() * self._columns  # int64 [C * H], of a window's lines in a padded image

    def batch(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return uint8 [B, C, H, W], images in `rows` (int64 [B]) with draws from `generator`, all on one device."""
        batch = self.images.index_select(0, rows)
        if self.spec == AugmentationSpec():
            return batch
        count, device = len(rows), batch.device
        places = torch.arange(count, device=device)
        top, left = torch.randint(0, 2 * self.spec.crop_padding + 1, (2, count), generator=generator, device=device)
        if self.spec.crop_padding:
            batch = self._crop(batch, places, top, left)
        if self.spec.horizontal_flip:
            flipped = torch.rand(count, generator=generator, device=device) < 0.5
            batch = torch.cat([batch, batch.flip(-1)]).index_select(0, places + count * flipped)
        return batch

    def _crop(self, batch: Tensor, places: Tensor, top: Tensor, left: Tensor) -> Tensor:
        """Return the windows at `top` and `left` of padded images; `places` index the batch, all int64 [B]."""
        padded = F.pad(batch, [self.spec.crop_padding] * 4)
        begins = places * padded[0].numel() + top * self._columns + left
        lines = padded.flatten().unfold(0, batch.shape[-1], 1)  # all runs of W pixels, without a copy
        return lines.index_select(0, (begins.unsqueeze(1) + self._starts).flatten()).view(batch.shape)


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
