"""The paper's networks: sizes, structure, initialisation, and their form without biases."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.dac import DACConv2d, DACLinear, dac_conv2d, dac_linear
from stages.ops.mba import MBA
from stages.papers.dac import (
    DACMLP,
    DACVGG,
    MLP,
    VGG,
    DACResNetV1,
    DACResNetV2,
    MBAResNetV1,
    ResNetV1,
    ResNetV2,
    SharedBiasResNetV1,
    SharedBiasResNetV2,
)
from stages.papers.dac.layers import SharedBiasConv2d
from stages.papers.dac.mlp import hidden_widths, matched_width
from stages.papers.dac.resnet_v1 import ConvertedBlockV1
from tests.papers.dac.conftest import OWN, TABLE
from tests.papers.dac.conftest import SMALL as IMAGES
from tests.papers.properties import assert_equals, renamed


def test_weights_start_he_normal_and_all_biases_zero() -> None:
    torch.manual_seed(0)
    arguments = {"image_size": 32, "in_channels": 3, "num_classes": 100, "width": 16}
    models = [kind(depth=20, **arguments) for kind in (ResNetV1, DACResNetV1, DACResNetV2, SharedBiasResNetV1, DACVGG)]
    models += [MBAResNetV1(depth=20, copies=2, **arguments), *(rectangular(kind, 5, 100) for kind in (MLP, DACMLP))]
    for model in models:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert parameter.abs().max() == 0, name
            elif parameter.ndim == 1:
                assert torch.equal(parameter, torch.ones_like(parameter)), name
            else:
                variance, n = 2 / parameter[0].numel(), parameter.numel()
                assert parameter.mean().item() == pytest.approx(0, abs=5 * math.sqrt(variance / n)), name
                assert parameter.var().item() == pytest.approx(variance, rel=7 * math.sqrt(2 / n)), name


@pytest.mark.parametrize("kind", [*(kind for kind, _ in OWN.values()), MLP, DACMLP])
def test_only_kernels_are_called_weight_and_have_more_than_one_axis(kind: type[nn.Module]) -> None:
    """Weight decay relies on this: kernels of convolutions and the classifier decay, biases and BN don't."""
    model = kind(**TABLE) if kind in (MLP, DACMLP) else kind(**IMAGES | OWN[kind.__name__][1])
    decayed = {name for name, p in model.named_parameters() if name.endswith("weight") and p.ndim >= 2}
    kernels = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear | DACConv2d | DACLinear)
    }
    assert decayed == kernels
    for name, module in model.named_modules():
        if isinstance(module, DACConv2d | MBA | SharedBiasConv2d):
            assert f"{name}.bias" in dict(model.named_parameters())


