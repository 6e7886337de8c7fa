"""GPT-2 against transformers, and AetherGPT against the printed equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.ops.yat import guide_scale, yat_linear_reference
from stages.ops.yat_attention import yat_attention_reference
from stages.papers.nmn import GPT2
from tests.papers.properties import renamed

VECTORS = Path(__file__).parents[2] / "golden" / "nmn_gpt2.npz"
OUR_NAMES = {
    "transformer.wte": "embedding.tokens",
    "transformer.wpe": "embedding.positions",
    "transformer.ln_f": "norm",
    "transformer.h": "blocks",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.projection",
    "mlp.c_fc": "mlp.expand",
    "mlp.c_proj": "mlp.contract",
}


def by_our_names(vectors: dict[str, np.ndarray], prefix: str) -> dict[str, Tensor]:
    return {
        name: tensor.T if name.endswith("weight") and ("attention." in name or "mlp." in name) else tensor
        for name, tensor in renamed(vectors, prefix, OUR_NAMES).items()
    }


def test_gpt2_equals_transformers_in_logits_and_every_gradient() -> None:
    with np.load(VECTORS) as file:
        vectors = dict(file)
    model = GPT2(vocabulary_size=11, context=8, width=6, depth=2, num_heads=3, dropout=0.0).double()
    model.load_state_dict(by_our_names(vectors, "model/"))
    logits = model(torch.from_numpy(vectors["tokens"]))
    (logits * torch.from_numpy(vectors["logit_weights"])).sum().backward()
    np.testing.assert_allclose(logits.detach().numpy(), vectors["logits"], rtol=0, atol=1e-9)
    gradients = by_our_names(vectors, "gradients/")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-9)


def test_aether_block_is_that_of_the_printed_equations(build_small: Callable[..., nn.Module]) -> None:
    """Token by token, with attention over the tokens so far."""
    block = build_small("aether-gpt").double().blocks[0]
    x = torch.randn(1, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    block.attention.scale.alpha.data.fill_(1.7)
    block.mlp.expand.scale.alpha.data.fill_(0.6)
    q, k, v = block.attention.qkv(x).chunk(3, dim=-1)
    rows = []
    for t in range(5):
        heads = [slice(4 * h, 4 * h + 4) for h in range(3)]
        mixed = [
            yat_attention_reference(q[:, t : t + 1, h], k[:, : t + 1, h], v[:, : t + 1, h], 1.7, 0.01) for h in heads
        ]
        y = block.attention.projection(torch.cat(mixed, dim=-1)) + x[:, t : t + 1]
        scale = guide_scale(torch.tensor(0.6, dtype=torch.float64), 48)
        yat = yat_linear_reference(y, block.mlp.expand.weight, torch.zeros(48, dtype=torch.float64), scale, 0.01)
        rows.append(block.mlp.contract(yat) + y)
    torch.testing.assert_close(block(x), torch.cat(rows, dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "aether-gpt", "aether-gpt-dot", "yat-gpt", "post-norm-gpt"])
def test_a_token_changes_no_earlier_logits(name: str, build_small: Callable[..., nn.Module]) -> None:
    model = build_small(name).double().eval()
    tokens = torch.randint(13, (2, 8), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % 13
    moved = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert moved[:5].max() == 0
    assert moved[5:].min() > 1e-9


@pytest.mark.parametrize("name", ["gpt2", "aether-gpt"])
def test_the_logits_matrix_is_the_token_embedding(name: str, build_small: Callable[..., nn.Module]) -> None:
    model = build_small(name)
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    before = model(tokens)
    with torch.no_grad():
        model.embedding.tokens.weight[7] *= 3  # token 7 is not in the text, so only its own logit moves
    torch.testing.assert_close(model(tokens), before * torch.where(torch.arange(13) == 7, 3.0, 1.0))


@pytest.mark.parametrize("name", ["gpt2", "aether-gpt", "yat-gpt"])
def test_language_models_start_as_gpt2_does(name: str, build_small: Callable[..., nn.Module]) -> None:
    model = build_small(name, vocabulary_size=400, width=192, depth=2)
    layers = dict(model.named_modules())
    for place, deviation in [
        ("embedding.tokens", 0.02),
        ("embedding.positions", 0.02),
        ("blocks.0.attention.qkv", 0.02),
        ("blocks.0.attention.projection", 0.02 / math.sqrt(4)),
        ("blocks.1.mlp.contract", 0.02 / math.sqrt(4)),
    ]:
        weight = layers[place].weight
        assert weight.std().item() == pytest.approx(deviation, rel=0.06), place
        assert abs(weight.mean().item()) < 4 * deviation / math.sqrt(weight.numel()), place
    expand = layers["blocks.0.mlp.expand"].weight
    xavier = math.sqrt(2 / (192 + 768))
    assert expand.std().item() == pytest.approx(0.02 if name == "gpt2" else xavier, rel=0.02)
    assert all(p.abs().max() == 0 for key, p in model.named_parameters() if key.endswith("bias"))


def test_more_tokens_than_the_context_are_refused(build_small: Callable[..., nn.Module]) -> None:
    with pytest.raises(ValueError, match="9 tokens; expected at most context, which is 8"):
        build_small("gpt2")(torch.zeros(1, 9, dtype=torch.int64))
