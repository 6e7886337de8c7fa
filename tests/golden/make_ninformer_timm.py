"""Write ninformer_timm.npz: a small ViT and a small MLP-Mixer of timm in float64; weights, images, logits, gradients.

Origin: timm (its version is inside), not our code.  `vit/<parameter>` and `mixer/<parameter>` keep timm's names; both
have the NiNformer paper's form: no class token, no positions, no bias in qkv, no LayerNorm after the last block.
Run from the repository root: python tests/golden/make_ninformer_timm.py
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

PATH = Path(__file__).with_name("ninformer_timm.npz")
IMAGE_SIZE, PATCH_SIZE, DIM, DEPTH, NUM_HEADS, HIDDEN_DIM, TOKEN_DIM, NUM_CLASSES = 12, 4, 8, 2, 2, 16, 12, 5


def make_models() -> dict[str, nn.Module]:
    norm = partial(nn.LayerNorm, eps=1e-5)
    vit = VisionTransformer(
        img_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        num_classes=NUM_CLASSES,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=NUM_HEADS,
        mlp_ratio=HIDDEN_DIM / DIM,
        qkv_bias=False,
        class_token=False,
        pos_embed="none",
        global_pool="avg",
        final_norm=False,
        fc_norm=False,
        norm_layer=norm,
    )
    mixer = MlpMixer(
        img_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        num_classes=NUM_CLASSES,
        embed_dim=DIM,
        num_blocks=DEPTH,
        mlp_ratio=(TOKEN_DIM / DIM, HIDDEN_DIM / DIM),
        norm_layer=norm,
        global_pool="avg",
    )
    mixer.norm = nn.Identity()
    return {"vit": vit, "mixer": mixer}


def make_vectors() -> dict[str, np.ndarray]:
    """All arrays of the file; random weights everywhere, so that no bias and no LayerNorm hides at 0 or 1."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    images = draw(3, 3, IMAGE_SIZE, IMAGE_SIZE)
    weights = draw(3, NUM_CLASSES)
    vectors = {
        "origin": np.array(f"timm {timm.__version__}"),
        "images": images.numpy(),
        "logit_weights": weights.numpy(),
    }
    for name, model in make_models().items():
        model.double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(draw(*parameter.shape, scale=0.5))
        leaf = images.clone().requires_grad_()
        logits = model(leaf)
        (logits * weights).sum().backward()
        vectors[f"{name}_logits"] = logits.detach().numpy()
        vectors[f"{name}_image_gradients"] = leaf.grad.numpy()
        vectors |= {f"{name}/{key}": value.detach().numpy() for key, value in model.named_parameters()}
    return vectors


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
