"""Yat perceptron for MNIST, as the authors' repository trains it (src/nmn/torch/examples/vision/mnist.py).

    logits = V Yat₂(Yat₁(pixels)) + c

No activation and no normalisation.  B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.ops.yat import ScaleReading, YatLinear


class YatMLP(nn.Module):
    """Images [B, C, S, S] -> logits [B, K]; `scale` and `epsilon` are those of both Yat layers."""

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        hidden1: int,
        hidden2: int,
        scale: ScaleReading,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.first = YatLinear(in_channels * image_size**2, hidden1, scale=scale, epsilon=epsilon)
        self.second = YatLinear(hidden1, hidden2, scale=scale, epsilon=epsilon)
        self.head = nn.Linear(hidden2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images.flatten(start_dim=1))))
