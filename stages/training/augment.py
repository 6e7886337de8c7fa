"""Training batches from images that live on the device as uint8: crop and flip as reads of whole lines.

N images in all, B in a batch, C channels, H x W pixels; P lines and columns of padding on each side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.run import AugmentationSpec


class BatchAugmenter:
    """Zero padding and a random crop, then a random horizontal flip, as torchvision does it image by image.

    Only the batch is padded.  What is read is never a pixel but a line of W or a whole image, which are copied as
    blocks; the flip chooses for each image between the batch and its mirror image.
    """

    def __init__(self, images: Tensor, spec: AugmentationSpec) -> None:
        """`images`: uint8 [N, C, H, W]."""
        self.images, self.spec = images, spec

    def batch(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 [B, C, H, W] of the images in `rows` (int64 [B], on the images' device).

        Offsets and flips come from `generator` alone, one of that device, in a fixed order: nothing is copied to a GPU.
        """
        batch = self.images.index_select(0, rows)
        if self.spec == AugmentationSpec():
            return batch
        count, device, padding = len(rows), batch.device, self.spec.crop_padding
        offsets = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator, device=device)
        if padding:
            batch = _crop(F.pad(batch, [padding] * 4), batch.shape, *offsets.unsqueeze(-1))
        if self.spec.horizontal_flip:
            flipped = torch.rand(count, generator=generator, device=device) < 0.5
            chosen = torch.arange(count, device=device) + count * flipped
            batch = torch.cat([batch, batch.flip(-1)]).index_select(0, chosen)
        return batch


def _crop(padded: Tensor, shape: torch.Size, top: Tensor, left: Tensor) -> Tensor:
    """Windows of `shape` [B, C, H, W] at `top` and `left` (int64 [B, 1, 1]) of `padded` [B, C, H + 2P, W + 2P]."""
    _, channels, _, width = shape
    rows, columns = padded.shape[2:]
    image, channel, line = (torch.arange(size, device=padded.device) for size in shape[:3])
    number = (image.view(-1, 1, 1) * channels + channel.view(-1, 1)) * rows + top + line  # [B, C, H], of the line
    lines = padded.flatten().unfold(0, width, 1)  # all that begin anywhere, without a copy
    return lines.index_select(0, (number * columns + left).flatten()).view(shape)
