"""Checks for every data set, whoever delivered it: counts, shapes, labels, classes, no image in both splits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource

Reader = TypeVar("Reader")


def find_reader(dataset: str, reader: str, known: Mapping[str, Reader]) -> Reader:
    """The reader that params.yaml names."""
    if reader not in known:
        raise DatasetError(f"params.yaml: datasets.{dataset}.reader is {reader!r}; known: {', '.join(sorted(known))}")
    return known[reader]


def check_split(images: ImageSet, split: Split, source: DatasetSource, where: str, *, may_be_part: bool) -> None:
    """Counts and shapes are as declared; only a part of a data set may have fewer images, of every class."""
    declared = source.train if split == "train" else source.test
    per_class = source.train_per_class if split == "train" else source.test_per_class
    if len(images.images) != len(images.labels):
        raise DatasetError(f"{where}: {len(images.images):,} images and {len(images.labels):,} labels")
    if len(images) > declared or (len(images) < declared and not may_be_part):
        raise DatasetError(f"{where}: {len(images):,} images; params.yaml declares {declared:,}")
    if images.images.shape[1:] != source.shape:
        raise DatasetError(f"{where}: images are {images.images.shape[1:]}; params.yaml declares {source.shape}")
    if per_class is not None:
        known = images.labels[(images.labels >= 0) & (images.labels < source.classes)]
        counts = np.bincount(known, minlength=source.classes)
        # With the whole count right, no class has fewer if none has more.
        above = np.flatnonzero(counts > np.broadcast_to(per_class, counts.shape))
        if above.size:
            raise DatasetError(
                f"{where}: {counts[above[0]]:,} images of class {above[0]}, more than params.yaml declares"
            )


def check_response(measured: np.ndarray, source: DatasetSource, where: str) -> None:
    """The least and the greatest measured value are the declared ones, if any are declared."""
    found = float(measured.min()), float(measured.max())
    if source.response_range is not None and found != source.response_range:
        low, high = source.response_range
        raise DatasetError(f"{where}: responses from {found[0]:g} to {found[1]:g}; params.yaml: {low:g} to {high:g}")


def check_classes(labels: np.ndarray, classes: tuple[str, ...], where: str) -> None:
    """Every label is a class and every class has an image."""
    outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if outside.size:
        row = int(outside[0])
        raise DatasetError(f"{where}: row {row} has label {labels[row]}; labels go from 0 to {len(classes) - 1}")
    counts = np.bincount(labels, minlength=len(classes))
    empty = [classes[index] for index in np.flatnonzero(counts == 0)]
    if empty:
        named = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise DatasetError(f"{where}: no image of {named}")


def find_shared(train: ImageSet, test: ImageSet) -> list[tuple[int, int]]:
    """(training row, test row) of every test image whose pixels are those of a training image."""
    rows = {blake2b(image.tobytes(), digest_size=16).digest(): row for row, image in enumerate(train.images)}
    keys = (blake2b(image.tobytes(), digest_size=16).digest() for image in test.images)
    return [(rows[key], row) for row, key in enumerate(keys) if key in rows]


def check_shared(shared: list[tuple[int, int]], allowed: int, dataset: str) -> None:
    """No more test images are also in the training set than in the official sets."""
    if len(shared) > allowed:
        train_row, test_row = shared[0]
        raise DatasetError(
            f"{dataset}: {len(shared)} test images are in the training set, too ({allowed} expected); "
            f"first: test image {test_row} is training image {train_row}"
        )


def pixel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 [N, C, H, W], pixels in [0, 1].

    Computed from exact counts of the 256 values, so they are the same on every machine.
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), 1000):  # all at once would take eight times the memory of the images
        for channel, pixels in enumerate(images[start : start + 1000].swapaxes(0, 1)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    values, pixels_each = np.arange(256), int(counts[0].sum())
    totals = [int(total) for total in counts @ values]
    squares = [int(square) for square in counts @ values**2]
    mean = [total / pixels_each / 255 for total in totals]
    std = [
        math.sqrt(pixels_each * square - total**2) / pixels_each / 255
        for total, square in zip(totals, squares, strict=True)
    ]
    return tuple(mean), tuple(std)