def train_on(model: nn.Module, images: Tensor, labels: Tensor, *, steps: int, batch_size: int) -> list[float]:
    """Train with the paper's optimiser for CIFAR-10 at its first learning rate; one random batch per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=4e-4)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        rows = torch.randint(len(images), (batch_size,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [DACResNetV1, DACResNetV2])
def test_full_depth_dac_network_trains_200_steps_on_real_digits(kind: type[nn.Module]) -> None:
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8).div(8).sub(1)
    torch.manual_seed(0)
    model = kind(image_size=8, in_channels=1, num_classes=10, depth=56, width=4)
    losses = train_on(model, images, torch.from_numpy(labels), steps=200, batch_size=16)
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-20:]) / 20 < 1.0


GOLDEN = Path(__file__).parents[2] / "golden" / "dac_resnet.npz"
OUR_NAMES = {
    "v1": {
        "fc.": "head.2.",
        ".conv1.": ".residual.0.",
        ".bn1.": ".residual.1.",
        ".conv2.": ".residual.3.",
        ".bn2.": ".residual.4.",
        "conv.": "stem.0.",
        "bn.": "stem.1.",
    },
    "v2": {
        "fc.": "head.2.2.",
        ".norm1.": ".residual.0.",
        ".conv1.": ".residual.1.1.",
        ".norm2.": ".residual.2.",
        ".conv2.": ".residual.3.1.",
        "conv.": "stem.",
        "bn.": "head.0.",
    },
}
SMALL = {"image_size": 9, "in_channels": 3, "num_classes": 5, "depth": 8}


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Randomise parameters and statistics to exercise all of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) - (0.5 if tensor.ndim > 1 else 0))
    return model.double().eval()


def draw_images(n: int = 3, size: int = 9) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("version", "kind"), [("v1", ResNetV1), ("v2", ResNetV2)])
def test_baseline_equals_known_blocks_in_logits_and_image_gradients(
    version: str, kind: type[nn.Module], golden: dict[str, np.ndarray]
) -> None:
    model = kind(**SMALL, width=8).double().eval()
    model.load_state_dict(renamed(golden, f"{version}/", OUR_NAMES[version]))
    assert_equals(model, golden, f"{version}_")


def copy_shared(source: nn.Module, target: nn.Module) -> None:
    """Copy kernels, scales and statistics in order to another network of the same structure."""
    kernels = [[p for n, p in m.named_parameters() if n.endswith("weight")] for m in (source, target)]
    with torch.no_grad():
        for ours, theirs in zip(*kernels, strict=True):
            theirs.copy_(ours)
        for ours, theirs in zip(source.buffers(), target.buffers(), strict=True):
            theirs.copy_(ours)


@pytest.mark.parametrize(("dac", "shared"), [(DACResNetV1, SharedBiasResNetV1), (DACResNetV2, SharedBiasResNetV2)])
def test_dac_network_without_biases_equals_the_shared_one(dac: type[nn.Module], shared: type[nn.Module]) -> None:
    source, target = randomised(dac(**SMALL, width=4)), randomised(shared(**SMALL, width=4), seed=1)
    for model in (source, target):
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
    copy_shared(source, target)
    torch.testing.assert_close(source(draw_images()), target(draw_images()), rtol=1e-9, atol=1e-9)


def test_shared_biases_in_v2_are_shifts_of_the_baselines_norms() -> None:
    """So Table 3's v2 column compares two forms of one network, and its differences are chance."""
    base, shared = randomised(ResNetV2(**SMALL, width=4)), randomised(SharedBiasResNetV2(**SMALL, width=4), seed=1)
    copy_shared(base, shared)
    with torch.no_grad():
        for ours, theirs in zip(
            [p for n, p in shared.named_parameters() if n.endswith("bias")],
            [p for n, p in base.named_parameters() if n.endswith("bias")],
            strict=True,
        ):
            ours.copy_(theirs)
    torch.testing.assert_close(base(draw_images()), shared(draw_images()), rtol=1e-9, atol=1e-9)


def test_mba_with_one_copy_equals_shared_biases() -> None:
    mba, shared = MBAResNetV1(**SMALL, width=4, copies=1), SharedBiasResNetV1(**SMALL, width=4)
    mba, shared = randomised(mba), randomised(shared, seed=1)
    copy_shared(mba, shared)
    with torch.no_grad():
        # The bias after the last sum equals a shift of the last BN, one of its summands.
        *biases, last, classifier = [p for n, p in mba.named_parameters() if n.endswith("bias")]
        *shared_biases, shift, other = [p for n, p in shared.named_parameters() if n.endswith("bias")]
        for ours, theirs in zip((*shared_biases, shift, other), (*biases, last, classifier), strict=True):
            ours.copy_(theirs.view_as(ours))
    torch.testing.assert_close(mba(draw_images()), shared(draw_images()), rtol=1e-9, atol=1e-9)


def test_converted_blocks_pass_on_negative_sums() -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 3, 9, 9)
    for kind, has_negative in ((ResNetV1, False), (DACResNetV1, True), (ResNetV2, True), (DACResNetV2, True)):
        model = kind(**SMALL, width=4)
        assert bool((model.blocks(model.stem(images)) < 0).any()) == has_negative


def test_only_the_last_norm_of_a_dac_network_has_a_shift() -> None:
    for kind in (DACResNetV1, DACResNetV2):
        norms = [module for module in kind(**SMALL, width=4).modules() if isinstance(module, nn.BatchNorm2d)]
        assert [norm.bias is not None for norm in norms] == [False] * (len(norms) - 1) + [True]
        norms = [m for m in kind(**SMALL, width=4, has_last_shift=False).modules() if isinstance(m, nn.BatchNorm2d)]
        assert not any(norm.bias is not None for norm in norms)


def test_dac_stem_activates_the_image() -> None:
    torch.manual_seed(0)
    plain, activated = (DACResNetV1(**SMALL, width=4, has_dac_stem=has).eval() for has in (False, True))
    dark = -draw_images().float().abs()
    assert activated.stem(dark).abs().max() == 0
    assert plain.stem(dark).abs().max() > 0


