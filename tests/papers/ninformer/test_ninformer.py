"""NiNformer's two blocks against loops over single numbers, written from equations 8 to 10 (and 4, 5 inside)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from stages.papers.ninformer.ninformer import GatingUnit, NiNformerBlock
from stages.papers.ninformer.shared_norm_ninformer import SharedNormBlock

Matrix = list[list[float]]  # [token][channel]
BOTH = pytest.mark.parametrize("block_class", [NiNformerBlock, SharedNormBlock])


def layer_norm(x: Matrix, norm: nn.LayerNorm) -> Matrix:
    scale, shift = norm.weight.tolist(), norm.bias.tolist()
    rows = []
    for row in x:
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        rows.append(
            [(v - mean) / math.sqrt(variance + 1e-5) * a + b for v, a, b in zip(row, scale, shift, strict=True)]
        )
    return rows


def linear(row: list[float], layer: nn.Linear) -> list[float]:
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * v for w, v in zip(ws, row, strict=True)) + b for ws, b in zip(weight, bias, strict=True)]


def mlp(x: Matrix, layers: nn.Module) -> Matrix:
    hidden = [[h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in linear(row, layers.expand)] for row in x]
    return [linear(row, layers.contract) for row in hidden]


def transpose(x: Matrix) -> Matrix:
    return [list(column) for column in zip(*x, strict=True)]


def add(x: Matrix, y: Matrix) -> Matrix:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]


def gating(i: Matrix, unit: GatingUnit) -> Matrix:
    y = add(transpose(mlp(transpose(layer_norm(i, unit.mixer.token_norm)), unit.mixer.token_mlp)), i)  # eq. 4
    z = add(mlp(layer_norm(y, unit.mixer.channel_norm), unit.mixer.channel_mlp), y)  # eq. 5
    projected = [linear(row, unit.linear) for row in i]
    return [[a * b for a, b in zip(*rows, strict=True)] for rows in zip(z, projected, strict=True)]  # eq. 8


def block_by_hand(x: Matrix, block: NiNformerBlock | SharedNormBlock) -> Matrix:
    norms = (block.norm,) * 2 if isinstance(block, SharedNormBlock) else (block.gating_norm, block.mlp_norm)
    y = add(gating(layer_norm(x, norms[0]), block.gating), x)  # eq. 9
    return add(mlp(layer_norm(y, norms[1]), block.mlp), y)  # eq. 10


def make_block(block_class: type[nn.Module] = NiNformerBlock) -> tuple[nn.Module, Tensor]:
    block = block_class(num_tokens=5, dim=4, mlp_dim=7, token_dim=6, channel_dim=3, dropout=0.5).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(generator=generator)
    return block, torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)


@BOTH
def test_block_equals_loops_over_the_equations(block_class: type[nn.Module]) -> None:
    block, x = make_block(block_class)
    expected = torch.tensor([block_by_hand(sample, block) for sample in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-9)


def test_shared_layer_norm_is_both_of_the_equations_norms() -> None:
    """As run, the equations' block with equal scales and shifts; their gradient is the sum of the two."""
    shared, x = make_block(SharedNormBlock)
    separate, _ = make_block()
    weights = dict(shared.state_dict())
    for part in ("weight", "bias"):
        weights |= dict.fromkeys((f"gating_norm.{part}", f"mlp_norm.{part}"), weights.pop(f"norm.{part}"))
    separate.load_state_dict(weights)
    assert torch.equal(shared(x), separate(x))
    shared(x).square().sum().backward()
    separate(x).square().sum().backward()
    for part in ("weight", "bias"):
        gradients = {name: p.grad for name, p in (*shared.named_parameters(), *separate.named_parameters())}
        total = gradients[f"gating_norm.{part}"] + gradients[f"mlp_norm.{part}"]
        torch.testing.assert_close(gradients[f"norm.{part}"], total, rtol=1e-9, atol=1e-9)
