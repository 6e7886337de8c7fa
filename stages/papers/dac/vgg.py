"""Plain convolutional networks like VGG, base and DAC    (DAC paper, section 5).

    base   (conv → BN → ReLU), d - 1 times → pooling → fully connected
    DAC    conv → BN′ → (DAC → BN′), d - 2 times → ReLU → pooling → fully connected

d layers including the output; the channels double twice, and the first convolution of each new width has stride 2 (the
text doesn't say how maps shrink).  The DAC network's last BN keeps its shift, for the reason given in `resnet_v1`.
B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.dac.layers import batch_norm, check_image_size, conv3x3, dac3x3, output_layer


def plain_plan(depth: int, in_channels: int, width: int) -> list[tuple[int, int, int]]:
    """(input channels, output channels, stride) of the convolutions: n + 1, n and n of them, `width` doubling.

    Raises:
        ValueError: `depth` is not 3n + 2.
    """
    n = (depth - 2) // 3
    if n < 1 or depth != 3 * n + 2:
        raise ValueError(f"depth is {depth}; expected 3n + 2 layers, such as 14 or 20")
    plan = [(in_channels, width, 1)] + [(width, width, 1)] * n
    for channels in (width, 2 * width):
        plan += [(channels, 2 * channels, 2)] + [(2 * channels, 2 * channels, 1)] * (n - 1)
    return plan


class VGG(nn.Module):
    """The baseline.  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, depth: int, width: int) -> None:
        super().__init__()
        check_image_size(image_size)
        layers: list[nn.Module] = []
        for channels, out_channels, stride in plain_plan(depth, in_channels, width):
            layers += [conv3x3(channels, out_channels, stride), batch_norm(out_channels, has_shift=True), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = output_layer(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images))


class DACVGG(nn.Module):
    """Unshared biases.  Normalised images [B, C, S, S] -> logits [B, K].

    `has_last_shift`: the BN before the last ReLU keeps its shift, that ReLU's only bias.
    """

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        depth: int,
        width: int,
        has_last_shift: bool = True,
    ) -> None:
        super().__init__()
        check_image_size(image_size)
        (_, first, _), *plan = plain_plan(depth, in_channels, width)
        layers: list[nn.Module] = [conv3x3(in_channels, first)]
        for channels, out_channels, stride in plan:
            layers += [batch_norm(channels, has_shift=False), dac3x3(channels, out_channels, stride)]
        layers += [batch_norm(4 * width, has_shift=has_last_shift), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = output_layer(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images))
