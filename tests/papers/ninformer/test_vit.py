from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.papers.ninformer import PositionedViT, ViT
from stages.papers.ninformer.positioned_vit import PositionedPatchEmbedding

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
    weights = {}
    for key, array in timm_vectors.items():
        if key.startswith(f"{name}/"):
            our_name = key.removeprefix(f"{name}/")
            for theirs, ours in OUR_NAMES.items():
                our_name = our_name.replace(theirs, ours)
            weights[our_name] = torch.from_numpy(
                array[0] if key.endswith("pos_embed") else array
            )  # theirs has a batch axis
    model.load_state_dict(weights)
    images = torch.from_numpy(timm_vectors["images"]).requires_grad_()
    logits = model(images)
    (logits * torch.from_numpy(timm_vectors["logit_weights"])).sum().backward()
    assert images.grad is not None
    np.testing.assert_allclose(logits.detach().numpy(), timm_vectors[f"{name}_logits"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(images.grad.numpy(), timm_vectors[f"{name}_image_gradients"], rtol=0, atol=1e-9)


def test_positions_are_drawn_small_and_around_zero() -> None:
    torch.manual_seed(0)
    positions = PositionedPatchEmbedding(image_size=32, in_channels=3, dim=256, patch_size=4).positions
    assert positions.shape == (64, 256)
    assert abs(positions.mean().item()) < 4 * 0.02 / positions.numel() ** 0.5
    assert positions.std().item() == pytest.approx(0.02, rel=0.03)
