from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stages.optim.capture import select_layers
from stages.optim.cg_fac import CGFAC
from stages.optim.kfac import KFAC
from stages.optim.preconditioned import ATTENTION_LAYERS
from stages.papers.brownian import ViT
from stages.papers.brownian.walk import attention_transition
from tests.papers.properties import draw_images, without_gradient

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
    weights = {}
    for name, array in timm_vectors.items():
        if name.startswith("vit/"):
            ours = name.removeprefix("vit/")
            for theirs, replacement in OUR_NAMES.items():
                ours = ours.replace(theirs, replacement)
            weights[ours] = torch.from_numpy(array[0] if ours == "positions" else array)
    model.load_state_dict(weights)
    return model


def test_equals_timm_in_logits_and_image_gradients(timm_twin: ViT, timm_vectors: dict[str, np.ndarray]) -> None:
    images = torch.from_numpy(timm_vectors["images"]).requires_grad_()
    logits = timm_twin(images)
    (logits * torch.from_numpy(timm_vectors["logit_weights"])).sum().backward()
    assert images.grad is not None
    np.testing.assert_allclose(logits.detach().numpy(), timm_vectors["logits"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(images.grad.numpy(), timm_vectors["image_gradients"], rtol=0, atol=1e-9)


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


@pytest.mark.slow
def test_stored_vectors_are_what_the_installed_timm_gives(timm_vectors: dict[str, np.ndarray]) -> None:
    fresh = runpy.run_path(str(GOLDEN / "make_brownian_timm.py"))["make_vectors"]()
    for name in fresh.keys() - {"origin"}:
        np.testing.assert_allclose(fresh[name], timm_vectors[name], rtol=0, atol=1e-9, err_msg=name)


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


def test_weights_are_drawn_as_stated(small_vit: Build) -> None:
    model = small_vit(dim=128, depth=1)
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            fan_in, n = module.weight[0].numel(), module.weight.numel()
            assert abs(module.weight.mean()) < 4 * (1 / (3 * fan_in * n)) ** 0.5, name
            assert module.weight.var().item() == pytest.approx(1 / (3 * fan_in), rel=5 / n**0.5), name
            assert 0 < module.bias.abs().max() <= fan_in**-0.5, name
    assert abs(model.positions.mean().item()) < 4 * 0.02 / model.positions.numel() ** 0.5
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.1)


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


def test_every_parameter_gets_a_gradient(small_vit: Build) -> None:
    model = small_vit()
    F.cross_entropy(model(draw_images()), torch.arange(4)).backward()
    assert without_gradient(model) == []


def test_impossible_sizes_are_refused(small_vit: Build) -> None:
    with pytest.raises(ValueError, match="patch_size is 5; expected a divisor of image_size, which is 12"):
        small_vit(patch_size=5)
    with pytest.raises(ValueError, match="num_heads is 3; expected a divisor of dim, which is 16"):
        small_vit(num_heads=3)
