"""Stand-ins that need no network: real handwritten digits composed into as many classes as a data set has.

The digits are the 1,797 of 8 x 8 pixels that scikit-learn ships (Alpaydin, Kaynak 1998, the test part of the UCI set
"Optical Recognition of Handwritten Digits").  A class is a number; its digits stand side by side, each as large as
fits, upscaled without smoothing.  Images with three channels get a colour of their own for ink and paper.

A stand-in shares only the shape and the number of classes of its data set; its classes are named
`digits-42`.  The sources are divided between training and test set before anything is composed, so no handwriting is in
both.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from stages.datasets.packed import ImageSet

TRAIN_IMAGES = 128
TEST_IMAGES = 16  # every printed architecture reads this many: most of an evaluation's time
TEST_EVERY = 4  # every fourth source of a digit belongs to the test set
INK_LEVELS = 16


def class_names(classes: int) -> tuple[str, ...]:
    """`digits-0` to `digits-9`, `digits-00` to `digits-99` and so on."""
    return tuple(f"digits-{number:0{_places(classes)}d}" for number in range(classes))


def compose_stand_in(name: str, shape: tuple[int, ...], classes: int) -> tuple[ImageSet, ImageSet]:
    """Training and test set with images uint8 of `shape` [C, H, W]; `name` seeds the choice of digits and colours.

    Every class is in the training set equally often, give or take one.  If the test set has fewer images than classes,
    its images are spread over all classes.
    """
    images, digits = load_sources()
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    # RandomState and not default_rng: its stream is frozen, so the digest stays the same with every numpy.
    random = np.random.RandomState(seed)
    rank = np.zeros(len(digits), dtype=np.int64)
    for digit in range(10):
        rank[digits == digit] = np.arange(np.count_nonzero(digits == digit))
    held_out = rank % TEST_EVERY == 0
    train_images, test_images = stand_in_counts(classes)
    train_labels = random.permutation(np.arange(train_images) % classes)
    every = np.arange(test_images)
    test_labels = every % classes if classes <= test_images else every * classes // test_images
    train = _compose(train_labels, images[~held_out], digits[~held_out], shape, _places(classes), random)
    test = _compose(test_labels, images[held_out], digits[held_out], shape, _places(classes), random)
    return train, test


def stand_in_counts(classes: int) -> tuple[int, int]:
    """Numbers of training and test images."""
    return max(TRAIN_IMAGES, classes), TEST_IMAGES


def load_sources() -> tuple[np.ndarray, np.ndarray]:
    """Ink uint8 [1797, 8, 8] in 0 to 16, and digits int64 [1797]; what `sklearn.datasets.load_digits` returns."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("placeholder data need scikit-learn's digits; install scikit-learn")
    # Read from the package's folder: importing sklearn.datasets takes seconds for every data set.
    table = np.loadtxt(Path(spec.origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.int64)
    return table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1]


def _places(classes: int) -> int:
    return len(str(classes - 1))


def _compose(
    labels: np.ndarray,
    sources: np.ndarray,
    digits: np.ndarray,
    shape: tuple[int, ...],
    places: int,
    random: np.random.RandomState,
) -> ImageSet:
    channels, height, width = shape
    side = min(height, width // places)
    top, left = (height - side) // 2, (width - side * places) // 2
    ink = np.zeros((len(labels), height, width), dtype=np.int16)  # 255 * INK_LEVELS fits
    nearest = np.arange(side) * 8 // side
    for place in range(places):
        wanted = labels // 10 ** (places - 1 - place) % 10
        chosen = np.array([random.choice(np.flatnonzero(digits == digit)) for digit in wanted])
        column = left + place * side
        ink[:, top : top + side, column : column + side] = sources[chosen][:, nearest][:, :, nearest]
    paper, pen = _colours(len(labels), channels, random)
    blended = (paper * (INK_LEVELS - ink[:, None]) + pen * ink[:, None]) // INK_LEVELS
    return ImageSet(images=blended.astype(np.uint8), labels=labels.astype(np.int64))


def _colours(count: int, channels: int, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Paper and pen [count, channels, 1, 1]: black and white for one channel, else a dark and a light colour."""
    if channels == 1:
        return np.zeros((count, 1, 1, 1), dtype=np.int16), np.full((count, 1, 1, 1), 255, dtype=np.int16)
    dark = random.randint(0, 112, size=(count, channels, 1, 1)).astype(np.int16)
    light = random.randint(144, 256, size=(count, channels, 1, 1)).astype(np.int16)
    is_light_paper = random.randint(0, 2, size=(count, 1, 1, 1)) == 1
    return np.where(is_light_paper, light, dark), np.where(is_light_paper, dark, light)
