"""Training batches from images that live on the device as uint8: crop and flip as one gather.

N images in all, B in a batch, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.run import AugmentationSpec


class BatchAugmenter:
    """Zero padding and a random crop, then a random horizontal flip, as torchvision does it image by image.

    The padded set is made once; a batch is one indexed read, of `H x W` windows at random offsets whose columns run
    backwards where the image is flipped.
    """

    def __init__(self, images: Tensor, spec: AugmentationSpec) -> None:
        """`images`: uint8 [N, C, H, W]."""
        self.spec = spec
        self.height, self.width = images.shape[2:]
        self.padded = F.pad(images, [spec.crop_padding] * 4) if spec.crop_padding else images

    def batch(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 [B, C, H, W] of the images in `rows` (int64 [B], on the images' device).

        Offsets and flips come from `generator` alone, one of that device, in a fixed order: nothing is copied to a GPU.
        """
        count, device = len(rows), self.padded.device
        if self.spec == AugmentationSpec():
            return self.padded[rows]
        offsets = torch.randint(0, 2 * self.spec.crop_padding + 1, (2, count, 1), generator=generator, device=device)
        top, left = offsets.unbind()
        columns = left + torch.arange(self.width, device=device)  # [B, W]
        if self.spec.horizontal_flip:
            flipped = torch.rand(count, 1, generator=generator, device=device) < 0.5
            columns = torch.where(flipped, columns.flip(1), columns)
        lines = top + torch.arange(self.height, device=device)  # [B, H]
        channels = torch.arange(self.padded.shape[1], device=device)
        return self.padded[
            rows[:, None, None, None],
            channels[None, :, None, None],
            lines[:, None, :, None],
            columns[:, None, None, :],
        ]
