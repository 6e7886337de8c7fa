"""Parts that the image networks share: connections, normalisation, the shortcut without parameters, the output layer.

A connection is everything between two sums: the activation of its inputs, if it activates them, and the linear map.
Weights are He normal, biases zero (section 5).  B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.dac import DACConv2d
from stages.ops.mba import MBA

Norm = TypeVar("Norm", nn.BatchNorm1d, nn.BatchNorm2d)

Connect = Callable[[int, int, int], nn.Module]
"""(input channels, output channels, stride) -> a 3 x 3 connection."""


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A linear map without bias, because either BN or a connection with its own biases follows."""
    conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv


def relu3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Module:
    """The baseline's connection, from its input on: ReLU, biased by the shift of the BN before it, then convolution."""
    return nn.Sequential(nn.ReLU(), conv3x3(in_channels, out_channels, stride))


def dac3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Module:
    """Equation 5, padded by 1."""
    return DACConv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1)


class SharedBiasConv2d(nn.Module):
    """Pre-activation with shared biases, the ablation of Table 3:  Σ_ab Σ_j w_abij φ(b_j + z_(h+a)(k+b)j)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(in_channels))
        self.conv = conv3x3(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv((self.bias.view(-1, 1, 1) + x).relu())


def mba3x3(copies: int) -> Connect:
    """Equation 3 over an image: the convolution reads K activated copies of each channel."""

    def connect(in_channels: int, out_channels: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(MBA(in_channels, copies), conv3x3(copies * in_channels, out_channels, stride))

    return connect


def batch_norm(channels: int, *, has_shift: bool) -> nn.BatchNorm2d:
    """BN, or the paper's BN′ without a shift, which the biases of the next connection replace (section 4)."""
    norm = nn.BatchNorm2d(channels)
    return norm if has_shift else without_shift(norm)


def without_shift(norm: Norm) -> Norm:
    """Make BN′: the same normalisation without its shift, like `bias=False` in newer releases of PyTorch."""
    norm.register_parameter("bias", None)
    return norm


class Shortcut(nn.Module):
    """He et al.'s option A: every `stride`-th pixel, new channels zero.  [B, C, S, S] -> [B, C', S / stride, ...].

    The text doesn't say which option; Table 2's operations match this one.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = out_channels - in_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def output_layer(channels: int, num_classes: int) -> nn.Module:
    """Global average pooling and a fully connected layer.  [B, C, S, S] -> logits [B, K]."""
    linear = nn.Linear(channels, num_classes)
    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear)


def check_image_size(image_size: int) -> None:
    """Check that two layers can halve the image.

    Raises:
        ValueError: the image can't be halved twice.
    """
    if image_size < 4:
        raise ValueError(f"image_size is {image_size}; expected at least 4, since two layers halve the image")


def residual_plan(depth: int, width: int) -> list[tuple[int, int, int]]:
    """(input channels, output channels, stride) of every block: three stages of n blocks, `width` doubling (section 5).

    Raises:
        ValueError: `depth` is not 6n + 2.
    """
    n = (depth - 2) // 6
    if n < 1 or depth != 6 * n + 2:
        raise ValueError(f"depth is {depth}; expected 6n + 2 layers, such as 20, 32, 44 or 56")
    plan = [(width, width, 1)] * n
    for channels in (width, 2 * width):
        plan += [(channels, 2 * channels, 2)] + [(2 * channels, 2 * channels, 1)] * (n - 1)
    return plan
