"""Training batches from images that live on the device as uint8: crop and flip as reads of whole lines.

N images in all, B in a batch, C channels, H x W pixels; P lines and columns of padding on each side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.run import AugmentationSpec


@dataclass(frozen=True)
class Draws:
    """Draw each image's window: its upper and left edge in the padded image, int64 [2, B], and whether it
    is flipped, bool [B].  None: nothing is cropped, or flipped.
    """

    offsets: Tensor | None
    flipped: Tensor | None


class BatchAugmenter:
    """Zero padding and a random crop, then a random horizontal flip, as torchvision does it image by image.

    Only the batch is padded.  What is read is never a pixel but a line of W or a whole image, which are copied as
    blocks; the flip chooses for each image between the batch and its mirror image.
    """

    def __init__(self, images: Tensor, spec: AugmentationSpec) -> None:
        """`images`: uint8 [N, C, H, W]."""
        self.images, self.spec = images, spec
        channels, height, width = images.shape[1:]
        rows, self._columns = (size + 2 * spec.crop_padding for size in (height, width))
        lines = torch.arange(channels * rows, device=images.device).view(channels, rows)[:, :height]
        self._starts = lines.flatten() * self._columns  # int64 [C * H], of a window's lines in a padded image

    def draw(self, count: int, generator: torch.Generator) -> Draws:
        """Offsets and flips of so many images, from `generator` alone, one of the images' device, in a fixed order:
        nothing is copied to a GPU.
        """
        if self.spec == AugmentationSpec():
            return Draws(None, None)
        device, most = self.images.device, 2 * self.spec.crop_padding
        offsets = torch.randint(0, most + 1, (2, count), generator=generator, device=device)
        if not self.spec.horizontal_flip:
            return Draws(offsets, None)
        return Draws(offsets, torch.rand(count, generator=generator, device=device) < 0.5)

    def batch(self, rows: Tensor, draws: Draws) -> Tensor:
        """uint8 [B, C, H, W] of the images in `rows` (int64 [B], on the images' device)."""
        batch = self.images.index_select(0, rows)
        places = torch.arange(len(rows), device=batch.device)
        if draws.offsets is not None and self.spec.crop_padding:
            batch = self._crop(batch, places, *draws.offsets)
        if draws.flipped is not None:
            batch = torch.cat([batch, batch.flip(-1)]).index_select(0, places + len(rows) * draws.flipped)
        return batch

    def _crop(self, batch: Tensor, places: Tensor, top: Tensor, left: Tensor) -> Tensor:
        """The windows at `top` and `left` of the padded images; `places` are those in the batch, all int64 [B]."""
        padded = F.pad(batch, [self.spec.crop_padding] * 4)
        begins = places * padded[0].numel() + top * self._columns + left
        lines = padded.flatten().unfold(0, batch.shape[-1], 1)  # all of W pixels that begin anywhere, without a copy
        return lines.index_select(0, (begins.unsqueeze(1) + self._starts).flatten()).view(batch.shape)
