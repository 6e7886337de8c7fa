"""Write hyperbf_timm.npz: a small ViT of timm in float64, with class token and positions; weights, images, gradients.

Origin: timm (its version is inside), not our code.  `vit/<parameter>` keeps timm's names; the model has the HyperBF
paper's form: no bias in qkv, ReLU, LayerNorm after the last block, head on the class token.
Run from the repository root: python tests/golden/make_hyperbf_timm.py
"""

from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

PATH = Path(__file__).with_name("hyperbf_timm.npz")
IMAGE_SIZE, PATCH_SIZE, DIM, DEPTH, NUM_HEADS, HIDDEN_DIM, NUM_CLASSES = 12, 4, 8, 2, 2, 5, 3


def make_vectors() -> dict[str, np.ndarray]:
    """All arrays of the file; random weights everywhere, so that no bias and no position hides at 0."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    model = VisionTransformer(
        img_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        num_classes=NUM_CLASSES,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=NUM_HEADS,
        mlp_ratio=HIDDEN_DIM / DIM,
        qkv_bias=False,
        act_layer=nn.ReLU,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    )
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(draw(*parameter.shape, scale=0.5))
    images, weights = draw(3, 3, IMAGE_SIZE, IMAGE_SIZE).requires_grad_(), draw(3, NUM_CLASSES)
    logits = model(images)
    (logits * weights).sum().backward()
    return {
        "origin": np.array(f"timm {timm.__version__}"),
        "images": images.detach().numpy(),
        "logit_weights": weights.numpy(),
        "logits": logits.detach().numpy(),
        "image_gradients": images.grad.numpy(),
    } | {f"vit/{name}": value.detach().numpy() for name, value in model.named_parameters()}


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
