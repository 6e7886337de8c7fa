"""The paper's models at a size for tests, and the inputs of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


@dataclass(frozen=True)
class SmallModel:
    """A model class with its small keywords; `build` takes changes to them."""

    model_class: type[nn.Module]
    keywords: dict[str, Any]

    def build(self, **changes: Any) -> nn.Module:
        torch.manual_seed(0)
        return self.model_class(**self.keywords | changes)

    @property
    def reads_text(self) -> bool:
        return "vocabulary_size" in self.keywords

    def inputs(self, n: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        if self.reads_text:
            return torch.randint(13, (n, 8), generator=generator)
        return torch.randn(n, 3, 16, 16, generator=generator)

    def targets(self, n: int) -> Tensor:
        """One class for each image, or for each token."""
        generator = torch.Generator().manual_seed(2)
        return torch.randint(13, (n, 8), generator=generator) if self.reads_text else torch.arange(n) % 5


SMALL = {
    "resnet": SmallModel(ResNet18, IMAGE),
    "aether-resnet": SmallModel(AetherResNet18, IMAGE | YAT | {"features": 16}),
    "aether-resnet-package-scale": SmallModel(AetherResNet18, IMAGE | YAT | {"features": 16, "scale": "multiplier"}),
    "aether-resnet-printed": SmallModel(PrintedAetherResNet18, IMAGE | {"features": 16, "epsilon": 0.01}),
    "yat-mlp": SmallModel(YatMLP, PIXELS | YAT | {"hidden1": 24, "hidden2": 12, "scale": "multiplier"}),
    "yat-prototypes": SmallModel(YatPrototypes, PIXELS | YAT | {"scale": "multiplier"}),
    "dot-prototypes": SmallModel(DotPrototypes, PIXELS),
    "gpt2": SmallModel(GPT2, TEXT),
    "aether-gpt": SmallModel(AetherGPT, TEXT | YAT | {"attention": "yat"}),
    "aether-gpt-dot": SmallModel(AetherGPT, TEXT | YAT | {"attention": "dot"}),
    "yat-gpt": SmallModel(YatGPT, TEXT | YAT),
    "post-norm-gpt": SmallModel(PostNormGPT, TEXT),
}


@pytest.fixture(params=SMALL)
def small_model(request: pytest.FixtureRequest) -> SmallModel:
    return SMALL[request.param]


@pytest.fixture
def small_models() -> dict[str, SmallModel]:
    return SMALL


@pytest.fixture
def build_small() -> Callable[..., nn.Module]:
    """`build_small("gpt2", depth=1)`."""
    return lambda name, **changes: SMALL[name].build(**changes)
