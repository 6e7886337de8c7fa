"""The paper's models at test size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stages.papers.nmn import (
    GPT2,
    AetherGPT,
    AetherResNet18,
    DotPrototypes,
    PostNormGPT,
    PrintedAetherResNet18,
    ResNet18,
    YatGPT,
    YatMLP,
    YatPrototypes,
)

IMAGE = {"image_size": 16, "in_channels": 3, "num_classes": 5, "width": 4}
PIXELS = {"image_size": 16, "in_channels": 3, "num_classes": 5}
TEXT = {"vocabulary_size": 13, "context": 8, "width": 12, "depth": 2, "num_heads": 3, "dropout": 0.0}
YAT = {"scale": "guide", "epsilon": 0.01}
SMALL: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "resnet": (ResNet18, IMAGE),
    "aether-resnet": (AetherResNet18, IMAGE | YAT | {"features": 16}),
    "aether-resnet-package-scale": (AetherResNet18, IMAGE | YAT | {"features": 16, "scale": "multiplier"}),
    "aether-resnet-printed": (PrintedAetherResNet18, IMAGE | {"features": 16, "epsilon": 0.01}),
    "yat-mlp": (YatMLP, PIXELS | YAT | {"hidden1": 24, "hidden2": 12, "scale": "multiplier"}),
    "yat-prototypes": (YatPrototypes, PIXELS | YAT | {"scale": "multiplier"}),
    "dot-prototypes": (DotPrototypes, PIXELS),
    "gpt2": (GPT2, TEXT),
    "aether-gpt": (AetherGPT, TEXT | YAT | {"attention": "yat"}),
    "aether-gpt-dot": (AetherGPT, TEXT | YAT | {"attention": "dot"}),
    "yat-gpt": (YatGPT, TEXT | YAT),
    "post-norm-gpt": (PostNormGPT, TEXT),
}


@pytest.fixture
def build_small() -> Callable[..., nn.Module]:
    """For example `build_small("gpt2", depth=1)`."""

    def build(name: str, **changes: Any) -> nn.Module:
        torch.manual_seed(0)
        model_class, keywords = SMALL[name]
        return model_class(**keywords | changes)

    return build
