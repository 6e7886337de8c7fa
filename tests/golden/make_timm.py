"""Write {ninformer,brownian,hyperbf}_timm.npz: small models and layers of timm, with outputs and gradients.

Origin: timm (version inside) in float64, not our code. `<model>/<parameter>` uses timm's names. The models follow the
papers.
NiNformer: ViT and MLP-Mixer without class token, with bias in qkv and a last LayerNorm, and positions only in
`positioned_vit`; `conv` and `se_conv`, LocalViT's CONV without and with squeeze-and-excitation, are timm's inverted
residuals without their shortcut on a grid of tokens. Brownian: learned positions, LayerNorm before the mean over
tokens, and the attention of the first block. HyperBF: class token, ReLU, no bias in qkv.
Run from the repository root: python tests/golden/make_timm.py
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.layers import SqueezeExcite
from timm.models._efficientnet_blocks import InvertedResidual
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

Vectors = dict[str, np.ndarray]
DIM, HIDDEN_DIM, TOKEN_DIM = 8, 16, 12
NORM = partial(nn.LayerNorm, eps=1e-5)
SIZES: dict[str, Any] = {"img_size": 12, "patch_size": 4, "embed_dim": DIM, "norm_layer": NORM}
make_vit = partial(VisionTransformer, **SIZES, depth=2, num_heads=2)


def drawing() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    return draw


def fill(model: nn.Module, draw: Callable[..., Tensor]) -> nn.Module:
    """Fill with random weights to exercise every bias and LayerNorm."""
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(draw(*parameter.shape, scale=0.5))
    return model


def run(name: str, prefix: str, model: nn.Module, images: Tensor, weights: Tensor) -> Vectors:
    leaf = images.clone().requires_grad_()
    logits = model(leaf)
    (logits * weights).sum().backward()
    found = {f"{prefix}logits": logits.detach().numpy(), f"{prefix}image_gradients": leaf.grad.numpy()}
    return found | {f"{name}/{key}": value.detach().numpy() for key, value in model.named_parameters()}


def inputs(images: Tensor, weights: Tensor) -> Vectors:
    origin = np.array(f"timm {timm.__version__}")
    return {"origin": origin, "images": images.numpy(), "logit_weights": weights.numpy()}


def make_hyperbf() -> Vectors:
    draw = drawing()
    model = fill(make_vit(num_classes=3, mlp_ratio=5 / DIM, qkv_bias=False, act_layer=nn.ReLU), draw)
    images, weights = draw(3, 3, 12, 12), draw(3, 3)
    return inputs(images, weights) | run("vit", "", model, images, weights)


def make_brownian() -> Vectors:
    draw = drawing()
    form = {"mlp_ratio": 2, "class_token": False, "global_pool": "avg", "fc_norm": False}
    model = fill(make_vit(num_classes=5, **form), draw)
    images, weights = draw(3, 3, 12, 12), draw(3, 5)
    attention = model.blocks[0].attn
    attention.fused_attn = False  # otherwise the softmax skips its dropout, where a hook can see it
    seen: list[Tensor] = []
    attention.attn_drop.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    found = run("vit", "", model, images, weights)
    return inputs(images, weights) | found | {"first_attention": seen[0].numpy()}


def squeeze_excite(channels: int, **_: object) -> nn.Module:
    return SqueezeExcite(channels, rd_channels=channels // 4, act_layer=nn.ReLU, gate_layer="hard_sigmoid")


def make_ninformer() -> Vectors:
    """Add new names last, so that the draws of earlier ones stay."""
    draw = drawing()
    images, weights = draw(3, 3, 12, 12), draw(3, 5)
    vectors = inputs(images, weights)
    form = {"mlp_ratio": HIDDEN_DIM / DIM, "qkv_bias": False, "class_token": False, "global_pool": "avg"}
    vit = partial(make_vit, num_classes=5, **form, final_norm=False, fc_norm=False)
    ratios = (TOKEN_DIM / DIM, HIDDEN_DIM / DIM)
    mixer = MlpMixer(**SIZES, num_classes=5, num_blocks=2, mlp_ratio=ratios, global_pool="avg")
    mixer.norm = nn.Identity()
    models = {"vit": vit(pos_embed="none"), "mixer": mixer, "positioned_vit": vit(pos_embed="learn")}
    for name, model in models.items():
        vectors |= run(name, f"{name}_", fill(model, draw), images, weights)
    grid = draw(2, DIM, 3, 3)
    vectors["grid"] = grid.numpy()
    make = partial(InvertedResidual, DIM, DIM, exp_ratio=HIDDEN_DIM / DIM, noskip=True, act_layer=nn.Hardswish)
    for name, layer in {"conv": make(), "se_conv": make(se_layer=squeeze_excite)}.items():
        layer.double().eval()
        tensors = {key: value for key, value in layer.state_dict().items() if value.is_floating_point()}
        for key, value in tensors.items():
            value.copy_(draw(*value.shape).abs() + 0.5 if key.endswith("running_var") else draw(*value.shape))
        leaf = grid.clone().requires_grad_()
        outputs = layer(leaf)
        outputs.square().sum().backward()
        vectors[f"{name}_outputs"] = outputs.detach().numpy()
        vectors[f"{name}_grid_gradients"] = leaf.grad.numpy()
        vectors |= {f"{name}/{key}": value.numpy() for key, value in tensors.items()}
    return vectors


MAKERS = {"ninformer_timm": make_ninformer, "brownian_timm": make_brownian, "hyperbf_timm": make_hyperbf}

if __name__ == "__main__":
    for name, make in MAKERS.items():
        np.savez(Path(__file__).with_name(f"{name}.npz"), **make())
