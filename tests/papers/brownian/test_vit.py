from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stages.optim.capture import select_layers
from stages.optim.cg_fac import CGFAC
from stages.optim.kfac import KFAC
from stages.optim.preconditioned import ATTENTION_LAYERS
from stages.papers.brownian import ViT
from stages.papers.brownian.walk import attention_transition
from tests.papers.properties import assert_equals, draw_images, renamed

Build = Callable[..., ViT]
GOLDEN = Path(__file__).parents[2] / "golden"
OUR_NAMES = {
    "patch_embed.proj": "patch_embedding",
    "pos_embed": "positions",
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.projection",
    "norm2": "mlp_norm",
    "mlp.fc1": "expand",
    "mlp.fc2": "contract",
}
OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "kfac": partial(KFAC, lr=0.1, damping=0.03, kl_clip=0.01, rest="adam", rest_lr=0.01),
    "cg-fac": partial(CGFAC, lr=0.1, damping=0.03, kl_clip=0.01, rest="adam", rest_lr=0.01),
    "cg-fac-per-sample": partial(
        CGFAC, lr=0.1, damping=0.03, kl_clip=0.01, rest="adam", rest_lr=0.01, reading="per-sample"
    ),
}


@pytest.fixture(scope="module")
def timm_vectors() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "brownian_timm.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def timm_twin(timm_vectors: dict[str, np.ndarray]) -> ViT:
    """Ours with timm's weights."""
    model = ViT(
        image_size=12, in_channels=3, num_classes=5, patch_size=4, dim=8, depth=2, num_heads=2, mlp_dim=16
    ).double()
    weights = renamed(timm_vectors, "vit/", OUR_NAMES)
    model.load_state_dict(weights | {"positions": weights["positions"][0]})
    return model


def test_equals_timm_in_logits_and_image_gradients(timm_twin: ViT, timm_vectors: dict[str, np.ndarray]) -> None:
    assert_equals(timm_twin, timm_vectors)


def test_transition_is_timms_attention_and_what_the_forward_pass_uses(
    timm_twin: ViT, timm_vectors: dict[str, np.ndarray]
) -> None:
    block = timm_twin.blocks[0]
    x = block.attention_norm(timm_twin.embed(torch.from_numpy(timm_vectors["images"])))
    q, k, v = block.attention.heads(x)
    transition = attention_transition(q, k)
    np.testing.assert_allclose(transition.detach().numpy(), timm_vectors["first_attention"], rtol=0, atol=1e-12)
    mixed = transition @ v
    expected = block.attention.projection(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(block.attention(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("classes", "dim", "mlp_dim"), [(10, 256, 512), (100, 192, 768)])
def test_parameters_are_those_of_the_shapes(classes: int, dim: int, mlp_dim: int) -> None:
    with torch.device("meta"):
        model = ViT(
            image_size=32,
            in_channels=3,
            num_classes=classes,
            patch_size=4,
            dim=dim,
            depth=4,
            num_heads=4,
            mlp_dim=mlp_dim,
        )
    attention = dim * 3 * dim + 3 * dim + dim * dim + dim
    mlp = dim * mlp_dim + mlp_dim + mlp_dim * dim + dim
    outside = 48 * dim + dim + 64 * dim + 2 * dim + dim * classes + classes
    assert sum(p.numel() for p in model.parameters()) == 4 * (attention + mlp + 4 * dim) + outside


def test_default_layers_are_the_projections_of_attention_and_nothing_else(small_vit: Build) -> None:
    assert list(select_layers(small_vit(), ATTENTION_LAYERS)) == [
        f"blocks.{block}.attention.{layer}" for block in (0, 1) for layer in ("qkv", "projection")
    ]


def test_positions_are_drawn_small_and_around_zero(small_vit: Build) -> None:
    positions = small_vit(dim=128, depth=1).positions
    assert abs(positions.mean().item()) < 4 * 0.02 / positions.numel() ** 0.5
    assert positions.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_arm_overfits_one_batch(name: str, small_vit: Build) -> None:
    model = small_vit()
    optimizer = OPTIMIZERS[name](model)
    images, labels = draw_images(5), torch.arange(5)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert F.cross_entropy(model(images), labels).item() < 0.1
