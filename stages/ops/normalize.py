"""Pixels to network input:  y = (x / 255 - mean) / std,  per channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalization:
    """The equation for many batches: its constants are copied to `device` once, as a GPU waits for each copy.

    `mean` and `std` are in units of the full range [0, 1].
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device).view(1, -1, 1, 1)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).view(1, -1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [N, C, H, W] to float32 [N, C, H, W]."""
        return torch.addcmul(self.shift, images.float(), self.scale)
