"""Dendrite-activated connections: a bias for each pair of output and input    (Metta et al. 2024, eqs. 4 and 5).

    f_i(z)     = Σ_j w_ij φ(b_ij + z_j)                              (4)  dense
    f_hki(z)   = Σ_ab Σ_j w_abij φ(b_ij + z_(h+a)(k+b)j)             (5)  convolution
    f_hki(z)   = Σ_ab Σ_j w_abij φ(b_abij + z_(h+a)(k+b)j)                fully unshared (section 4)

φ is ReLU.  The connection activates its own input, so it replaces both activation and linear layer, and the layer
before it outputs its sums unchanged.  It has no bias on its output.  The convolution activates first and then pads
with zeros, so positions outside the image add 0, just like in a network that activates after each layer.

B batch, m inputs or input channels, n outputs or output channels, H height, W width, L kernel size.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.dac_recompute import dac_taps

Size = int | tuple[int, int]


def dac_linear_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equation 4 as printed.  x: [..., m]; weight, bias: [n, m]; returns [..., n]."""
    z, w, b = x.unsqueeze(-2), weight, bias
    return (w * (b + z).relu()).sum(-1)


def dac_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`dac_linear_reference` without its [..., n, m] intermediate.

    Raises:
        ValueError: weight and bias differ in shape, or don't match the last axis of x.
    """
    if weight.ndim != 2 or weight.shape != bias.shape or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x, weight, bias have shapes {[*x.shape]}, {[*weight.shape]}, {[*bias.shape]}; "
            "expected [..., m], [n, m], [n, m]"
        )
    # A dense layer is a 1 x 1 convolution over one image, whose single row of pixels are the samples.
    pixels = x.reshape(1, 1, -1, x.shape[-1]).permute(0, 3, 1, 2)
    f = dac_taps(pixels, weight[..., None, None], bias, (0, 0), (1, pixels.shape[3]))
    return f.permute(0, 2, 3, 1).reshape(*x.shape[:-1], weight.shape[0])


def dac_conv2d_reference(x: Tensor, weight: Tensor, bias: Tensor, stride: Size = 1, padding: Size = 0) -> Tensor:
    """Equation 5 as printed: a sum over kernel positions a, b and input channels j of activated, shifted maps.

    x: [B, m, H, W]; weight: [n, m, L, L]; bias: [n, m], or [n, m, L, L] fully unshared; returns [B, n, H', W'].
    """
    (down, right), (top, left) = _pair(stride), _pair(padding)
    height, width = _output_size(x, weight, stride, padding)
    f = torch.zeros((), dtype=x.dtype, device=x.device)
    for a in range(weight.shape[2]):
        for b in range(weight.shape[3]):
            bias_ab = bias if bias.ndim == 2 else bias[:, :, a, b]
            y = (bias_ab[:, :, None, None] + x.unsqueeze(1)).relu()  # [B, n, m, H, W]
            y = F.pad(y, (left, left, top, top))
            y = y[..., a : a + down * (height - 1) + 1 : down, b : b + right * (width - 1) + 1 : right]
            f = f + (weight[:, :, a, b, None, None] * y).sum(2)
    return f


def dac_conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: Size = 1, padding: Size = 0) -> Tensor:
    """`dac_conv2d_reference` without its [B, n, m, H, W] intermediate.

    A convolution with stride s is the sum of s x s convolutions without stride, one for each subsampled image: pixel r
    meets only the kernel positions a with a - padding ≡ r (mod s).

    Raises:
        ValueError: shapes don't match, or the kernel doesn't fit the padded image.
    """
    _check_conv(x, weight, bias)
    (down, right), (top, left) = _pair(stride), _pair(padding)
    size = _output_size(x, weight, stride, padding)
    parts = []
    for row in range(down):
        for column in range(right):
            a, b = (row + top) % down, (column + left) % right
            taps = weight[:, :, a::down, b::right]
            if taps.numel() == 0 or row >= x.shape[2] or column >= x.shape[3]:
                continue
            tap_bias = bias if bias.ndim == 2 else bias[:, :, a::down, b::right]
            before = ((top + row - a) // down, (left + column - b) // right)
            parts.append(dac_taps(x[:, :, row::down, column::right], taps, tap_bias, before, size))
    if not parts:  # every kernel position meets only padding
        return x.new_zeros(x.shape[0], weight.shape[0], *size)
    return reduce(torch.add, parts)


def _pair(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _output_size(x: Tensor, weight: Tensor, stride: Size, padding: Size) -> tuple[int, int]:
    (down, right), (top, left) = _pair(stride), _pair(padding)
    height = (x.shape[2] + 2 * top - weight.shape[2]) // down + 1
    width = (x.shape[3] + 2 * left - weight.shape[3]) // right + 1
    if height < 1 or width < 1:
        raise ValueError(
            f"kernel {[*weight.shape[2:]]} doesn't fit an image of {[*x.shape[2:]]} with padding {(top, left)}"
        )
    return height, width


def _check_conv(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    fits = x.ndim == weight.ndim == 4 and x.shape[1] == weight.shape[1]
    if not fits or bias.shape not in (weight.shape[:2], weight.shape):
        raise ValueError(
            f"x, weight, bias have shapes {[*x.shape]}, {[*weight.shape]}, {[*bias.shape]}; "
            "expected [B, m, H, W], [n, m, L, L] and [n, m] or [n, m, L, L]"
        )
