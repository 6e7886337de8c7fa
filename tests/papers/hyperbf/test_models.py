"""Properties of every arm of the HyperBF paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stages.evaluation.cost import flops_per_sample
from stages.papers.hyperbf import HyperBF, ViT
from stages.papers.hyperbf.findings import COMMON, HYPERBF, LAST_COMMIT_HYPERBF, LAST_COMMIT_VIT, VIT
from tests.papers.hyperbf.conftest import OWN, SMALL

TABLE_OF_224: dict[str, Any] = {"position_image_size": 224}
# Image size, arguments of ViT and of HyperBF, and the counts for 10, 100 and 200 classes: computed from shapes, and
# two of them by running the authors' code (10 classes, long table, 20 and 20).
COUNTS = {
    "20-20-as-run": (
        (32, TABLE_OF_224, TABLE_OF_224),
        (12_182_874, 12_252_084, 12_328_984),
        (12_179_806, 12_249_016, 12_325_916),
    ),
    "20-20": ((32, {}, {}), (9_823_578, 9_892_788, 9_969_688), (9_820_510, 9_889_720, 9_966_620)),
    "20-20-at-64": ((64, {}, {}), (None, None, 10_117_144), (None, None, 10_114_076)),
    "last-commit": (
        (32, LAST_COMMIT_VIT, LAST_COMMIT_HYPERBF),
        (18_207_914, 18_277_124, 18_354_024),
        (14_486_842, 14_556_052, 14_632_952),
    ),
}


def count(model_class: type[nn.Module], **arguments: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model_class(**COMMON | arguments).parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_equal_the_ones_computed_from_shapes(name: str) -> None:
    (size, vit, hyperbf), vit_counts, hyperbf_counts = COUNTS[name]
    for classes, of_vit, of_hyperbf in zip((10, 100, 200), vit_counts, hyperbf_counts, strict=True):
        if of_vit is not None:
            shape = {"image_size": size, "num_classes": classes}
            assert count(ViT, **shape, **VIT | vit) == of_vit
            assert count(HyperBF, **shape, **HYPERBF | hyperbf) == of_hyperbf


@pytest.mark.parametrize("wide", [20, 1500])
def test_work_equals_the_counted_products(wide: int) -> None:
    """Patches, qkv, scores and mixing, projection, feed-forward, head; attention in the padded width that is run."""
    tokens, dim, head_dim, heads = 65, 768, 192, 4
    padded = 200  # head_dim and the key's norm, to a multiple of 8
    patches = 2 * 64 * (3 * 16) * dim
    linear = 2 * tokens * dim * (3 * dim + dim)
    feedforward = 2 * tokens * (2 * dim * wide)
    plain = patches + 4 * (linear + feedforward + 2 * 2 * tokens**2 * dim) + 2 * dim * 10
    transform = 2 * 2 * heads * tokens * head_dim**2
    augmented = 4 * (2 * 2 * tokens**2 * heads * (padded - head_dim) + transform)
    shape = {"image_size": 32, "num_classes": 10}
    with torch.device("meta"):
        vit = ViT(**COMMON | shape | VIT | {"hidden_dim": wide})
        hyperbf = HyperBF(**COMMON | shape | HYPERBF | {"num_centers": wide})
    assert flops_per_sample(vit, (3, 32, 32)) == plain
    assert flops_per_sample(hyperbf, (3, 32, 32)) == plain + augmented


@pytest.mark.parametrize("name", OWN)
def test_linear_layers_start_without_bias_and_tokens_at_zero(name: str) -> None:
    model_class, own = OWN[name]
    model = model_class(**SMALL | own)
    tensors = dict(model.named_parameters())
    zero = {name for name, p in tensors.items() if p.abs().max() == 0}
    linear = {f"{name}.bias" for name, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}
    norms = {f"{name}.bias" for name, m in model.named_modules() if isinstance(m, nn.LayerNorm)}
    assert zero == linear | norms | {"embedding.class_token", "embedding.positions"}
