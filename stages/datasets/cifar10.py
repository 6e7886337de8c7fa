"""CIFAR-10 in its binary version (Krizhevsky 2009; format: https://www.cs.toronto.edu/~kriz/cifar.html)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES: dict[Split, tuple[str, ...]] = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}
SHAPE = (3, 32, 32)


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official images of a split, in order: [N, 3, 32, 32].  A row is the class, then the pixels."""
    parts = [read_rows(folder / name, label_bytes=1) for name in FILES[split]]
    return ImageSet(
        images=np.concatenate([images for _, images in parts]),
        labels=np.concatenate([heads[:, 0] for heads, _ in parts]).astype(np.int64),
    )


def read_rows(path: Path, *, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Label bytes [N, label_bytes] and images [N, 3, 32, 32] (red, green, blue planes) of a binary CIFAR file."""
    content = np.fromfile(path, dtype=np.uint8)
    row_bytes = label_bytes + int(np.prod(SHAPE))
    if content.size == 0 or content.size % row_bytes:
        raise DatasetError(f"{path}: {content.size:,} bytes are not a whole number of rows of {row_bytes:,} bytes")
    rows = content.reshape(-1, row_bytes)
    return rows[:, :label_bytes], rows[:, label_bytes:].reshape(-1, *SHAPE)
