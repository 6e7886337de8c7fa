"""LocalViT's convolutional feed-forward against NumPy loops over the grid."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from stages.papers.ninformer.local_vit import LocalFeedForward, LocalViTBlock


def h_swish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x + 3, 0, 6) / 6


def batch_norm(x: np.ndarray, norm: nn.BatchNorm2d) -> np.ndarray:
    """x: [rows, columns, channels], with the running statistics."""
    mean, variance, scale, shift = (
        t.detach().numpy() for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def conv_by_hand(tokens: np.ndarray, layer: LocalFeedForward) -> np.ndarray:
    """tokens: [N, D] in raster order; returns [N, D]."""
    expand, depthwise, contract = (
        stage[0].weight.detach().numpy() for stage in (layer.expand, layer.depthwise, layer.contract)
    )
    size = round(len(tokens) ** 0.5)
    grid = tokens.reshape(size, size, -1) @ expand[:, :, 0, 0].T
    grid = h_swish(batch_norm(grid, layer.expand[1]))
    mixed = np.zeros_like(grid)
    for row in range(size):
        for column in range(size):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    if 0 <= row + down < size and 0 <= column + right < size:
                        mixed[row, column] += depthwise[:, 0, down + 1, right + 1] * grid[row + down, column + right]
    mixed = h_swish(batch_norm(mixed, layer.depthwise[1]))
    out = batch_norm(mixed @ contract[:, :, 0, 0].T, layer.contract[1])
    return out.reshape(len(tokens), -1)


def make_layer(dropout: float = 0.5) -> LocalFeedForward:
    layer = LocalFeedForward(dim=4, channels=6, dropout=dropout).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2, generator=generator) if tensor.ndim == 1 else tensor.normal_(
                    generator=generator
                )
    return layer


def test_conv_equals_loops_over_the_grid() -> None:
    layer = make_layer()
    tokens = torch.randn(2, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = np.stack([conv_by_hand(sample, layer) for sample in tokens.numpy()])
    np.testing.assert_allclose(layer(tokens).detach().numpy(), expected, rtol=0, atol=1e-9)


def test_conv_has_no_residual_of_its_own() -> None:
    layer = make_layer()
    for parameter in layer.contract.parameters():
        nn.init.zeros_(parameter)
    nn.init.zeros_(layer.contract[1].running_mean)
    assert layer(torch.ones(1, 9, 4, dtype=torch.float64)).abs().max() == 0


def test_a_token_reaches_only_its_eight_neighbours() -> None:
    layer = make_layer()
    tokens = torch.zeros(1, 25, 4, dtype=torch.float64)
    changed = tokens.clone()
    changed[0, 7] = 1  # row 1, column 2
    moved = (layer(tokens) - layer(changed)).abs().amax(dim=2).reshape(5, 5) > 0
    expected = torch.zeros(5, 5, dtype=torch.bool)
    expected[0:3, 1:4] = True
    assert torch.equal(moved, expected)


def test_dropout_stands_after_the_last_batch_norm() -> None:
    layer, without = make_layer(dropout=0.5).train(), make_layer(dropout=0.0).train()
    torch.manual_seed(0)
    tokens = torch.randn(8, 9, 4, dtype=torch.float64)
    kept, dropped = without(tokens), layer(tokens)
    survivors = dropped != 0
    assert 0.3 < survivors.double().mean() < 0.7
    torch.testing.assert_close(dropped[survivors], 2 * kept[survivors])


def test_block_adds_both_residuals_outside() -> None:
    block = LocalViTBlock(dim=4, num_heads=2, channels=6, dropout=0.0, conv_class=LocalFeedForward).double().eval()
    x = torch.randn(2, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = block.attention(block.attention_norm(x)) + x
    torch.testing.assert_close(block(x), block.conv(block.conv_norm(y)) + y, rtol=0, atol=0)
