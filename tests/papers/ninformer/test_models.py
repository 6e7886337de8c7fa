"""Properties of all four architectures of the paper, and of their variants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from stages.params.experiment import Params
from stages.run import ModelSpec
from tests.papers.properties import draw_images

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


def test_dropout_stands_only_in_the_mlps(small_model: Build) -> None:
    dropouts = {name.rsplit(".", 1)[0] for name, m in small_model().named_modules() if isinstance(m, nn.Dropout)}
    assert dropouts
    assert all(name.endswith(("mlp", "conv")) for name in dropouts)


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
