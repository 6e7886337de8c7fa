"""Batches made in one pass in C++ equal those of PyTorch's operators, bit by bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from stages.ops import agreement_native, native
from stages.run import AugmentationSpec, OptimizerSpec, Protocol
from stages.training import images_native
from stages.training.images import ImageClassification, LabelledImages
from stages.training.images_native import FastImageClassification, with_fast_batches

pytestmark = pytest.mark.skipif(native.load_library(images_native._SOURCE) is None, reason="no C++ compiler here")


def task(channels: int, *, padding: int = 0, flip: bool = False) -> ImageClassification:
    generator = torch.Generator().manual_seed(channels)
    images = torch.randint(0, 256, (40, channels, 9, 13), dtype=torch.uint8, generator=generator)
    protocol = Protocol(
        optimizer=OptimizerSpec(name="adam", lr=0.1),
        batch_size=8,
        epochs=1,
        mean=(0.4914, 0.4822, 0.4465)[:channels],
        std=(0.247, 0.2435, 0.2616)[:channels],
        augmentation=AugmentationSpec(crop_padding=padding, horizontal_flip=flip),
    )
    return ImageClassification(LabelledImages(images, torch.arange(40)), protocol)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", [0, 2, 13])
def test_training_batches_have_the_same_bits(padding: int, flip: bool, channels: int) -> None:
    plain = task(channels, padding=padding, flip=flip)
    fast = with_fast_batches(plain)
    assert isinstance(fast, FastImageClassification)
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    rows = torch.tensor([39, 0, 7, 7, 23, 1, 38])
    for _ in range(3):
        (wanted, labels), (got, own) = (
            each.training_batch(rows, generator) for each, generator in zip((plain, fast), generators, strict=True)
        )
        assert torch.equal(got, wanted) and got.stride() == wanted.stride() and torch.equal(own, labels)
    assert torch.equal(*(generator.get_state() for generator in generators))


def test_plain_batches_have_the_same_bits_and_no_augmentation() -> None:
    plain = task(3, padding=2, flip=True)
    rows = torch.arange(39, -1, -1)
    for (wanted, labels), (got, own) in zip(
        plain.plain_batches(rows, 7), with_fast_batches(plain).plain_batches(rows, 7), strict=True
    ):
        assert torch.equal(got, wanted) and torch.equal(own, labels)


def test_rows_may_count_from_the_end_and_in_any_integer() -> None:
    plain = task(3, padding=2, flip=True)
    rows = torch.tensor([-1, 3, -40], dtype=torch.int32)
    wanted, got = (
        each.training_batch(rows, torch.Generator().manual_seed(5)) for each in (plain, with_fast_batches(plain))
    )
    assert all(map(torch.equal, got, wanted))
    wanted, got = (next(each.plain_batches(rows, 3)) for each in (plain, with_fast_batches(plain)))
    assert all(map(torch.equal, got, wanted))


@pytest.mark.parametrize("rows", [[40], [0, -41]])
def test_a_row_that_is_not_there_is_an_error(rows: list[int]) -> None:
    with pytest.raises(IndexError, match="there are 40 images"):
        with_fast_batches(task(1)).training_batch(torch.tensor(rows), torch.Generator())


def test_where_pytorch_rounds_otherwise_its_batches_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = task(3)
    monkeypatch.setattr(agreement_native, "_answers", {})
    numbers = FastImageClassification._numbers.func
    monkeypatch.setattr(
        FastImageClassification, "_numbers", property(lambda self: numbers(self).nextafter(torch.ones(())))
    )
    assert with_fast_batches(plain) is plain


def test_what_it_does_not_know_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, empty = task(1), task(1)
    empty.data = dataclasses.replace(empty.data, labels=torch.arange(0))
    assert with_fast_batches(empty) is empty
    floats = task(1)
    floats.data = dataclasses.replace(floats.data, images=floats.data.images.float())
    assert with_fast_batches(floats) is floats

    class Other(ImageClassification):
        """A subclass, which may have its own batches."""

    other = Other(plain.data, plain.protocol)
    assert with_fast_batches(other) is other
    monkeypatch.setattr(images_native, "load_library", lambda source: None)
    assert with_fast_batches(plain) is plain
