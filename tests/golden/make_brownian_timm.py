"""Write brownian_timm.npz: a small ViT of timm in float64; weights, images, logits, gradients, attention of block 1.

Origin: timm (its version is inside), not our code.  `vit/<parameter>` keeps timm's names; it has the form of the ViT in
the Brownian paper's experiment: learned positions, no class token, LayerNorm before the mean over tokens.
Run from the repository root: python tests/golden/make_brownian_timm.py
"""

from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

PATH = Path(__file__).with_name("brownian_timm.npz")


def make_vectors() -> dict[str, np.ndarray]:
    """All arrays of the file; random weights everywhere, so that no bias and no LayerNorm hides at 0 or 1."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    model = VisionTransformer(
        img_size=12,
        patch_size=4,
        num_classes=5,
        embed_dim=8,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    )
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(draw(*parameter.shape, scale=0.5))
    leaf, weights = draw(3, 3, 12, 12).requires_grad_(), draw(3, 5)
    attention = model.blocks[0].attn
    attention.fused_attn = False  # so that the softmax passes its dropout, where a hook can see it
    seen: list[Tensor] = []
    attention.attn_drop.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    logits = model(leaf)
    (logits * weights).sum().backward()
    return {
        "origin": np.array(f"timm {timm.__version__}"),
        "images": leaf.detach().numpy(),
        "logit_weights": weights.numpy(),
        "logits": logits.detach().numpy(),
        "image_gradients": leaf.grad.numpy(),
        "first_attention": seen[0].numpy(),
    } | {f"vit/{key}": value.detach().numpy() for key, value in model.named_parameters()}


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
