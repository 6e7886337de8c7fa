from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stages.papers.hyperbf import ViT
from stages.papers.hyperbf.findings import VIT
from stages.papers.hyperbf.vit import DotProductAttention, attention_reference
from tests.papers.hyperbf.conftest import SMALL
from tests.papers.properties import assert_equals, renamed

GOLDEN = Path(__file__).parents[2] / "golden" / "hyperbf_timm.npz"
OUR_NAMES = {
    "cls_token": "embedding.class_token",
    "pos_embed": "embedding.positions",
    "patch_embed.proj": "embedding.projection",
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.projection",
    "norm2": "feedforward_norm",
    "mlp.fc1": "feedforward.0",
    "mlp.fc2": "feedforward.2",
}


def test_vit_equals_timm_in_logits_and_image_gradients() -> None:
    with np.load(GOLDEN) as file:
        vectors = dict(file)
    own = VIT | {"hidden_dim": 5, "has_unused_matrix": False}
    model = ViT(**SMALL | {"dim": 8, "num_classes": 3} | own).double()
    model.load_state_dict(renamed(vectors, "vit/", OUR_NAMES))
    assert_equals(model, vectors)


def test_attention_reference_gives_a_hand_worked_case() -> None:
    # σ² = 2: scores of the query are 2 ln 3 / 2 and 0, so its weights are 3/4 and 1/4.
    q, k = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[math.log(3), 0.0], [0.0, 5.0]]).double()
    v = torch.tensor([[4.0], [8.0]]).double()
    assert attention_reference(q, k, v, math.sqrt(2)).item() == pytest.approx(5.0, abs=1e-7)


@pytest.mark.parametrize("exponent", [-0.5, -0.8])
def test_fused_attention_is_equation_5_with_sigma_from_the_exponent(exponent: float) -> None:
    torch.manual_seed(0)
    layer = DotProductAttention(dim=12, num_heads=2, scale_exponent=exponent, has_unused_matrix=True).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = (x @ layer.qkv.weight.T).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    mixed = attention_reference(q, k, v, sigma=6 ** (-exponent / 2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), F.linear(mixed, layer.projection.weight, layer.projection.bias))


def test_the_unused_matrix_changes_nothing_but_the_count() -> None:
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    without = ViT(**SMALL | VIT | {"has_unused_matrix": False})
    torch.manual_seed(0)
    having = ViT(**SMALL | VIT)
    nn_count = [sum(p.numel() for p in model.parameters()) for model in (without, having)]
    assert nn_count[1] - nn_count[0] == 2 * 8 * 8
    with torch.no_grad():
        for block in having.blocks:
            block.attention.unused.fill_(float("nan"))
        assert torch.equal(without(images), having(images))
