from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.optim.capture import select_layers
from stages.optim.preconditioned import ATTENTION_LAYERS
from stages.papers.brownian import ViT
from stages.papers.brownian.walk import attention_transition
from tests.papers.properties import assert_equals, renamed

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


@pytest.fixture(scope="module")
def timm_vectors() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "brownian_timm.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def timm_twin(timm_vectors: dict[str, np.ndarray]) -> ViT:
    """Our model with timm's weights."""
    model = ViT(
        image_size=12, in_channels=3, num_classes=5, patch_size=4, dim=8, depth=2, num_heads=2, mlp_dim=16
    ).double()
    weights = renamed(timm_vectors, "vit/", OUR_NAMES)
    model.load_state_dict(weights | {"positions": weights["positions"][0]})
    return model


def test_equals_timm_in_logits_and_image_gradients(timm_twin: ViT, timm_vectors: dict[str, np.ndarray]) -> None:
    assert_equals(timm_twin, timm_vectors)


def test_transition_equals_timms_attention_and_the_forward_passs(
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


def test_default_layers_are_the_projections_of_attention(small_vit: Build) -> None:
    assert list(select_layers(small_vit(), ATTENTION_LAYERS)) == [
        f"blocks.{block}.attention.{layer}" for block in (0, 1) for layer in ("qkv", "projection")
    ]
