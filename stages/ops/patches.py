"""Squared norms of the patches that a convolution's kernel meets; symbols as in `stages.ops.yat`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.utils import _pair

Size = int | tuple[int, int]


def patch_norms(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Size | str,
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Return ‖I_{i,j}‖² of each group's channels: [B, G, H', W'].

    It sums shifted maps, because a convolution with ones might run in TF32, which is too coarse for a distance.
    """
    pads = _pads(padding, kernel_size, dilation)
    energy = F.pad(x.unflatten(1, (groups, -1)).square().sum(2), pads)
    if tuple(dilation) == (1, 1):
        return F.avg_pool2d(energy, tuple(kernel_size), tuple(stride), divisor_override=1)  # a sum, not a mean
    height, width = (
        (length - d * (k - 1) - 1) // s + 1
        for length, k, s, d in zip(energy.shape[2:], kernel_size, stride, dilation, strict=True)
    )
    total = torch.zeros((), device=x.device, dtype=x.dtype)
    for i in range(0, dilation[0] * kernel_size[0], dilation[0]):
        for j in range(0, dilation[1] * kernel_size[1], dilation[1]):
            rows = slice(i, i + stride[0] * (height - 1) + 1, stride[0])
            columns = slice(j, j + stride[1] * (width - 1) + 1, stride[1])
            total = total + energy[:, :, rows, columns]
    return total


def _pads(padding: Size | str, kernel_size: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the padding on the left, right, top and bottom, as in `F.pad`.

    Raises:
        ValueError: `padding` is a word other than `same` and `valid`.
    """
    if padding == "valid":
        padding = 0
    if padding == "same":
        reaches = [d * (k - 1) for k, d in zip(kernel_size, dilation, strict=True)]
        return [part for reach in reversed(reaches) for part in (reach // 2, reach - reach // 2)]
    if isinstance(padding, str):
        raise ValueError(f"padding is {padding!r}; known words: same, valid")
    vertical, horizontal = _pair(padding)
    return [horizontal, horizontal, vertical, vertical]
