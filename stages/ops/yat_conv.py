"""The Yat convolution                                                         (NMN architecture guide; number is ours).

    (Yat-Conv(K, I))_{i,j} = ⟨K, I_{i,j}⟩² / (‖K − I_{i,j}‖² + ε)          (5)

for every kernel K of an output channel and patch I_{i,j}.  The functions also take the dense layer's scale and bias,
s (⟨K, I⟩ + b)², which the guide doesn't print for convolutions: s = 1 and b = 0 give equation 5.  Patches at the border
include the padding: its zeros add nothing to ⟨K, I⟩ and ‖I‖², while ‖K‖² counts the whole kernel.  B samples, C input
channels, N output channels, G groups, H x W pixels.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from stages.ops.patches import Size, patch_norms
from stages.ops.precision import widen, without_autocast
from stages.ops.yat import Factor, ScaleReading, YatEpsilon, YatScale, yat_ratio

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


def yat_conv2d_reference(
    image: Tensor,
    k: Tensor,
    b: Tensor,
    s: Factor,
    eps: Factor,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Tensor:
    """Equation 5 with s and b of equation 1.  image: [B, C, H, W]; k: [N, C / G, kH, kW]; b: [N]."""
    padded = F.pad(image, (padding,) * 4)
    reach_y, reach_x = (dilation * (size - 1) + 1 for size in k.shape[2:])
    rows = []
    for i in range(0, padded.shape[2] - reach_y + 1, stride):
        row = []
        for j in range(0, padded.shape[3] - reach_x + 1, stride):
            patch = padded[:, :, i : i + reach_y : dilation, j : j + reach_x : dilation].unflatten(1, (groups, 1, -1))
            kernels = k.unflatten(0, (groups, -1))  # [G, N / G, C / G, kH, kW], with patches [B, G, 1, C / G, kH, kW]
            dot = (kernels * patch).sum((-3, -2, -1)).flatten(1)
            distance = (kernels - patch).square().sum((-3, -2, -1)).flatten(1)
            row.append(s * (dot + b).square() / (distance + eps))
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


def yat_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    scale: Factor = 1.0,
    epsilon: Factor = 1e-5,
) -> Tensor:
    """Equation 5 by one convolution; arguments as in `F.conv2d`.  x: [B, C, H, W]; weight: [N, C / G, kH, kW]."""
    with without_autocast(x.device):
        wide_x, weight, bias = widen(x, weight, bias)
        aligned = F.conv2d(wide_x, weight, bias, stride, padding, dilation, groups)
        patches = patch_norms(wide_x, weight.shape[2:], _pair(stride), padding, _pair(dilation), groups)
        kernels = weight.square().sum((1, 2, 3))
        if bias is not None:
            kernels = kernels + 2 * bias
        squared_norms = (patches.unsqueeze(2) + kernels.view(groups, -1, 1, 1)).flatten(1, 2)
        return yat_ratio(aligned, squared_norms, scale, epsilon).to(x.dtype)


class YatConv2d(nn.Conv2d):
    """Equation 5 in place of `nn.Conv2d` and its activation, times a scale.  [B, C, H, W] -> [B, out_channels, H', W'].

    n of the guide's scale is `out_channels`.  Weights and biases start as those of `nn.Conv2d`, as in the package.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        scale: ScaleReading = "guide",
        epsilon: float = 1e-5,
        learnable_epsilon: bool = False,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        self.scale = YatScale(out_channels, scale, device, dtype)
        self.epsilon = YatEpsilon(epsilon, learnable_epsilon, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        stride: Any = self.stride
        padding: Any = self.padding
        dilation: Any = self.dilation
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return yat_conv2d(
            x,
            self.weight,
            self.bias,
            stride,
            padding,
            dilation,
            self.groups,
            scale=self.scale(),
            epsilon=self.epsilon(),
        )
