"""MNIST in its four idx files (LeCun, Cortes, Burges 1998; format: http://yann.lecun.com/exdb/mnist/)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError

CLASSES = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
FILES: dict[Split, tuple[str, ...]] = {
    "train": ("MNIST/raw/train-images-idx3-ubyte.gz", "MNIST/raw/train-labels-idx1-ubyte.gz"),
    "test": ("MNIST/raw/t10k-images-idx3-ubyte.gz", "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
}
IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801  # third byte: unsigned bytes; fourth: number of dimensions


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official images of a split, in order: [N, 1, 28, 28]."""
    images_name, labels_name = FILES[split]
    images = read_idx(folder / images_name, IMAGES_MAGIC)
    labels = read_idx(folder / labels_name, LABELS_MAGIC)
    return ImageSet(images=images[:, None], labels=labels.astype(np.int64))


def read_idx(path: Path, magic: int) -> np.ndarray:
    """A gzipped idx file of unsigned bytes: big-endian magic number, one length per dimension, then the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: not a whole gzip file ({error})") from None
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise DatasetError(f"{path}: its magic number is {found:#010x}, expected {magic:#010x}")
    dimensions = magic & 0xFF
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DatasetError(f"{path}: ends within its header, after {len(content)} of {start} bytes")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DatasetError(f"{path}: {values.size:,} values; its header says {' x '.join(map(str, shape))}")
    return values.reshape(shape)
