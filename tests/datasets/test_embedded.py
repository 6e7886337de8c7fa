from __future__ import annotations

import numpy as np
import pytest

from stages.datasets.embedded import class_names, compose_stand_in, load_sources
from stages.datasets.packed import digest_images

MNIST, CIFAR10, CIFAR100 = ((1, 28, 28), 10), ((3, 32, 32), 10), ((3, 32, 32), 100)
TINY_IMAGENET, STL10, ISIC = ((3, 64, 64), 200), ((3, 96, 96), 10), ((3, 80, 80), 8)
ALL = [MNIST, CIFAR10, CIFAR100, TINY_IMAGENET, STL10, ISIC]

Kind = tuple[tuple[int, int, int], int]


@pytest.mark.parametrize("kind", ALL, ids=["mnist", "cifar10", "cifar100", "tinyimagenet", "stl10", "isic"])
def test_stand_in_has_the_shape_and_classes_of_its_data_set(kind: Kind) -> None:
    shape, classes = kind
    train, test = compose_stand_in("any", shape, classes)
    assert train.images.shape == (max(128, classes), *shape)
    assert test.images.shape == (16, *shape)
    assert set(train.labels.tolist()) == set(range(classes))
    assert len(set(test.labels.tolist())) == min(classes, 16)
    counts = np.bincount(train.labels)
    assert counts.max() - counts.min() <= 1


def test_classes_are_named_for_what_they_show() -> None:
    assert class_names(10)[7] == "digits-7"
    assert class_names(100)[7] == "digits-07"
    assert class_names(200)[142] == "digits-142"


@pytest.mark.parametrize(
    ("name", "kind", "digest"),
    [
        ("mnist", MNIST, "c2c936e2243d"),
        ("cifar10", CIFAR10, "1faaea649f59"),
        ("cifar100", CIFAR100, "81930dbb751a"),
    ],
)
def test_stand_in_is_the_same_on_every_machine(name: str, kind: Kind, digest: str) -> None:
    train, test = compose_stand_in(name, *kind)
    assert digest_images(train, test, class_names(kind[1])).startswith(digest)


def cells(images: np.ndarray, places: int) -> set[bytes]:
    """The handwriting in images [N, 1, 8, 8 * places]: at this size every source appears pixel by pixel."""
    ink = (images[:, 0].astype(int) * 16 + 254) // 255
    return {cell.astype(np.uint8).tobytes() for part in np.split(ink, places, axis=2) for cell in part}


@pytest.mark.parametrize(("classes", "places"), [(10, 1), (100, 2)])
def test_no_handwriting_is_in_both_splits(classes: int, places: int) -> None:
    train, test = compose_stand_in("any", (1, 8, 8 * places), classes)
    images, _ = load_sources()
    sources = {image.tobytes() for image in images}
    assert cells(train.images, places) <= sources, "cells are recovered exactly"
    assert cells(test.images, places) <= sources
    assert cells(train.images, places).isdisjoint(cells(test.images, places))


def test_label_reads_off_the_image_as_tens_and_units() -> None:
    images, digits = load_sources()
    meaning = {image.tobytes(): int(digit) for image, digit in zip(images, digits, strict=True)}
    train, _ = compose_stand_in("any", (1, 8, 16), 100)
    ink = ((train.images[:, 0].astype(int) * 16 + 254) // 255).astype(np.uint8)
    read = [10 * meaning[i[:, :8].tobytes()] + meaning[i[:, 8:].tobytes()] for i in ink]
    assert read == train.labels.tolist()
