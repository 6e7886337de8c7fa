"""Write ninformer_timm.npz: small models and layers of timm in float64; weights, inputs, outputs, gradients.

Origin: timm (its version is inside), not our code.  `<model>/<parameter>` keeps timm's names.  ViT and MLP-Mixer have
the NiNformer paper's form: no class token, no bias in qkv, no LayerNorm after the last block, and positions only in
`positioned_vit`.  `conv` and `se_conv` are timm's inverted residuals without their shortcut, which are LocalViT's CONV
without and with squeeze-and-excitation, over a grid of tokens.
Run from the repository root: python tests/golden/make_ninformer_timm.py
"""

from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from timm.layers import SqueezeExcite
from timm.models._efficientnet_blocks import InvertedResidual
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

PATH = Path(__file__).with_name("ninformer_timm.npz")
IMAGE_SIZE, PATCH_SIZE, DIM, DEPTH, NUM_HEADS, HIDDEN_DIM, TOKEN_DIM, NUM_CLASSES = 12, 4, 8, 2, 2, 16, 12, 5


def make_models() -> dict[str, nn.Module]:
    """Later names come last, so that the draws of the earlier ones stay."""
    norm = partial(nn.LayerNorm, eps=1e-5)
    make_vit = partial(
        VisionTransformer,
        img_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        num_classes=NUM_CLASSES,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=NUM_HEADS,
        mlp_ratio=HIDDEN_DIM / DIM,
        qkv_bias=False,
        class_token=False,
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
    return {"vit": make_vit(pos_embed="none"), "mixer": mixer, "positioned_vit": make_vit(pos_embed="learn")}


def make_convs() -> dict[str, nn.Module]:
    def squeeze_excite(channels: int, **_: object) -> nn.Module:
        return SqueezeExcite(channels, rd_channels=channels // 4, act_layer=nn.ReLU, gate_layer="hard_sigmoid")

    make = partial(InvertedResidual, DIM, DIM, exp_ratio=HIDDEN_DIM / DIM, noskip=True, act_layer=nn.Hardswish)
    return {"conv": make(), "se_conv": make(se_layer=squeeze_excite)}


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
    grid = draw(2, DIM, 3, 3)
    vectors["grid"] = grid.numpy()
    for name, model in make_convs().items():
        model.double().eval()
        tensors = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}
        for key, value in tensors.items():
            value.copy_(draw(*value.shape).abs() + 0.5 if key.endswith("running_var") else draw(*value.shape))
        leaf = grid.clone().requires_grad_()
        outputs = model(leaf)
        outputs.square().sum().backward()
        vectors[f"{name}_outputs"] = outputs.detach().numpy()
        vectors[f"{name}_grid_gradients"] = leaf.grad.numpy()
        vectors |= {f"{name}/{key}": value.numpy() for key, value in tensors.items()}
    return vectors


if __name__ == "__main__":
    np.savez(PATH, **make_vectors())
