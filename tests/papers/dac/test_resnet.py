"""ResNets against torchvision and timm, and the conversions against the networks that they become without biases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.papers.dac import (
    DACResNetV1,
    DACResNetV2,
    MBAResNetV1,
    ResNetV1,
    ResNetV2,
    SharedBiasResNetV1,
    SharedBiasResNetV2,
)
from stages.papers.dac.layers import Shortcut, residual_plan
from stages.papers.dac.resnet_v1 import ConvertedBlockV1
from tests.papers.properties import assert_equals, renamed

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
    """Random parameters and statistics, so that nothing hides at 0 or 1."""
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
    """Kernels, scales and statistics from one network to another of the same structure, in order."""
    kernels = [[p for n, p in m.named_parameters() if n.endswith("weight")] for m in (source, target)]
    with torch.no_grad():
        for ours, theirs in zip(*kernels, strict=True):
            theirs.copy_(ours)
        for ours, theirs in zip(source.buffers(), target.buffers(), strict=True):
            theirs.copy_(ours)


@pytest.mark.parametrize(("dac", "shared"), [(DACResNetV1, SharedBiasResNetV1), (DACResNetV2, SharedBiasResNetV2)])
def test_without_biases_a_dac_network_is_the_one_with_shared_biases(
    dac: type[nn.Module], shared: type[nn.Module]
) -> None:
    source, target = randomised(dac(**SMALL, width=4)), randomised(shared(**SMALL, width=4), seed=1)
    for model in (source, target):
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
    copy_shared(source, target)
    torch.testing.assert_close(source(draw_images()), target(draw_images()), rtol=1e-9, atol=1e-9)


def test_shared_biases_in_v2_are_the_shifts_of_the_baselines_norms() -> None:
    """So Table 3's v2 column compares two forms of one network, and its differences measure chance."""
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


def test_mba_with_one_copy_is_the_network_with_shared_biases() -> None:
    mba, shared = MBAResNetV1(**SMALL, width=4, copies=1), SharedBiasResNetV1(**SMALL, width=4)
    mba, shared = randomised(mba), randomised(shared, seed=1)
    copy_shared(mba, shared)
    with torch.no_grad():
        # The bias behind the last sum is the same as a shift of the last BN, one summand of it.
        *biases, last, classifier = [p for n, p in mba.named_parameters() if n.endswith("bias")]
        *shared_biases, shift, other = [p for n, p in shared.named_parameters() if n.endswith("bias")]
        for ours, theirs in zip((*shared_biases, shift, other), (*biases, last, classifier), strict=True):
            ours.copy_(theirs.view_as(ours))
    torch.testing.assert_close(mba(draw_images()), shared(draw_images()), rtol=1e-9, atol=1e-9)


def test_converted_blocks_hand_on_sums_below_zero() -> None:
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


def test_a_dac_stem_activates_the_image() -> None:
    torch.manual_seed(0)
    plain, activated = (DACResNetV1(**SMALL, width=4, has_dac_stem=has).eval() for has in (False, True))
    dark = -draw_images().float().abs()
    assert activated.stem(dark).abs().max() == 0
    assert plain.stem(dark).abs().max() > 0


def test_shortcut_takes_every_second_pixel_and_adds_empty_channels() -> None:
    x = draw_images(2, 5)
    out = Shortcut(3, 6, 2)(x)
    assert torch.equal(out[:, :3], x[:, :, ::2, ::2])
    assert out[:, 3:].abs().max() == 0
    assert Shortcut(3, 3, 1)(x) is not None and torch.equal(Shortcut(3, 3, 1)(x), x)


def test_a_block_adds_its_input_to_what_its_connections_give() -> None:
    def nothing(inputs: int, outputs: int, stride: int) -> nn.Module:
        return nn.Conv2d(inputs, outputs, 3, stride, 1)

    block = ConvertedBlockV1(3, 3, 1, connect=nothing).double().eval()
    assert block.residual[3].weight is not None
    nn.init.zeros_(block.residual[3].weight)
    assert torch.equal(block(draw_images()), draw_images())


def test_plan_is_three_stages_that_double_and_halve() -> None:
    assert residual_plan(14, 16) == [(16, 16, 1)] * 2 + [(16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    assert [len(residual_plan(depth, 16)) for depth in (20, 32, 44, 56)] == [9, 15, 21, 27]
