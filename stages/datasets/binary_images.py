"""Data sets of images in binary files: MNIST, CIFAR-10 and CIFAR-100, STL-10.

MNIST has four idx files (LeCun, Cortes, Burges 1998; format: http://yann.lecun.com/exdb/mnist/).  CIFAR is in its
binary version (Krizhevsky 2009; format: https://www.cs.toronto.edu/~kriz/cifar.html), and so is STL-10 (Coates, Lee, Ng
2011; format: https://cs.stanford.edu/~acoates/stl10/), whose unlabelled pictures are not used.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stages.datasets.manifest import ImageReader
from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError

Files = Mapping[Split, tuple[str, ...]]
_CIFAR_SHAPE, _STL10_SHAPE = (3, 32, 32), (3, 96, 96)
IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801  # third byte: unsigned bytes; fourth: number of dimensions
_MNIST_FILES: Files = {
    "train": ("MNIST/raw/train-images-idx3-ubyte.gz", "MNIST/raw/train-labels-idx1-ubyte.gz"),
    "test": ("MNIST/raw/t10k-images-idx3-ubyte.gz", "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
}
_STL10_FILES: Files = {
    "train": ("stl10_binary/train_X.bin", "stl10_binary/train_y.bin"),
    "test": ("stl10_binary/test_X.bin", "stl10_binary/test_y.bin"),
}
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


def _read_mnist(folder: Path, split: Split) -> ImageSet:
    """The official images of a split, in order: [N, 1, 28, 28]."""
    images_name, labels_name = _MNIST_FILES[split]
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


def _cifar(classes: tuple[str, ...], files: Files, *, label_bytes: int) -> ImageReader:
    """A row is the class, in CIFAR-100 after one of 20 coarse classes that are not used, then the pixels."""

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official images of a split, in order: [N, 3, 32, 32]."""
        parts = [read_rows(folder / name, label_bytes=label_bytes) for name in files[split]]
        return ImageSet(
            images=np.concatenate([images for _, images in parts]),
            labels=np.concatenate([heads[:, -1] for heads, _ in parts]).astype(np.int64),
        )

    return ImageReader(classes=classes, files=files, read_split=read_split)


def read_rows(path: Path, *, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Label bytes [N, label_bytes] and images [N, 3, 32, 32] (red, green, blue planes) of a binary CIFAR file."""
    content = np.fromfile(path, dtype=np.uint8)
    row_bytes = label_bytes + int(np.prod(_CIFAR_SHAPE))
    if content.size == 0 or content.size % row_bytes:
        raise DatasetError(f"{path}: {content.size:,} bytes are not a whole number of rows of {row_bytes:,} bytes")
    rows = content.reshape(-1, row_bytes)
    return rows[:, :label_bytes], rows[:, label_bytes:].reshape(-1, *_CIFAR_SHAPE)


def _read_stl10(folder: Path, split: Split) -> ImageSet:
    """The official labelled pictures of a split, in order: [N, 3, 96, 96]."""
    images_name, labels_name = _STL10_FILES[split]
    pixels = np.fromfile(folder / images_name, dtype=np.uint8)
    if pixels.size == 0 or pixels.size % np.prod(_STL10_SHAPE):
        raise DatasetError(
            f"{folder / images_name}: {pixels.size:,} bytes are not a whole number of pictures of "
            f"{np.prod(_STL10_SHAPE):,} bytes"
        )
    # A colour plane is stored column by column.
    images = pixels.reshape(-1, *_STL10_SHAPE).transpose(0, 1, 3, 2)
    # The publisher counts classes from 1.
    labels = np.fromfile(folder / labels_name, dtype=np.uint8).astype(np.int64) - 1
    return ImageSet(images=images, labels=labels)


MNIST = ImageReader(classes=tuple("0123456789"), files=_MNIST_FILES, read_split=_read_mnist)
CIFAR10 = _cifar(
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    {
        "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("cifar-10-batches-bin/test_batch.bin",),
    },
    label_bytes=1,
)
CIFAR100 = _cifar(
    tuple(_CIFAR100_CLASSES.split()),
    {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)},
    label_bytes=2,
)
STL10 = ImageReader(
    classes=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
    files=_STL10_FILES,
    read_split=_read_stl10,
)
