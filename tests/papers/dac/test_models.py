"""Properties of all image networks of the paper, and their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from stages.evaluation.cost import count_parameters
from stages.ops.dac_layers import DACConv2d
from stages.ops.mba import MBA
from stages.papers.dac import (
    DACVGG,
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

Build = Callable[..., nn.Module]

RESNET = {  # depth: (base, DAC) for 10 classes; computed from the shapes that the text states, not from our modules
    20: (269_722, 298_794),
    32: (464_154, 514_282),
    44: (658_586, 729_770),
    56: (853_018, 945_258),
}
VGGS = {(20, 16): (269_722, 298_794), (14, 32): (685_994, 760_970)}
PER_CLASS = {16: 65, 32: 129}


def count(kind: type[nn.Module], *, num_classes: int = 10, image_size: int = 32, **own: int) -> int:
    return count_parameters(kind(image_size=image_size, in_channels=3, num_classes=num_classes, **own))


@pytest.mark.parametrize("depth", RESNET)
def test_resnets_have_the_computed_parameters_in_both_versions(depth: int) -> None:
    for base, dac in ((ResNetV1, DACResNetV1), (ResNetV2, DACResNetV2)):
        for classes, image_size in ((10, 32), (100, 32), (10, 80), (8, 80)):
            counts = [count(k, depth=depth, width=16, num_classes=classes, image_size=image_size) for k in (base, dac)]
            assert counts == [number + (classes - 10) * PER_CLASS[16] for number in RESNET[depth]]


@pytest.mark.parametrize(("depth", "width"), VGGS)
def test_vggs_have_the_computed_parameters(depth: int, width: int) -> None:
    for classes in (10, 100):
        counts = [count(kind, depth=depth, width=width, num_classes=classes) for kind in (VGG, DACVGG)]
        assert counts == [number + (classes - 10) * PER_CLASS[width] for number in VGGS[depth, width]]


def test_wide_ablation_and_mba_networks_have_the_computed_parameters() -> None:
    assert (count(ResNetV2, depth=20, width=64), count(DACResNetV2, depth=20, width=64)) == (4_286_026, 4_758_666)
    assert {count(kind, depth=20, width=16) for kind in (SharedBiasResNetV1, SharedBiasResNetV2)} == {269_722}
    stem, scales, weights, classifier = 432, 688, 267_264, 64 * 100
    for copies in (2, 4, 8):
        expected = stem + scales + copies * (weights + 688 + classifier) + 100
        assert count(MBAResNetV1, depth=20, width=16, num_classes=100, copies=copies) == expected


def test_weights_start_he_normal_and_all_biases_zero() -> None:
    torch.manual_seed(0)
    arguments = {"image_size": 32, "in_channels": 3, "num_classes": 100, "width": 16}
    models = [kind(depth=20, **arguments) for kind in (ResNetV1, DACResNetV1, DACResNetV2, SharedBiasResNetV1, DACVGG)]
    for model in (*models, MBAResNetV1(depth=20, copies=2, **arguments)):
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert parameter.abs().max() == 0, name
            elif parameter.ndim == 1:
                assert torch.equal(parameter, torch.ones_like(parameter)), name
            else:
                variance, n = 2 / parameter[0].numel(), parameter.numel()
                assert parameter.mean().item() == pytest.approx(0, abs=5 * math.sqrt(variance / n)), name
                assert parameter.var().item() == pytest.approx(variance, rel=7 * math.sqrt(2 / n)), name


def test_only_kernels_are_called_weight_and_have_more_than_one_axis(small_model: Build) -> None:
    """Weight decay depends on this: kernels of convolutions and of the classifier, no bias, no BN (section 5)."""
    model = small_model()
    decayed = {name for name, p in model.named_parameters() if name.endswith("weight") and p.ndim >= 2}
    kernels = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear | DACConv2d)
    }
    assert decayed == kernels
    for name, module in model.named_modules():
        if isinstance(module, DACConv2d | MBA | SharedBiasConv2d):
            assert f"{name}.bias" in dict(model.named_parameters())


def train_on(model: nn.Module, images: Tensor, labels: Tensor, *, steps: int, batch_size: int) -> list[float]:
    """The paper's optimiser for CIFAR-10 with its first learning rate; one random batch per step."""
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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [DACResNetV1, DACResNetV2])
def test_a_dac_network_of_full_depth_trains_200_steps_on_real_digits(kind: type[nn.Module]) -> None:
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8).div(8).sub(1)
    torch.manual_seed(0)
    model = kind(image_size=8, in_channels=1, num_classes=10, depth=56, width=4)
    losses = train_on(model, images, torch.from_numpy(labels), steps=200, batch_size=16)
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-20:]) / 20 < 1.0
