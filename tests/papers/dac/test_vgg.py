from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.ops.dac import dac_conv2d
from stages.ops.dac_layers import DACConv2d
from stages.papers.dac import DACVGG, VGG
from stages.papers.dac.vgg import plain_plan


def test_plans_are_the_two_of_the_text() -> None:
    """20/16: widths change after 7 and 13 of 19 convolutions; 14/32: after 5 and 9 of 13."""
    for (depth, width), changes in (((20, 16), (7, 13, 19)), ((14, 32), (5, 9, 13))):
        plan = plain_plan(depth, 3, width)
        starts = (0, *changes)
        expected = [width * 2**s for s in range(3) for _ in range(starts[s], starts[s + 1])]
        assert [outputs for _, outputs, _ in plan] == expected
        assert [inputs for inputs, _, _ in plan] == [3, *expected[:-1]]
        assert [index for index, (_, _, stride) in enumerate(plan) if stride == 2] == list(changes[:2])


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


def test_dac_is_convolution_then_norm_and_connection_then_relu_mean_and_linear() -> None:
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


def test_other_depths_are_refused() -> None:
    with pytest.raises(ValueError, match="depth is 19; expected 3n \\+ 2 layers"):
        plain_plan(19, 3, 16)
