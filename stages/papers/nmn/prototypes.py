"""One layer from pixels to classes, whose weights can be seen as images: one prototype for each class.

The authors' web page inverts the prototypes of such a network (w -> -w) and names neither layers nor training; one
layer is our reading.  B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.ops.yat import ScaleReading, YatLinear


class DotPrototypes(nn.Module):
    """Dot-product units, logits = W x + b.  Images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.units: nn.Linear = nn.Linear(in_channels * image_size**2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.units(images.flatten(start_dim=1))


class YatPrototypes(nn.Module):
    """Yat units, logits = (w·x + b)² s / (‖w − x‖² + ε).  Images [B, C, S, S] -> logits [B, K], none negative."""

    def __init__(
        self, *, image_size: int, in_channels: int, num_classes: int, scale: ScaleReading, epsilon: float
    ) -> None:
        super().__init__()
        self.units: nn.Linear = YatLinear(in_channels * image_size**2, num_classes, scale=scale, epsilon=epsilon)

    def forward(self, images: Tensor) -> Tensor:
        return self.units(images.flatten(start_dim=1))
