from __future__ import annotations

import numpy as np
import torch

from stages.papers.ninformer import ViT

OUR_NAMES = {
    "patch_embed.proj": "patch_embedding.projection",
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.projection",
    "norm2": "mlp_norm",
    "fc1": "expand",
    "fc2": "contract",
}


def test_vit_equals_timm_in_logits_and_image_gradients(timm_vectors: dict[str, np.ndarray]) -> None:
    model = ViT(
        image_size=12, in_channels=3, num_classes=5, patch_size=4, dim=8, depth=2, num_heads=2, mlp_dim=16, dropout=0.0
    ).double()
    weights = {}
    for name, array in timm_vectors.items():
        if name.startswith("vit/"):
            our_name = name.removeprefix("vit/")
            for theirs, ours in OUR_NAMES.items():
                our_name = our_name.replace(theirs, ours)
            weights[our_name] = torch.from_numpy(array)
    model.load_state_dict(weights)
    images = torch.from_numpy(timm_vectors["images"]).requires_grad_()
    logits = model(images)
    (logits * torch.from_numpy(timm_vectors["logit_weights"])).sum().backward()
    assert images.grad is not None
    np.testing.assert_allclose(logits.detach().numpy(), timm_vectors["vit_logits"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(images.grad.numpy(), timm_vectors["vit_image_gradients"], rtol=0, atol=1e-9)
