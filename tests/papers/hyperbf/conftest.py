"""The paper's architectures at test size, and their arguments as required by the paper's tables."""

from typing import Any

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
