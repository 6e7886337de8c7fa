"""Batches made in one pass over their bytes equal those of PyTorch's operators bit for bit."""

import re

import pytest
import torch
from torch import Tensor

from stages.ops.fast import crops
from stages.ops.fast.cpp import same_bits
from stages.ops.normalize import Normalization
from stages.run import AugmentationSpec
from stages.training.augment import BatchAugmenter, Draws

pytestmark = pytest.mark.skipif(crops.load_library(crops._SOURCE) is None, reason="no C++ compiler here")

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
SPECS = {
    "plain": AugmentationSpec(),
    "crop": AugmentationSpec(crop_padding=4),
    "flip": AugmentationSpec(horizontal_flip=True),
    "crop and flip": AugmentationSpec(crop_padding=4, horizontal_flip=True),
}


def images_of(count: int, *shape: int) -> tuple[Tensor, Normalization]:
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return images, Normalization(MEAN[: shape[0]], STD[: shape[0]], shape, images.device)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 96, 64), (2, 7, 5), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_batch_equals_the_plain_one_bit_for_bit(shape: tuple[int, ...], name: str) -> None:
    images, normalization = images_of(60, *shape)
    fast = crops.crops_of(images, SPECS[name].crop_padding, normalization)
    assert fast is not None
    augmenter, generator = BatchAugmenter(images, SPECS[name]), torch.Generator().manual_seed(2)
    for count in (1, 3, 60):
        rows, draws = torch.randperm(60, generator=generator)[:count], augmenter.draw(count, generator)
        wanted = normalization(augmenter.batch(rows, draws))
        assert same_bits(fast(rows, draws.offsets, draws.flipped), wanted)


def test_every_offset_is_cropped_as_planned() -> None:
    images, normalization = images_of(1, 1, 3, 4)
    padding = 5  # larger than the image, so windows may be empty
    fast = crops.crops_of(images, padding, normalization)
    assert fast is not None
    augmenter = BatchAugmenter(images, AugmentationSpec(crop_padding=padding, horizontal_flip=True))
    steps = torch.arange(2 * padding + 1)
    offsets = torch.cartesian_prod(steps, steps).t()
    rows = torch.zeros(offsets.shape[1], dtype=torch.int64)
    for is_flipped in (False, True):
        draws = Draws(offsets, torch.full((len(rows),), is_flipped))
        assert same_bits(fast(rows, draws.offsets, draws.flipped), normalization(augmenter.batch(rows, draws)))


@pytest.mark.parametrize("row", [-1, 60])
def test_invalid_row_is_refused(row: int) -> None:
    images, normalization = images_of(60, 3, 8, 8)
    fast = crops.crops_of(images, 0, normalization)
    assert fast is not None
    with pytest.raises(IndexError, match=re.escape(f"{min(row, 5)} to {max(row, 5)}, of 60 images")):
        fast(torch.tensor([5, row]), None, None)


def test_different_rounding_leaves_batches_to_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    images, normalization = images_of(2, 3, 8, 9)  # a shape that no other test uses
    normalization.shift[1, 3, 4] += 1e-6  # like a build that rounds differently somewhere in an image
    assert crops.crops_of(images, 0, normalization) is None
    assert "images of [3, 8, 9]" in capsys.readouterr().err


def test_unsupported_images_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    images, normalization = images_of(2, 3, 8, 8)
    assert crops.crops_of(images.transpose(2, 3), 0, normalization) is None, "lines aren't contiguous"
    assert crops.crops_of(images.to("meta"), 0, normalization) is None
    monkeypatch.setattr(crops, "load_library", lambda source: None)
    assert crops.crops_of(images, 0, normalization) is None