def test_block_adds_its_input_to_its_connections_output() -> None:
    def nothing(inputs: int, outputs: int, stride: int) -> nn.Module:
        return nn.Conv2d(inputs, outputs, 3, stride, 1)

    block = ConvertedBlockV1(3, 3, 1, connect=nothing).double().eval()
    assert block.residual[3].weight is not None
    nn.init.zeros_(block.residual[3].weight)
    assert torch.equal(block(draw_images()), draw_images())


def test_base_is_convolution_norm_relu_then_mean_and_linear() -> None:
    torch.manual_seed(0)
    model = VGG(image_size=8, in_channels=3, num_classes=5, depth=5, width=4).double().train()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    maps = images
    for conv, stride in zip(convolutions, (1, 1, 2, 2), strict=True):
        maps = F.conv2d(maps, conv.weight, stride=stride, padding=1)
        mean, variance = maps.mean((0, 2, 3), keepdim=True), maps.var((0, 2, 3), keepdim=True, unbiased=False)
        maps = ((maps - mean) / (variance + 1e-5).sqrt()).relu()
    classifier = model.head[2]
    expected = maps.mean((2, 3)) @ classifier.weight.T + classifier.bias
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)


def test_dac_is_convolution_norm_connection_relu_mean_and_linear() -> None:
    torch.manual_seed(0)
    model = DACVGG(image_size=8, in_channels=3, num_classes=5, depth=5, width=4).double().train()
    connections = [module for module in model.modules() if isinstance(module, DACConv2d)]
    with torch.no_grad():
        for connection in connections:
            connection.bias.normal_()
        shift = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)][-1].bias
        assert shift is not None
        shift.normal_()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    stem = model.layers[0]
    assert isinstance(stem, nn.Conv2d)

    def normalised(maps: torch.Tensor) -> torch.Tensor:
        mean, variance = maps.mean((0, 2, 3), keepdim=True), maps.var((0, 2, 3), keepdim=True, unbiased=False)
        return (maps - mean) / (variance + 1e-5).sqrt()

    maps = normalised(F.conv2d(images, stem.weight, padding=1))
    for connection, stride in zip(connections, (1, 2, 2), strict=True):
        maps = normalised(dac_conv2d(maps, connection.weight, connection.bias, stride, 1))
    features = (maps + shift.view(-1, 1, 1)).relu().mean((2, 3))
    classifier = next(module for module in model.modules() if isinstance(module, nn.Linear))
    expected = features @ classifier.weight.T + classifier.bias
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)


FEATURES = 14


def rectangular(kind: type[nn.Module], depth: int, width: int) -> nn.Module:
    return kind(in_features=FEATURES, depth=depth, width=width, last_width=width)


def draw_rows(n: int = 64) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(1))


def test_matched_widths_equal_figure_4() -> None:
    assert [matched_width(width) for width in (25, 50, 100, 200)] == [18, 35, 71, 141]


def test_widths_are_constant_or_fall_evenly() -> None:
    assert hidden_widths(4, 30, 30) == [30, 30, 30, 30]
    assert hidden_widths(5, 100, 20) == [100, 80, 60, 40, 20]


def test_invalid_widths_are_refused() -> None:
    for sizes in ((1, 20, 20), (5, 20, 30), (5, 20, 0)):
        with pytest.raises(ValueError, match="depth, width, last_width are"):
            hidden_widths(*sizes)


def test_base_is_dense_norm_relu_then_one_linear_unit() -> None:
    torch.manual_seed(0)
    model, x = rectangular(MLP, 3, 6).double().train(), draw_rows().double()
    y = x
    *hidden, last = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in hidden:
        assert layer.bias is None
        y = y @ layer.weight.T
        y = ((y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(model(x), y @ last.weight.T + last.bias, rtol=1e-9, atol=1e-9)


def test_dac_activates_its_input_and_every_layer_with_own_biases() -> None:
    torch.manual_seed(0)
    model, x = rectangular(DACMLP, 3, 6).double().train(), draw_rows().double()
    connections = [module for module in model.modules() if isinstance(module, DACLinear)]
    assert len(connections) == 4
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_()
        model.output_bias.fill_(3.0)
    *hidden, last = connections
    y = x
    for layer in hidden:
        y = dac_linear(y, layer.weight, layer.bias)
        y = (y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(model(x), dac_linear(y, last.weight, last.bias) + 3, rtol=1e-9, atol=1e-9)
