"""Every network of the papers at test size learns with all its parameters and keeps samples separate."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers import build_model, model_paths
from stages.papers.brownian import ViT as BrownianViT
from stages.papers.dac import DACMLP, MLP
from stages.papers.ninformer import ViT
from stages.run import ModelSpec
from tests.papers.brownian import conftest as brownian
from tests.papers.dac import conftest as dac
from tests.papers.hyperbf import conftest as hyperbf
from tests.papers.ninformer import conftest as ninformer
from tests.papers.nmn import conftest as nmn

Build = Callable[..., nn.Module]
TOKENS, CLASSES = 13, 5
NETWORKS: dict[str, Build] = {
    "brownian-vit": partial(BrownianViT, **brownian.SMALL),
    **{f"dac-{name}": partial(kind, **dac.SMALL | own) for name, (kind, own) in dac.OWN.items()},
    **{f"dac-{kind.__name__}": partial(kind, **dac.TABLE) for kind in (MLP, DACMLP)},
    **{f"hyperbf-{name}": partial(kind, **hyperbf.SMALL | own) for name, (kind, own) in hyperbf.OWN.items()},
    **{
        f"ninformer-{kind.__name__}": partial(kind, **ninformer.SMALL | own | {"dropout": 0.0})
        for kind, own in ninformer.OWN.items()
    },
    **{f"nmn-{name}": partial(kind, **keywords) for name, (kind, keywords) in nmn.SMALL.items()},
}
PYTORCHS_WEIGHTS = [name for name in NETWORKS if name.startswith(("brownian", "hyperbf", "ninformer"))]
DEEP = [name for name in NETWORKS if name.startswith("dac-") and "MBA" not in name and "MLP" not in name]
every = pytest.mark.parametrize("name", NETWORKS)


def build(name: str, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name](**changes)


def inputs_of(name: str, n: int) -> Tensor:
    keywords, generator = NETWORKS[name].keywords, torch.Generator().manual_seed(1)  # type: ignore[attr-defined]
    if "vocabulary_size" in keywords:
        return torch.randint(TOKENS, (n, 8), generator=generator)
    if "in_features" in keywords:
        return torch.randn(n, keywords["in_features"], generator=generator)
    return torch.randn(n, 3, keywords["image_size"], keywords["image_size"], generator=generator)


def loss_of(logits: Tensor) -> Tensor:
    """Loss of one class per image or token, or of one number per row."""
    if logits.shape[1:] == (1,):
        return (logits.squeeze(1) - torch.arange(len(logits)) % 5).square().mean()
    generator = torch.Generator().manual_seed(2)
    is_text = logits.ndim == 3
    targets = torch.randint(TOKENS, logits.shape[:2], generator=generator) if is_text else torch.arange(len(logits)) % 5
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@every
def test_model_overfits_one_batch(name: str) -> None:
    wider = {"width": 24 if "gpt" in name else 8} if name.startswith("nmn") else {}
    known = NETWORKS[name].keywords  # type: ignore[attr-defined]
    model = build(name, **{keyword: size for keyword, size in wider.items() if keyword in known})
    inputs, optimizer = inputs_of(name, 4), torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss = loss_of(model(inputs))
        if loss.item() < 0.05:
            return
        loss.backward()
        optimizer.step()
    raise AssertionError(f"the loss is still {loss.item()}")


@every
def test_every_parameter_gets_a_gradient(name: str) -> None:
    """Parameters are moved first, because HyperBF's attention starts with equal positions and M = I."""
    model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    loss_of(model(inputs_of(name, 8))).backward()
    still = [place for place, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert [place for place in still if not place.endswith(".unused")] == []


@every
def test_sample_in_evaluation_affects_only_its_own_logits(name: str) -> None:
    model, inputs = build(name).double().eval(), inputs_of(name, 4)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    changed = inputs.clone()
    changed[1] = inputs[1] + 1 if inputs.is_floating_point() else (inputs[1] + 1) % TOKENS
    with torch.no_grad():
        before, after = model(inputs), model(changed)
    assert before.shape in ((4, CLASSES), (4, 8, TOKENS), (4, 1))
    moved = (before - after).abs().flatten(1).amax(dim=1)
    assert moved[1] > 1e-6 and moved[[0, 2, 3]].max() < 1e-12


@pytest.mark.parametrize("name", [name for name, make in NETWORKS.items() if "dropout" in make.keywords])  # type: ignore[attr-defined]
def test_dropout_acts_only_in_training(name: str) -> None:
    # Training mode updates BatchNorm's statistics, so each mode gets its own models.
    inputs, (kept, dropped) = inputs_of(name, 4), (build(name), build(name, dropout=0.5))
    assert torch.equal(kept.eval()(inputs), dropped.eval()(inputs))
    assert not torch.allclose(kept.train()(inputs), dropped.train()(inputs))


@every
def test_bfloat16_autocast_is_close_to_float32_with_finite_gradients(name: str) -> None:
    model, inputs = build(name), inputs_of(name, 4)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(inputs)
    loss_of(low.float()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(low.detach().float(), model(inputs), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "hyperbf-hyperbf" else pytest.mark.slow(hours=True)) for name in NETWORKS],
)
def test_model_compiles_into_one_graph(name: str) -> None:
    model, inputs = build(name).eval(), inputs_of(name, 2)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs), model(inputs))  # eager fast paths sum in another order


