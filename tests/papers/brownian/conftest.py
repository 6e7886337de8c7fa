from collections.abc import Callable

import pytest
import torch

from stages.papers.brownian import ViT

Build = Callable[..., ViT]
SMALL = {
    "image_size": 12,
    "in_channels": 3,
    "num_classes": 5,
    "patch_size": 4,
    "dim": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 32,
}


@pytest.fixture
def small_vit() -> Build:
    """A function that builds a randomly initialised small model with any keyword changed."""

    def build(**changes: int) -> ViT:
        torch.manual_seed(0)
        return ViT(**SMALL | changes)

    return build
