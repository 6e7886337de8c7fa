"""STL-10 in its binary version (Coates, Lee, Ng 2011; format: https://cs.stanford.edu/~acoates/stl10/).

Only the labelled pictures; the archive's unlabelled ones are not used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
FILES: dict[Split, tuple[str, ...]] = {
    "train": ("stl10_binary/train_X.bin", "stl10_binary/train_y.bin"),
    "test": ("stl10_binary/test_X.bin", "stl10_binary/test_y.bin"),
}
SHAPE = (3, 96, 96)


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official labelled pictures of a split, in order: [N, 3, 96, 96]."""
    images_name, labels_name = FILES[split]
    pixels = np.fromfile(folder / images_name, dtype=np.uint8)
    if pixels.size == 0 or pixels.size % np.prod(SHAPE):
        raise DatasetError(
            f"{folder / images_name}: {pixels.size:,} bytes are not a whole number of pictures of "
            f"{np.prod(SHAPE):,} bytes"
        )
    # A colour plane is stored column by column.
    images = pixels.reshape(-1, *SHAPE).transpose(0, 1, 3, 2)
    # The publisher counts classes from 1.
    labels = np.fromfile(folder / labels_name, dtype=np.uint8).astype(np.int64) - 1
    return ImageSet(images=images, labels=labels)
