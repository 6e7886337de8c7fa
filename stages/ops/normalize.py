"""Pixels to network input:  y = (x / 255 - mean) / std,  per channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalization:
    """The equation for many batches: its constants are copied to `device` once, as a GPU waits for each copy.

    `mean` and `std` are in units of the full range [0, 1], and images have `shape`, [C, H, W].  The constants are maps
    of that shape, because PyTorch goes number by number through an `addcmul` of single ones with a stride of 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], shape: Sequence[int], device: torch.device) -> None:
        self.scale, self.shift = (
            torch.tensor(numbers, device=device).view(-1, 1, 1).expand(*shape).contiguous()
            for numbers in ([1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)])
        )

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [N, C, H, W] to float32 [N, C, H, W]."""
        wide = images.float()
        return torch.addcmul(self.shift, wide, self.scale, out=wide)
