"""Properties of every arm of the HyperBF paper."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.evaluation.cost import flops_per_sample
from stages.papers.hyperbf import HyperBF, ViT
from stages.papers.hyperbf.findings import COMMON, HYPERBF, LAST_COMMIT_HYPERBF, LAST_COMMIT_VIT, VIT
from tests.papers.hyperbf.conftest import SMALL, Build
from tests.papers.properties import draw_images, loss_of_one_batch, moved_by_the_second, without_gradient

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


def test_one_batch_is_overfitted(small_model: Build) -> None:
    model = small_model()
    images, labels = draw_images(5), torch.arange(5)
    assert loss_of_one_batch(model, images, labels, torch.optim.Adam(model.parameters(), lr=0.01)) < 0.05


def test_every_parameter_but_the_unused_gets_a_gradient(small_model: Build) -> None:
    model = small_model()
    # At the very start attention sees equal positions and M = I; one step away from it nothing is special.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    F.cross_entropy(model(draw_images()), torch.arange(4)).backward()
    assert [name for name in without_gradient(model) if not name.endswith(".unused")] == []
    assert all(p.grad is None for name, p in model.named_parameters() if name.endswith(".unused"))


def test_a_sample_changes_only_its_own_logits(small_model: Build) -> None:
    model = small_model().double()
    images = draw_images(dtype=torch.float64)
    moved = moved_by_the_second(model, images)
    assert moved[1] > 1e-4
    assert moved[[0, 2, 3]].max() < 1e-12


def check_one_graph(model: nn.Module) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(draw_images()), model(draw_images()), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_every_arm_compiles_into_one_graph(small_model: Build) -> None:
    check_one_graph(small_model(depth=1))


def test_hyperbf_compiles_into_one_graph() -> None:
    check_one_graph(HyperBF(**SMALL | HYPERBF | {"depth": 1}))


def test_bfloat16_autocast_stays_near_float32(small_model: Build) -> None:
    model = small_model()
    with torch.no_grad():
        exact = model(draw_images())
        with torch.autocast("cpu", torch.bfloat16):
            low = model(draw_images())
    torch.testing.assert_close(low.float(), exact, rtol=0, atol=0.05)


def test_linear_layers_start_without_bias_and_tokens_at_zero(small_model: Build) -> None:
    model = small_model()
    tensors = dict(model.named_parameters())
    zero = {name for name, p in tensors.items() if p.abs().max() == 0}
    linear = {f"{name}.bias" for name, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}
    norms = {f"{name}.bias" for name, m in model.named_modules() if isinstance(m, nn.LayerNorm)}
    assert zero == linear | norms | {"embedding.class_token", "embedding.positions"}


@pytest.mark.parametrize(("model_class", "own"), [(ViT, VIT), (HyperBF, HYPERBF)])
def test_weights_start_with_pytorchs_mean_and_variance(model_class: type[nn.Module], own: dict[str, Any]) -> None:
    """Uniform within 1/√fan_in: mean 0, variance 1 / (3 fan_in)."""
    torch.manual_seed(0)
    model = model_class(**COMMON | {"image_size": 32, "num_classes": 10, "depth": 1} | own)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in, n = module.weight[0].numel(), module.weight.numel()
            # Five standard errors of the mean and of the variance of n uniform numbers.
            assert abs(module.weight.mean().item()) < 5 * math.sqrt(1 / (3 * fan_in * n)), name
            assert module.weight.var().item() * 3 * fan_in == pytest.approx(1, abs=5 * math.sqrt(0.8 / n)), name


def test_patches_and_heads_that_do_not_fit_are_refused(small_model: Build) -> None:
    with pytest.raises(ValueError, match="patch_size is 5; expected a divisor of the image's size, which is 12"):
        small_model(patch_size=5)
    with pytest.raises(ValueError, match="num_heads is 3; expected a divisor of"):
        small_model(num_heads=3)
