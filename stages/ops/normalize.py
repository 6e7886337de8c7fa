"""Pixels to network input:  y = (x / 255 - mean) / std,  per channel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 [N, C, H, W] to float32 [N, C, H, W]; `mean` and `std` are in units of the full range [0, 1]."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device).view(1, -1, 1, 1)
    return torch.addcmul(shift, images.float(), scale)
