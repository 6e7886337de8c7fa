"""Batched augmentation gives what torchvision's transforms give image by image, for the same offsets and flips."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms import functional as vision

from stages.run import AugmentationSpec
from stages.training.augment import BatchAugmenter


def batch_of(images: Tensor, spec: AugmentationSpec, rows: Tensor, seed: int) -> Tensor:
    augmenter = BatchAugmenter(images, spec)
    return augmenter.batch(rows, augmenter.draw(len(rows), torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "spec",
    [
        AugmentationSpec(crop_padding=2, horizontal_flip=True),
        AugmentationSpec(crop_padding=3),
        AugmentationSpec(horizontal_flip=True),
    ],
    ids=["crop-and-flip", "crop", "flip"],
)
def test_batch_equals_torchvision_pad_crop_flip(spec: AugmentationSpec, channels: int) -> None:
    images = torch.randint(0, 256, (6, channels, 8, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    rows, padding = torch.tensor([5, 0, 0, 3]), spec.crop_padding
    augmented = batch_of(images, spec, rows, 7)
    generator = torch.Generator().manual_seed(7)
    top, left = torch.randint(0, 2 * padding + 1, (2, 4, 1), generator=generator).flatten(1).tolist()
    flips = [False] * 4
    if spec.horizontal_flip:
        flips = (torch.rand(4, 1, generator=generator) < 0.5).flatten().tolist()
        assert any(flips) and not all(flips), "both cases are in the batch"
    for position, row in enumerate(rows.tolist()):
        expected = vision.crop(vision.pad(images[row], [padding]), top[position], left[position], 8, 10)
        expected = vision.hflip(expected) if flips[position] else expected
        assert torch.equal(augmented[position], expected)


def test_offsets_and_flips_cover_their_range_evenly() -> None:
    images = torch.arange(16, dtype=torch.uint8).add(1).view(1, 1, 4, 4)
    spec = AugmentationSpec(crop_padding=1, horizontal_flip=True)
    batch = batch_of(images, spec, torch.zeros(9000, dtype=torch.int64), 0)
    _, counts = batch.flatten(1).unique(dim=0, return_counts=True)
    assert len(counts) == 18  # 3 x 3 offsets, flipped or not
    assert counts.min() > 400 and counts.max() < 600  # expected 500, 4.6 standard deviations


def test_no_augmentation_is_the_images() -> None:
    images = torch.randint(0, 256, (4, 1, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    batch = batch_of(images, AugmentationSpec(), torch.tensor([2, 1]), 0)
    assert torch.equal(batch, images[[2, 1]])
