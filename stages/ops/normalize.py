"""Normalise pixels:  y = (x / 255 - mean) / std,  per channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalization:
    """Normalisation with constants that are copied to `device` only once, because a GPU waits for each copy.

    `mean` and `std` refer to pixels in [0, 1]; images have `shape`, [C, H, W].  The constants are expanded to it,
    because PyTorch doesn't vectorise `addcmul` if an operand has a stride of 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], shape: Sequence[int], device: torch.device) -> None:
        self.scale, self.shift = (
            torch.tensor(numbers, device=device).view(-1, 1, 1).expand(*shape).contiguous()
            for numbers in ([1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)])
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 [N, C, H, W] to float32 [N, C, H, W]."""
        wide = images.float()
        return torch.addcmul(self.shift, wide, self.scale, out=wide)
