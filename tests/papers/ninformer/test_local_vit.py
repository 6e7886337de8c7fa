"""LocalViT's convolutional feed-forwards against NumPy loops over the grid, and against timm's inverted residuals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from stages.papers.ninformer.local_vit import LocalFeedForward, LocalViTBlock
from stages.papers.ninformer.separable_local_vit import SeparableFeedForward
from stages.papers.ninformer.squeeze_excite_local_vit import SqueezeExciteFeedForward
from tests.papers.properties import renamed

OUR_NAMES = {
    "conv_pw.": "expand.0.",
    "bn1.": "expand.1.",
    "conv_dw.": "depthwise.0.",
    "bn2.": "depthwise.1.",
    "se.fc1.": "depthwise.3.squeeze.",
    "se.fc2.": "depthwise.3.excite.",
    "conv_pwl.": "contract.0.",
    "bn3.": "contract.1.",
}


def h_swish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x + 3, 0, 6) / 6


def batch_norm(x: np.ndarray, norm: nn.BatchNorm2d) -> np.ndarray:
    """x: [rows, columns, channels], with the running statistics."""
    mean, variance, scale, shift = (
        t.detach().numpy() for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def depthwise_by_hand(grid: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """grid: [rows, columns, channels], zeros around it; weight: [channels, 1, 3, 3]."""
    size = len(grid)
    mixed = np.zeros_like(grid)
    for row in range(size):
        for column in range(size):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    if 0 <= row + down < size and 0 <= column + right < size:
                        mixed[row, column] += weight[:, 0, down + 1, right + 1] * grid[row + down, column + right]
    return mixed


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


@pytest.mark.parametrize(("name", "conv_class"), [("conv", LocalFeedForward), ("se_conv", SqueezeExciteFeedForward)])
def test_conv_equals_timm_in_value_and_gradients(
    timm_vectors: dict[str, np.ndarray], name: str, conv_class: type[LocalFeedForward]
) -> None:
    layer = conv_class(dim=8, channels=16, dropout=0.5).double().eval()
    weights = {  # timm squeezes with 1x1 convolutions
        place: tensor[:, :, 0, 0] if "depthwise.3." in place and tensor.ndim == 4 else tensor
        for place, tensor in renamed(timm_vectors, f"{name}/", OUR_NAMES).items()
    }
    missing = layer.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert all(key.endswith("num_batches_tracked") for key in missing.missing_keys)
    grid = torch.from_numpy(timm_vectors["grid"]).requires_grad_()
    outputs = layer(grid.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, (3, 3))
    outputs.square().sum().backward()
    assert grid.grad is not None
    np.testing.assert_allclose(outputs.detach().numpy(), timm_vectors[f"{name}_outputs"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(grid.grad.numpy(), timm_vectors[f"{name}_grid_gradients"], rtol=1e-9, atol=1e-9)


def test_separable_conv_equals_loops_over_the_grid() -> None:
    layer = SeparableFeedForward(dim=4, channels=6, dropout=0.5).double().eval()
    tokens = torch.randn(2, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kernels = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}

    def pointwise(grid: np.ndarray, name: str) -> np.ndarray:
        return grid @ kernels[f"{name}.weight"][:, :, 0, 0].T + kernels[f"{name}.bias"]

    for sample, outputs in zip(tokens.numpy(), layer(tokens).detach().numpy(), strict=True):
        grid = h_swish(pointwise(sample.reshape(3, 3, 4), "expand"))
        mixed = depthwise_by_hand(grid, kernels["depthwise.weight"]) + kernels["depthwise.bias"]
        expected = pointwise(h_swish(pointwise(mixed, "pointwise")), "contract")
        np.testing.assert_allclose(outputs, expected.reshape(9, 4), rtol=0, atol=1e-9)


def test_separable_conv_drops_hidden_and_output_units() -> None:
    torch.manual_seed(0)
    layer = SeparableFeedForward(dim=64, channels=128, dropout=0.5)
    tokens = torch.ones(8, 9, 64)
    assert (layer(tokens) == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)
    nn.init.ones_(layer.contract.weight)
    kept = [sample[sample != 0] for sample in layer(tokens)]
    assert len({round(values[0].item(), 5) for values in kept}) == 8, (
        "equal inputs differ by the hidden units they lost"
    )
