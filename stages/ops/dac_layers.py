"""Dendrite-activated connections as modules; equations, references and functions are in `stages.ops.dac`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from stages.ops.dac import Size, dac_conv2d, dac_linear


class DACLinear(nn.Module):
    """Equation 4 in place of ReLU and `nn.Linear`.  [..., in_features] -> [..., out_features].

    Weights are He normal, biases zero (section 5): until the first step it equals ReLU followed by a linear layer.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return dac_linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class DACConv2d(nn.Module):
    """Equation 5 in place of ReLU and `nn.Conv2d`.  [B, in_channels, H, W] -> [B, out_channels, H', W'].

    Weights are He normal, biases zero (section 5).  `is_fully_unshared` gives every weight its own bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        is_fully_unshared: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = _pair(kernel_size), _pair(stride), _pair(padding)
        self.is_fully_unshared = is_fully_unshared
        shape = (out_channels, in_channels, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        bias_shape = shape if is_fully_unshared else shape[:2]
        self.bias = nn.Parameter(torch.empty(bias_shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return dac_conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        sizes = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return f"{self.in_channels}, {self.out_channels}, {sizes}, is_fully_unshared={self.is_fully_unshared}"
