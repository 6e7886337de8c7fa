"""The paper's networks compared with loops over its equations, hand calculations and timm; their sizes."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.ninformer import MLPMixer, PositionedViT, ViT
from stages.papers.ninformer.layers import (
    FeedForward,
    count_patches,
)
from stages.papers.ninformer.local_vit import (
    LocalFeedForward,
    LocalViTBlock,
    SqueezeExciteFeedForward,
)
from stages.papers.ninformer.ninformer import GatingUnit, NiNformerBlock, SharedNormBlock
from stages.papers.ninformer.separable_local_vit import SeparableFeedForward
from stages.params.experiment import Params
from stages.run import ModelSpec
from tests.papers.properties import assert_equals, draw_images, renamed

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


def test_shared_layer_norm_serves_both_norms_of_the_equations() -> None:
    """Equals the equations' block with equal scales and shifts; its gradient is the sum of the two."""
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


@pytest.mark.parametrize(
    ("layer_class", "hidden", "inputs"),
    [
        (FeedForward, {"hidden_dim": 300}, torch.ones(50, 200)),
        (SeparableFeedForward, {"channels": 128}, torch.ones(50, 9, 200)),
    ],
)
def test_hidden_and_output_units_are_dropped(
    layer_class: type[nn.Module], hidden: dict[str, int], inputs: Tensor
) -> None:
    torch.manual_seed(0)
    layer = layer_class(dim=200, dropout=0.5, **hidden)
    assert (layer(inputs) == 0).double().mean().item() == pytest.approx(0.5, abs=0.02)
    nn.init.ones_(layer.contract.weight)
    nn.init.zeros_(layer.contract.bias)
    kept = [row[row != 0] for row in layer(inputs)]
    assert len({round(values[0].item(), 5) for values in kept}) == 50, "equal inputs differ by the hidden units"


@pytest.mark.parametrize(("image_size", "patch_size"), [(28, 3), (4, 8), (28, 0), (0, 4)])
def test_invalid_patches_are_refused(image_size: int, patch_size: int) -> None:
    with pytest.raises(ValueError, match=f"patch_size is {patch_size}"):
        count_patches(image_size, patch_size)


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
    """grid: [rows, columns, channels] with zero padding; weight: [channels, 1, 3, 3]."""
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


def test_dropout_follows_the_last_batch_norm() -> None:
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


OUR_NAMES_VIT = {
    "patch_embed.proj": "patch_embedding.projection",
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.projection",
    "norm2": "mlp_norm",
    "fc1": "expand",
    "fc2": "contract",
    "pos_embed": "patch_embedding.positions",
}


@pytest.mark.parametrize(("name", "model_class"), [("vit", ViT), ("positioned_vit", PositionedViT)])
def test_vit_equals_timm_in_logits_and_image_gradients(
    timm_vectors: dict[str, np.ndarray], name: str, model_class: type[ViT | PositionedViT]
) -> None:
    model = model_class(
        image_size=12, in_channels=3, num_classes=5, patch_size=4, dim=8, depth=2, num_heads=2, mlp_dim=16, dropout=0.0
    ).double()
    weights = renamed(timm_vectors, f"{name}/", OUR_NAMES_VIT)
    if name == "positioned_vit":  # timm's has a batch axis
        weights["patch_embedding.positions"] = weights["patch_embedding.positions"][0]
    model.load_state_dict(weights)
    assert_equals(model, timm_vectors, f"{name}_")


MIXERS_NAMES = {
    "stem.proj": "patch_embedding.projection",
    "norm1": "token_norm",
    "mlp_tokens": "token_mlp",
    "norm2": "channel_norm",
    "mlp_channels": "channel_mlp",
    "fc1": "expand",
    "fc2": "contract",
}


def test_mixer_equals_timm_in_logits_and_image_gradients(timm_vectors: dict[str, np.ndarray]) -> None:
    sizes = {"image_size": 12, "in_channels": 3, "num_classes": 5, "patch_size": 4, "dim": 8, "depth": 2}
    model = MLPMixer(**sizes, token_dim=12, channel_dim=16, dropout=0.0).double()
    model.load_state_dict(renamed(timm_vectors, "mixer/", MIXERS_NAMES))
    assert_equals(model, timm_vectors, "mixer_")


Build = Callable[..., nn.Module]

PRINTED = {
    (data, arm) for data in ("mnist", "cifar10", "cifar100") for arm in ("vit", "mlp-mixer", "local-vit", "ninformer")
}


def test_every_params_block_builds_a_model_for_its_images_and_classes(
    params: Params, printed_models: dict[tuple[str, str], nn.Module]
) -> None:
    assert len(printed_models) >= len(PRINTED)
    for (dataset, _), model in printed_models.items():
        source = params.datasets[dataset]
        with torch.inference_mode():
            assert model(torch.zeros(2, *source.shape)).shape == (2, source.classes)


def test_arms_of_a_data_set_differ_only_in_their_own_keywords(
    printed_specs: dict[tuple[str, str], ModelSpec],
) -> None:
    shared = ("image_size", "in_channels", "num_classes", "patch_size", "dim", "depth", "dropout")
    for dataset in {dataset for dataset, _ in PRINTED}:
        blocks = [spec.arguments for place, spec in printed_specs.items() if place in PRINTED and place[0] == dataset]
        assert len(blocks) == 4
        assert len({tuple(block[key] for key in shared) for block in blocks}) == 1


def test_dropout_is_only_in_the_mlps(small_model: Build) -> None:
    dropouts = {name.rsplit(".", 1)[0] for name, m in small_model().named_modules() if isinstance(m, nn.Dropout)}
    assert dropouts
    assert all(name.endswith(("mlp", "conv")) for name in dropouts)


def test_only_vit_ignores_the_order_of_patches(small_model: Build) -> None:
    """Without positions, Procedure 1's ViT averages over a bag of patches."""
    model = small_model().double().eval()
    images = draw_images().double()
    patches = F.unfold(images, kernel_size=4, stride=4)
    places = torch.tensor([1, 0, *range(2, 9)])
    shuffled = F.fold(patches[:, :, places], (12, 12), kernel_size=4, stride=4)
    difference = (model(images) - model(shuffled)).abs().max().item()
    if type(model).__name__ == "ViT":
        assert difference < 1e-12
    else:
        assert difference > 1e-4
