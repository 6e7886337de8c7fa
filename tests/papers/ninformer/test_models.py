"""Properties of all four architectures of the paper, and of their variants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stages.params.experiment import Params
from stages.run import ModelSpec
from tests.papers.properties import draw_images, loss_of_one_batch, moved_by_the_second, without_gradient

Build = Callable[..., nn.Module]

PRINTED = {
    (data, arm) for data in ("mnist", "cifar10", "cifar100") for arm in ("vit", "mlp-mixer", "local-vit", "ninformer")
}
PARAMETERS_OF_CLASSES = {
    "ViT": (2_112_266, 2_112_266, 2_120_458, 2_143_588),
    "PositionedViT": (2_112_266 + 49 * 256, 2_112_266 + 16_384, 2_120_458 + 16_384, 2_143_588 + 16_384),
    "MLPMixer": (1_265_614, 1_327_114, 1_335_306, 1_358_436),
    "LocalViT": (2_137_866, 2_137_866, 2_146_058, 2_169_188),
    "SqueezeExciteLocalViT": (2_664_714, 2_664_714, 2_672_906, 2_696_036),
    "SeparableLocalViT": (3_183_370, 3_183_370, 3_191_562, 3_214_692),
    "NiNformer": (2_584_526, 2_646_026, 2_654_218, 2_677_348),
    "SharedNormNiNformer": (2_582_478, 2_643_978, 2_652_170, 2_675_300),
}
"""MNIST at 28 and at 32 pixels, CIFAR-10, CIFAR-100; computed from the text's shapes, not from our modules."""


def test_parameter_counts_of_every_class_equal_the_hand_computed_ones(
    meta_models: dict[str, dict[str, nn.Module]],
) -> None:
    counts = {
        name: tuple(sum(p.numel() for p in model.parameters()) for model in models.values())
        for name, models in meta_models.items()
    }
    assert counts == PARAMETERS_OF_CLASSES


def test_weights_are_drawn_as_pytorch_draws_them(small_model: Build) -> None:
    """Uniform in ±1/√fan_in for every product's weight and bias, so a variance of 1/(3 fan_in); norms are 1 and 0."""
    for name, module in small_model(dim=128, depth=1).named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            fan_in, n = module.weight[0].numel(), module.weight.numel()
            assert abs(module.weight.mean()) < 4 * (1 / (3 * fan_in * n)) ** 0.5, name
            assert module.weight.var().item() == pytest.approx(1 / (3 * fan_in), rel=5 / n**0.5), name
            if module.bias is not None:
                assert module.bias.abs().max() <= fan_in**-0.5, name
                assert module.bias.abs().max() > 0, name
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
            assert (module.weight == 1).all(), name
            assert (module.bias == 0).all(), name


def test_every_params_block_builds_a_model_that_maps_its_images_to_its_classes(
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


def test_one_batch_is_overfitted(small_model: Build) -> None:
    model = small_model()
    images, labels = draw_images(5), torch.arange(5)
    assert loss_of_one_batch(model, images, labels, torch.optim.Adam(model.parameters(), lr=0.01)) < 0.05


def test_every_parameter_gets_a_gradient(small_model: Build) -> None:
    model = small_model(dropout=0.5).train()
    F.cross_entropy(model(draw_images()), torch.arange(4)).backward()
    assert without_gradient(model) == []


def test_a_sample_changes_only_its_own_logits_in_evaluation(small_model: Build) -> None:
    model = small_model(dropout=0.5).double().eval()
    images = draw_images().double()
    moved = moved_by_the_second(model, images)
    assert moved[1] > 1e-3
    assert moved[[0, 2, 3]].max() < 1e-12


def test_dropout_acts_in_training_and_not_in_evaluation(small_model: Build) -> None:
    # A step in training mode moves BatchNorm's statistics, so each mode gets its own models.
    images = draw_images()
    kept, dropped = small_model(dropout=0.0), small_model(dropout=0.5)
    assert torch.equal(kept.eval()(images), dropped.eval()(images))
    assert not torch.allclose(kept.train()(images), dropped.train()(images))


def test_dropout_stands_only_in_the_mlps(small_model: Build) -> None:
    dropouts = {name.rsplit(".", 1)[0] for name, m in small_model().named_modules() if isinstance(m, nn.Dropout)}
    assert dropouts
    assert all(name.endswith(("mlp", "conv")) for name in dropouts)


def test_model_compiles_into_one_graph(small_model: Build) -> None:
    model = small_model(depth=1).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    images = draw_images()
    with torch.no_grad():
        assert torch.equal(compiled(images), model(images))


def test_patches_that_do_not_tile_the_image_are_refused(small_model: Build) -> None:
    with pytest.raises(ValueError, match="patch_size is 5; expected a divisor of image_size, which is 12"):
        small_model(patch_size=5)


def test_only_vit_cannot_tell_the_order_of_patches(small_model: Build) -> None:
    """No positions and a mean over tokens: Procedure 1's ViT sees a bag of patches; the others don't."""
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
