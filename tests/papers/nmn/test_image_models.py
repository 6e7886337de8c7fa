"""ResNet-18 and AetherResNet-18 at full size against the networks of the released package and of torchvision."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stages.ops.yat_conv import yat_conv2d_reference
from stages.papers.nmn import AetherResNet18, PrintedAetherResNet18, ResNet18
from stages.papers.nmn.aether_resnet import AetherBlock
from tests.ops.yat_evidence import load_case

MAKER = Path(__file__).parents[2] / "golden" / "make_nmn_yat.py"
SHAPE = {"image_size": 32, "in_channels": 3, "num_classes": 10, "width": 64}


@pytest.mark.parametrize(
    ("case", "build"),
    [
        ("resnet", lambda: ResNet18(**SHAPE)),
        ("aether", lambda: AetherResNet18(**SHAPE, features=256, scale="multiplier", epsilon=0.007)),
    ],
)
def test_network_equals_the_released_one_in_logits_and_image_gradients(
    case: str, build: Callable[[], nn.Module]
) -> None:
    vectors = load_case(case)
    model = build().double().eval()
    runpy.run_path(str(MAKER))["fill"](model.parameters(), seed=3)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    image = images[:1].requires_grad_()
    logits = model(image)
    logits.square().sum().backward()
    torch.testing.assert_close(logits, vectors["logits"][:1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(image.grad, vectors["image_gradients"][:1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_resnet_equals_that_of_torchvision() -> None:
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    ours = ResNet18(**SHAPE)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.copy_(other)
        logits, expected = (model.double().train()(images) for model in (ours, theirs))
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stride", [1, 2])
def test_block_is_conv_of_yat_conv_plus_skip(stride: int) -> None:
    torch.manual_seed(0)
    block = AetherBlock(in_channels=4, out_channels=4, stride=stride, scale=None, epsilon=0.1).double()
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    skip = x if stride == 1 else torch.nn.functional.conv2d(x, block.skip.weight, stride=2)
    bias = torch.zeros(4, dtype=torch.float64)
    yat: Tensor = yat_conv2d_reference(
        x, block.yat.weight, bias, 1.0, 0.1, stride=stride, padding=1, dilation=1, groups=1
    )
    expected = torch.nn.functional.conv2d(yat, block.linear.weight, padding=1) + skip
    torch.testing.assert_close(block(x), expected, rtol=1e-9, atol=1e-9)


def test_the_printed_network_is_the_guides_with_the_convolutions_scale_taken_away() -> None:
    """Equation 5 alone in the convolutions, equation 1 in the last layer: no α but the last layer's."""
    keywords = {"image_size": 16, "in_channels": 3, "num_classes": 5, "width": 8, "features": 16, "epsilon": 0.01}
    torch.manual_seed(0)
    guide, printed = AetherResNet18(**keywords, scale="guide"), PrintedAetherResNet18(**keywords)
    weights = guide.state_dict()
    alphas = {name for name in weights if name.endswith("scale.alpha")}
    assert alphas - printed.state_dict().keys() == alphas - {"head.scale.alpha"} != set()
    printed.load_state_dict({name: weights[name] for name in printed.state_dict()})
    for block in guide.blocks:
        block.yat.scale.reading, block.yat.scale.alpha = None, None
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(printed(images), guide(images))


def test_aether_logits_are_never_negative() -> None:
    """The Yat layer at the end gives squares: the network can raise a class, and lower none below 0."""
    torch.manual_seed(0)
    model = AetherResNet18(
        image_size=16, in_channels=3, num_classes=5, width=8, features=16, scale="guide", epsilon=0.01
    )
    assert model(100 * torch.randn(16, 3, 16, 16)).min() >= 0
