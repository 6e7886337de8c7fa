"""The paper's networks compared with its equations, the released package and other libraries; their sizes."""

import math
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.evaluation.cost import count_parameters
from stages.ops.yat import guide_scale, yat_attention_reference, yat_conv2d_reference, yat_linear_reference
from stages.papers.nmn import (
    GPT2,
    AetherResNet18,
    DotPrototypes,
    PrintedAetherResNet18,
    ResNet18,
    YatMLP,
    YatPrototypes,
)
from stages.papers.nmn.aether_resnet import AetherBlock
from stages.papers.nmn.observations import observe
from stages.params.experiment import load_params
from tests.ops.gradients import load_case
from tests.papers.properties import renamed

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


@pytest.mark.slow(hours=True)
def test_resnet_equals_torchvisions() -> None:
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


def test_printed_network_is_the_guides_without_convolution_scales() -> None:
    """Equation 5 in the convolutions, equation 1 in the last layer, which has the only α."""
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
    """The Yat layer at the end returns squares, so the network can raise a class but never lower one below 0."""
    torch.manual_seed(0)
    model = AetherResNet18(
        image_size=16, in_channels=3, num_classes=5, width=8, features=16, scale="guide", epsilon=0.01
    )
    assert model(100 * torch.randn(16, 3, 16, 16)).min() >= 0


VECTORS = Path(__file__).parents[2] / "golden" / "nmn_gpt2.npz"
OUR_NAMES = {
    "transformer.wte": "embedding.tokens",
    "transformer.wpe": "embedding.positions",
    "transformer.ln_f": "norm",
    "transformer.h": "blocks",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.projection",
    "mlp.c_fc": "mlp.expand",
    "mlp.c_proj": "mlp.contract",
}


def by_our_names(vectors: dict[str, np.ndarray], prefix: str) -> dict[str, Tensor]:
    return {
        name: tensor.T if name.endswith("weight") and ("attention." in name or "mlp." in name) else tensor
        for name, tensor in renamed(vectors, prefix, OUR_NAMES).items()
    }


def test_gpt2_equals_transformers_in_logits_and_every_gradient() -> None:
    with np.load(VECTORS) as file:
        vectors = dict(file)
    model = GPT2(vocabulary_size=11, context=8, width=6, depth=2, num_heads=3, dropout=0.0).double()
    model.load_state_dict(by_our_names(vectors, "model/"))
    logits = model(torch.from_numpy(vectors["tokens"]))
    (logits * torch.from_numpy(vectors["logit_weights"])).sum().backward()
    np.testing.assert_allclose(logits.detach().numpy(), vectors["logits"], rtol=0, atol=1e-9)
    gradients = by_our_names(vectors, "gradients/")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-9)


def test_aether_block_equals_the_printed_equations(build_small: Callable[..., nn.Module]) -> None:
    """Token by token, with attention over previous tokens."""
    block = build_small("aether-gpt").double().blocks[0]
    x = torch.randn(1, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    block.attention.scale.alpha.data.fill_(1.7)
    block.mlp.expand.scale.alpha.data.fill_(0.6)
    q, k, v = block.attention.qkv(x).chunk(3, dim=-1)
    rows = []
    for t in range(5):
        heads = [slice(4 * h, 4 * h + 4) for h in range(3)]
        mixed = [
            yat_attention_reference(q[:, t : t + 1, h], k[:, : t + 1, h], v[:, : t + 1, h], 1.7, 0.01) for h in heads
        ]
        y = block.attention.projection(torch.cat(mixed, dim=-1)) + x[:, t : t + 1]
        scale = guide_scale(torch.tensor(0.6, dtype=torch.float64), 48)
        yat = yat_linear_reference(y, block.mlp.expand.weight, torch.zeros(48, dtype=torch.float64), scale, 0.01)
        rows.append(block.mlp.contract(yat) + y)
    torch.testing.assert_close(block(x), torch.cat(rows, dim=1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "aether-gpt", "aether-gpt-dot", "yat-gpt", "post-norm-gpt"])
def test_token_does_not_change_earlier_logits(name: str, build_small: Callable[..., nn.Module]) -> None:
    model = build_small(name).double().eval()
    tokens = torch.randint(13, (2, 8), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % 13
    moved = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert moved[:5].max() == 0
    assert moved[5:].min() > 1e-9


@pytest.mark.parametrize("name", ["gpt2", "aether-gpt"])
def test_logits_matrix_is_the_token_embedding(name: str, build_small: Callable[..., nn.Module]) -> None:
    model = build_small(name)
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    before = model(tokens)
    with torch.no_grad():
        model.embedding.tokens.weight[7] *= 3  # token 7 isn't in the text, so only its own logit changes
    torch.testing.assert_close(model(tokens), before * torch.where(torch.arange(13) == 7, 3.0, 1.0))


@pytest.mark.parametrize("name", ["gpt2", "aether-gpt", "yat-gpt"])
def test_language_models_start_like_gpt2(name: str, build_small: Callable[..., nn.Module]) -> None:
    model = build_small(name, vocabulary_size=400, width=192, depth=2)
    layers = dict(model.named_modules())
    for place, deviation in [
        ("embedding.tokens", 0.02),
        ("embedding.positions", 0.02),
        ("blocks.0.attention.qkv", 0.02),
        ("blocks.0.attention.projection", 0.02 / math.sqrt(4)),
        ("blocks.1.mlp.contract", 0.02 / math.sqrt(4)),
    ]:
        weight = layers[place].weight
        assert weight.std().item() == pytest.approx(deviation, rel=0.06), place
        assert abs(weight.mean().item()) < 4 * deviation / math.sqrt(weight.numel()), place
    expand = layers["blocks.0.mlp.expand"].weight
    xavier = math.sqrt(2 / (192 + 768))
    assert expand.std().item() == pytest.approx(0.02 if name == "gpt2" else xavier, rel=0.02)
    assert all(p.abs().max() == 0 for key, p in model.named_parameters() if key.endswith("bias"))


def test_more_tokens_than_the_context_are_refused(build_small: Callable[..., nn.Module]) -> None:
    with pytest.raises(ValueError, match="9 tokens; expected at most context, which is 8"):
        build_small("gpt2")(torch.zeros(1, 9, dtype=torch.int64))


MNIST = {"image_size": 28, "in_channels": 1, "num_classes": 10}
PACKAGE = {"scale": "multiplier", "epsilon": 1e-5}
TWO = {"image_size": 1, "in_channels": 2, "num_classes": 2}
POINTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]]).view(4, 2, 1, 1)
"""Two pixels each; the larger pixel is the class."""
CLASSES = torch.tensor([0, 1, 0, 1])


