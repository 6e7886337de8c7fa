"""Properties of all models of the paper."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stages.papers.nmn
from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.nmn import GPT2, AetherGPT, AetherResNet18, PostNormGPT, ResNet18, YatGPT, YatMLP
from stages.params.experiment import load_params
from tests.papers.nmn.conftest import SMALL, SmallModel
from tests.papers.properties import without_gradient

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


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


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


def test_models_take_keywords_alone_and_every_one_is_exported() -> None:
    for model_class in {model.model_class for model in SMALL.values()}:
        assert model_class.__name__ in stages.papers.nmn.__all__
        kinds = {parameter.kind for parameter in inspect.signature(model_class).parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_one_batch_is_overfitted(small_model: SmallModel) -> None:
    wider = {"width": 24} if small_model.reads_text else {"width": 8}
    model = small_model.build(**{name: size for name, size in wider.items() if name in small_model.keywords})
    inputs, targets = small_model.inputs(3), small_model.targets(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(45):
        optimizer.zero_grad()
        loss = mean_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < 0.05


def test_every_parameter_gets_a_gradient(small_model: SmallModel) -> None:
    model = small_model.build()
    mean_loss(model(small_model.inputs(4)), small_model.targets(4)).backward()
    assert without_gradient(model) == []


def test_a_sample_changes_only_its_own_logits_in_evaluation(small_model: SmallModel) -> None:
    model = small_model.build().double().eval()
    inputs = small_model.inputs(4)
    inputs = inputs if small_model.reads_text else inputs.double()
    changed = inputs.clone()
    changed[1] = (inputs[1] + 1) % 13 if small_model.reads_text else inputs[1] + 1
    moved = (model(inputs) - model(changed)).abs().flatten(1).amax(dim=1)
    assert moved[1] > 1e-6
    assert moved[[0, 2, 3]].max() == 0


def test_bfloat16_autocast_gives_finite_gradients(small_model: SmallModel) -> None:
    model = small_model.build()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(small_model.inputs(4))
    mean_loss(logits.float(), small_model.targets(4)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_model_compiles_into_one_graph(small_model: SmallModel) -> None:
    model = small_model.build().eval()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    inputs = small_model.inputs(2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs), model(inputs))  # eager has fast paths, in another order of sums


def test_aether_models_have_no_normalisation_and_no_activation(small_models: dict[str, SmallModel]) -> None:
    allowed = {nn.Linear, nn.Conv2d, nn.Embedding, nn.Identity, nn.Dropout}
    for name in ("aether-resnet", "aether-gpt"):
        leaves = {type(m) for m in small_models[name].build().modules() if not list(m.children())}
        assert {leaf for leaf in leaves if leaf.__module__.startswith("torch.")} <= allowed


@pytest.mark.parametrize("image_size", [0, 4, 28, 33])
@pytest.mark.parametrize("name", ["resnet", "aether-resnet"])
def test_images_that_do_not_halve_three_times_are_refused(
    name: str, image_size: int, build_small: Callable[..., nn.Module]
) -> None:
    with pytest.raises(ValueError, match=f"image_size is {image_size}; expected a positive multiple of 8"):
        build_small(name, image_size=image_size)
