"""The paper's architectures at a size for tests, and their arguments as the paper's tables need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stages.papers.hyperbf import HyperBF, HyperBFAsWritten, ViT
from stages.papers.hyperbf.findings import HYPERBF, VIT

SMALL = {
    "image_size": 12,
    "in_channels": 3,
    "num_classes": 5,
    "patch_size": 4,
    "dim": 16,
    "depth": 2,
    "num_heads": 2,
}
OWN: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "vit": (ViT, VIT | {"hidden_dim": 6, "has_unused_matrix": False}),
    "vit-as-run": (ViT, VIT | {"hidden_dim": 6, "scale_exponent": -0.8, "position_image_size": 28}),
    "hyperbf": (HyperBF, HYPERBF | {"feedforward_beta": 0.05}),
    "both-metrics": (HyperBF, HYPERBF | {"feedforward_beta": 0.05, "feedforward_metric": "factored"}),
    "free-metric": (HyperBF, HYPERBF | {"feedforward_beta": 0.05, "attention_metric": "free"}),
    "laplacian": (HyperBF, HYPERBF | {"feedforward_beta": 0.3, "kernel": "laplacian"}),
    "normalised": (HyperBF, HYPERBF | {"feedforward_beta": 0.25, "feedforward_normalised": True}),
    "long-table": (HyperBF, HYPERBF | {"feedforward_beta": 0.05, "position_image_size": 28}),
    "as-written": (HyperBFAsWritten, HYPERBF | {"feedforward_beta": 0.05}),
}

Build = Callable[..., nn.Module]


@pytest.fixture(params=OWN)
def small_model(request: pytest.FixtureRequest) -> Build:
    """Builds one of the arms small: 9 patches and a class token, 2 blocks; a data set's image stays 12 x 12."""
    model_class, own = OWN[request.param]

    def build(**changes: Any) -> nn.Module:
        torch.manual_seed(0)
        return model_class(**SMALL | own | changes)

    return build