@pytest.mark.parametrize("name", PYTORCHS_WEIGHTS)
def test_weights_start_like_pytorchs(name: str) -> None:
    """Uniform in ±1/√fan_in for every product's weight and bias, with variance 1/(3 fan_in); norms are 1 and 0."""
    for place, module in build(name, dim=128, depth=1).named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in, n = module.weight[0].numel(), module.weight.numel()
            assert abs(module.weight.mean()) < 5 * (1 / (3 * fan_in * n)) ** 0.5, place
            assert module.weight.var().item() == pytest.approx(1 / (3 * fan_in), rel=5 / n**0.5), place
            if module.bias is not None and not name.startswith("hyperbf"):
                assert 0 < module.bias.abs().max() <= fan_in**-0.5, place
        elif isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all(), place
        positions = getattr(module, "positions", None)
        if positions is not None and not name.startswith("hyperbf"):
            assert abs(positions.mean().item()) < 4 * 0.02 / positions.numel() ** 0.5
            assert positions.std().item() == pytest.approx(0.02, rel=0.1), "small and around zero"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("brownian-vit", {"patch_size": 5}, "patch_size is 5; expected a divisor of image_size, which is 12"),
    ("brownian-vit", {"num_heads": 3}, "num_heads is 3; expected a divisor of dim, which is 16"),
    ("hyperbf-vit", {"patch_size": 5}, "patch_size is 5; expected a divisor of the image's size, which is 12"),
    *((f"hyperbf-{kind}", {"num_heads": 3}, "num_heads is 3; expected a divisor of") for kind in ("vit", "hyperbf")),
    ("ninformer-ViT", {"num_heads": 3}, "num_heads is 3; expected a divisor of dim, which is 16"),
    ("ninformer-MLPMixer", {"patch_size": 5}, "patch_size is 5; expected a divisor of image_size, which is 12"),
    *((name, {"depth": 19}, "depth is 19") for name in DEEP),
    *((name, {"image_size": 3}, "image_size is 3") for name in ("dac-ResNetV1", "dac-ResNetV2", "dac-VGG")),
    *(
        (f"nmn-{kind}", {"image_size": size}, f"image_size is {size}; expected a positive multiple of 8")
        for kind, size in (("resnet", 0), ("resnet", 28), ("aether-resnet", 4), ("aether-resnet", 33))
    ),
    ("nmn-gpt2", {"num_heads": 5}, "num_heads is 5; expected a divisor of width, which is 12"),
    ("nmn-aether-gpt", {"num_heads": 5}, "num_heads is 5; expected a divisor of"),
    ("nmn-aether-gpt", {"attention": "sum"}, "attention is 'sum'; known: yat, dot"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_invalid_arguments_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **changes)


def test_models_take_only_keyword_arguments() -> None:
    for make in NETWORKS.values():
        parameters = inspect.signature(make.func).parameters.values()  # type: ignore[attr-defined]
        assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}


VIT = "stages.papers.ninformer.vit:ViT"
ARGUMENTS = ninformer.SMALL | ninformer.OWN[ViT] | {"dropout": 0.0}


def test_spec_builds_the_class_it_names() -> None:
    assert type(build_model(ModelSpec(path=VIT, arguments=ARGUMENTS))) is ViT


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "stages.papers.ninformer.vit:ViTBlock",
        "stages.papers.ninformer.vit:nn",
        "stages.papers.ninformer.layers:FeedForward",
        "stages.papers.ninformer:ViT",
        "stages.papers.ninformer.vit",
        "stages.papers.ninformer.vit:ViT:ViT",
        "",
    ],
)
def test_unexported_path_lists_the_choices(path: str) -> None:
    with pytest.raises(ValueError, match=r"known: .*stages\.papers\.ninformer\.vit:ViT"):
        build_model(ModelSpec(path=path, arguments=ARGUMENTS))


def test_malicious_path_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="hostile_module"):
        build_model(ModelSpec(path="hostile_module:Model", arguments={}))
    assert "hostile_module" not in sys.modules


def test_misspelt_and_missing_arguments_are_reported() -> None:
    arguments = {key: value for key, value in ARGUMENTS.items() if key != "num_heads"}
    with pytest.raises(TypeError, match="missing argument num_heads; it takes image_size"):
        build_model(ModelSpec(path=VIT, arguments=arguments))
    with pytest.raises(TypeError, match=r"unknown argument num_head; it takes image_size, .*num_heads"):
        build_model(ModelSpec(path=VIT, arguments=arguments | {"num_head": 2}))


def test_every_known_path_is_a_class() -> None:
    import importlib

    for path in model_paths():
        module, _, name = path.partition(":")
        assert isinstance(getattr(importlib.import_module(module), name), type)