def yat(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, alpha: float) -> np.ndarray:
    """The released package's layer, unit by unit: alpha (x·w + b)² / (‖x − w‖² + 1e-5)."""
    units = [(x @ w + b) ** 2 / (((x - w) ** 2).sum(axis=1) + 1e-5) for w, b in zip(weight, bias, strict=True)]
    return alpha * np.stack(units, axis=1)


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def some_images() -> Tensor:
    return torch.rand(3, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_perceptron_is_two_yat_layers_and_a_linear_one() -> None:
    torch.manual_seed(0)
    model = YatMLP(**MNIST, hidden1=16, hidden2=8, **PACKAGE).double()
    with torch.no_grad():
        model.first.scale.alpha.fill_(1.5)
        model.second.scale.alpha.fill_(0.7)
    own, images = arrays(model), some_images()
    hidden = yat(images.flatten(1).numpy(), own["first.weight"], own["first.bias"], 1.5)
    hidden = yat(hidden, own["second.weight"], own["second.bias"], 0.7)
    expected = hidden @ own["head.weight"].T + own["head.bias"]
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-9)


def test_yat_prototypes_are_one_yat_layer() -> None:
    torch.manual_seed(0)
    model = YatPrototypes(**MNIST, **PACKAGE).double()
    own, images = arrays(model), some_images()
    expected = yat(images.flatten(1).numpy(), own["units.weight"], own["units.bias"], 1.0)
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-9)


def dot_prototypes(bias: list[float]) -> DotPrototypes:
    model = DotPrototypes(**TWO)
    with torch.no_grad():
        model.units.weight.copy_(torch.eye(2))
        model.units.bias.copy_(torch.tensor(bias))
    return model


def test_inverted_dot_products_reverse_the_order_of_classes() -> None:
    """With W = I every point is right; with −I every point is wrong."""
    model = dot_prototypes([0.0, 0.0])
    assert (model(POINTS).argmax(1) == CLASSES).all()
    observed = observe(model, POINTS, CLASSES)
    assert (dict(observed.numbers), observed.images) == ({"accuracy_after_inversion": 0.0}, 4)


def test_inversion_keeps_the_bias() -> None:
    """With −I and a bias of 10 for class 0, every point is in class 0; with −10 it would be in class 1."""
    observed = observe(dot_prototypes([10.0, 0.0]), POINTS[:3], CLASSES[:3])
    assert observed.numbers["accuracy_after_inversion"] == pytest.approx(2 / 3)


def test_inverted_yat_units_keep_classes_if_alignment_decides() -> None:
    """W = I without bias: −I squares to the same alignment, and distances hardly differ for large inputs."""
    model = YatPrototypes(**TWO, **PACKAGE)
    with torch.no_grad():
        model.units.weight.copy_(torch.eye(2))
        model.units.bias.zero_()
    assert observe(model, POINTS, CLASSES).numbers["accuracy_after_inversion"] == 1.0


def test_observation_does_not_change_the_network() -> None:
    model = dot_prototypes([0.0, 0.0])
    observe(model, POINTS, CLASSES)
    assert torch.equal(model.units.weight, torch.eye(2))


def test_another_model_is_refused() -> None:
    other = ResNet18(image_size=8, in_channels=1, num_classes=2, width=2)
    with pytest.raises(
        TypeError, match="model is a ResNet18; this paper's observations are about DotPrototypes, YatPr"
    ):
        observe(other, POINTS, CLASSES)


ROOT = Path(__file__).resolve().parents[3]


def test_mnist_perceptron_has_the_printed_parameters() -> None:
    arm = load_params(ROOT).experiments["nmn-mnist"].arms["yat-mlp"]
    keywords = {name: value for name, value in arm.model.items() if name != "name"}
    with torch.device("meta"):
        model = YatMLP(image_size=28, in_channels=1, num_classes=10, **keywords)
    assert count_parameters(model) == 235_148


def test_aether_models_have_no_normalisation_and_no_activation(build_small: Callable[..., nn.Module]) -> None:
    allowed = {nn.Linear, nn.Conv2d, nn.Embedding, nn.Identity, nn.Dropout}
    for name in ("aether-resnet", "aether-gpt"):
        leaves = {type(m) for m in build_small(name).modules() if not list(m.children())}
        assert {leaf for leaf in leaves if leaf.__module__.startswith("torch.")} <= allowed
