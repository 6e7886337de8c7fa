"""Properties of all models of the paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.nmn import GPT2, AetherGPT, AetherResNet18, PostNormGPT, ResNet18, YatGPT, YatMLP
from stages.params.experiment import load_params

ROOT = Path(__file__).resolve().parents[3]
SMALL_CORPUS = {"vocabulary_size": 4096, "context": 256, "width": 256, "depth": 6, "num_heads": 8, "dropout": 0.2}
GPT2_SMALL = {
    "vocabulary_size": 50257,
    "context": 1024,
    "width": 768,
    "depth": 12,
    "num_heads": 12,
    "dropout": 0.0,
}


@pytest.mark.parametrize(
    ("classes", "image_size", "baseline", "aether"),
    [
        (10, 32, 11_173_962, 11_292_873),
        (100, 32, 11_220_132, 11_315_913),
        (200, 64, 11_271_432, 11_341_513),
        (10, 96, 11_173_962, 11_292_873),
    ],
)
def test_image_models_have_the_parameters_of_the_authors_script(
    classes: int, image_size: int, baseline: int, aether: int
) -> None:
    shape = {"image_size": image_size, "in_channels": 3, "num_classes": classes, "width": 64}
    with torch.device("meta"):
        assert count_parameters(ResNet18(**shape)) == baseline
        assert count_parameters(AetherResNet18(**shape, features=256, scale="guide", epsilon=0.007)) == aether


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: GPT2(**GPT2_SMALL), 124_439_808),
        (lambda: AetherGPT(**GPT2_SMALL, attention="yat", scale="guide", epsilon=0.1), 124_364_556 + 12),
        (lambda: AetherGPT(**GPT2_SMALL, attention="dot", scale="guide", epsilon=0.1), 124_364_556),
        (lambda: YatGPT(**GPT2_SMALL, scale="multiplier", epsilon=0.1), 163_002_973),
        (lambda: PostNormGPT(**GPT2_SMALL), 120_590_929),
        (lambda: GPT2(**SMALL_CORPUS), 5_853_184),
        (lambda: AetherGPT(**SMALL_CORPUS, attention="yat", scale="guide", epsilon=0.1), 5_840_396),
    ],
    ids=["gpt2", "aether", "aether-dot", "yat-gpt", "post-norm-gpt", "gpt2-small-corpus", "aether-small-corpus"],
)
def test_language_models_have_the_counted_parameters(build: Callable[[], nn.Module], expected: int) -> None:
    """Yat attention adds one learned scale per block to the count without it; the last two are for small corpora."""
    with torch.device("meta"):
        assert count_parameters(build()) == expected


def test_mnist_perceptron_has_the_printed_parameters() -> None:
    arm = load_params(ROOT).experiments["nmn-mnist"].arms["yat-mlp"]
    keywords = {name: value for name, value in arm.model.items() if name != "name"}
    with torch.device("meta"):
        model = YatMLP(image_size=28, in_channels=1, num_classes=10, **keywords)
    assert count_parameters(model) == 235_148


def conv_flops(image_size: int, classes: int, head: int) -> int:
    """2 x multiply-accumulates of the convolutions that both image networks share, plus a head of `head` products."""
    side, flops = image_size, 2 * 9 * 3 * 64 * image_size**2
    for stage in range(4):
        out_channels, in_channels = 64 * 2**stage, 64 * 2 ** max(stage - 1, 0)
        side = side // 2 if stage else side
        flops += 2 * 9 * side**2 * (in_channels * out_channels + 3 * out_channels**2)
        if stage:
            flops += 2 * side**2 * in_channels * out_channels
    return flops + 2 * head


@pytest.mark.parametrize(("image_size", "classes"), [(32, 100), (96, 10)])
def test_flops_of_image_models_are_those_of_the_formula(image_size: int, classes: int) -> None:
    """Reusing the dot product, a Yat layer has the matrix products of the layer that it replaces and no more."""
    shape = {"image_size": image_size, "in_channels": 3, "num_classes": classes, "width": 64}
    with torch.device("meta"):
        baseline = ResNet18(**shape)
        aether = AetherResNet18(**shape, features=256, scale="guide", epsilon=0.007)
        images = (3, image_size, image_size)
        assert flops_per_sample(baseline, images) == conv_flops(image_size, classes, 512 * classes)
        assert flops_per_sample(aether, images) == conv_flops(image_size, classes, 512 * 256 + 256 * classes)


def test_aether_models_have_no_normalisation_and_no_activation(build_small: Callable[..., nn.Module]) -> None:
    allowed = {nn.Linear, nn.Conv2d, nn.Embedding, nn.Identity, nn.Dropout}
    for name in ("aether-resnet", "aether-gpt"):
        leaves = {type(m) for m in build_small(name).modules() if not list(m.children())}
        assert {leaf for leaf in leaves if leaf.__module__.startswith("torch.")} <= allowed
