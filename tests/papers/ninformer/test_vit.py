from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.papers.ninformer import MLPMixer, PositionedViT, ViT
from stages.papers.ninformer.positioned_vit import PositionedPatchEmbedding
from tests.papers.properties import assert_equals, renamed

OUR_NAMES = {
    "patch_embed.proj": "patch_embedding.projection",
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.projection",
    "norm2": "mlp_norm",
    "fc1": "expand",
    "fc2": "contract",
    "pos_embed": "patch_embedding.positions",
}


@pytest.mark.parametrize(("name", "model_class"), [("vit", ViT), ("positioned_vit", PositionedViT)])
def test_vit_equals_timm_in_logits_and_image_gradients(
    timm_vectors: dict[str, np.ndarray], name: str, model_class: type[ViT | PositionedViT]
) -> None:
    model = model_class(
        image_size=12, in_channels=3, num_classes=5, patch_size=4, dim=8, depth=2, num_heads=2, mlp_dim=16, dropout=0.0
    ).double()
    weights = renamed(timm_vectors, f"{name}/", OUR_NAMES)
    if name == "positioned_vit":  # theirs has a batch axis
        weights["patch_embedding.positions"] = weights["patch_embedding.positions"][0]
    model.load_state_dict(weights)
    assert_equals(model, timm_vectors, f"{name}_")


MIXERS_NAMES = {
    "stem.proj": "patch_embedding.projection",
    "norm1": "token_norm",
    "mlp_tokens": "token_mlp",
    "norm2": "channel_norm",
    "mlp_channels": "channel_mlp",
    "fc1": "expand",
    "fc2": "contract",
}


def test_mixer_equals_timm_in_logits_and_image_gradients(timm_vectors: dict[str, np.ndarray]) -> None:
    sizes = {"image_size": 12, "in_channels": 3, "num_classes": 5, "patch_size": 4, "dim": 8, "depth": 2}
    model = MLPMixer(**sizes, token_dim=12, channel_dim=16, dropout=0.0).double()
    model.load_state_dict(renamed(timm_vectors, "mixer/", MIXERS_NAMES))
    assert_equals(model, timm_vectors, "mixer_")


def test_positions_are_drawn_small_and_around_zero() -> None:
    torch.manual_seed(0)
    positions = PositionedPatchEmbedding(image_size=32, in_channels=3, dim=256, patch_size=4).positions
    assert positions.shape == (64, 256)
    assert abs(positions.mean().item()) < 4 * 0.02 / positions.numel() ** 0.5
    assert positions.std().item() == pytest.approx(0.02, rel=0.03)
