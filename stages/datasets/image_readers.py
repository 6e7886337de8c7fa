"""Data sets of images in binary files: MNIST, CIFAR-10 and CIFAR-100, STL-10.

MNIST has four idx files (LeCun, Cortes, Burges 1998; format: http://yann.lecun.com/exdb/mnist/).  CIFAR is in its
binary version (Krizhevsky 2009; format: https://www.cs.toronto.edu/~kriz/cifar.html), and so is STL-10 (Coates, Lee, Ng
2011; format: https://cs.stanford.edu/~acoates/stl10/), whose unlabelled pictures are not used.

Parts of ImageNet: Imagenette, Imagewoof (Howard 2019, fast.ai), Tiny ImageNet (Li, Karpathy, Johnson 2015, CS231n).

Imagenette has ten dissimilar classes, Imagewoof ten breeds of dogs; both in the 160 px version.  A picture is packed as
80 x 80 pixels: its shorter side resized to 80, the middle kept, for training and test alike; random crops come from
padding, as for CIFAR.  The DAC paper says no more than "160 px version" and "80 x 80".

Tiny ImageNet has 200 classes at 64 x 64 pixels, here also resized to 32 x 32 (bilinear), the HyperBF paper's stated
input.  The test set is the 10,000 labelled validation pictures; the labels of the official test pictures are not
published.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import yaml

from stages.datasets.archive import read_pictures, walk
from stages.datasets.manifest import DatasetError, ImageReader
from stages.datasets.packed import ImageSet, Split

_CLASSES = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
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


def _read_mnist(folder: Path, split: Split) -> ImageSet:
    """The official images of a split, in order: [N, 1, 28, 28]."""
    images_name, labels_name = _MNIST_FILES[split]
    images = read_idx(folder / images_name, IMAGES_MAGIC)
    labels = read_idx(folder / labels_name, LABELS_MAGIC)
    return ImageSet(images=images[:, None], labels=labels.astype(np.int64))


def read_idx(path: Path, magic: int) -> np.ndarray:
    """Read a gzipped idx file of unsigned bytes: big-endian magic number, one length per dimension, then the values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: not a complete gzip file ({error})") from None
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
    """Reader of CIFAR files: a row is the class (in CIFAR-100 after an unused coarse class), then the pixels."""

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official images of a split, in order: [N, 3, 32, 32]."""
        parts = [read_rows(folder / name, label_bytes=label_bytes) for name in files[split]]
        return ImageSet(
            images=np.concatenate([images for _, images in parts]),
            labels=np.concatenate([heads[:, -1] for heads, _ in parts]).astype(np.int64),
        )

    return ImageReader(classes=classes, files=files, read_split=read_split)


def read_rows(path: Path, *, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read label bytes [N, label_bytes] and images [N, 3, 32, 32] (red, green, blue planes) of a binary CIFAR file."""
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
    tuple(_CLASSES["cifar10"]),
    {
        "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("cifar-10-batches-bin/test_batch.bin",),
    },
    label_bytes=1,
)
CIFAR100 = _cifar(
    tuple(_CLASSES["cifar100"]),
    {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)},
    label_bytes=2,
)
STL10 = ImageReader(
    classes=tuple(_CLASSES["stl10"]),
    files=_STL10_FILES,
    read_split=_read_stl10,
)


FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
# The number is the version's size; a mirror's files may come from another version.
_PICTURE = re.compile(r"image(?:nette|woof)2(?:-\d+)?/(train|val)/(n\d{8})/[\w-]+\.JPEG")

TINY_WNIDS = tuple(_CLASSES["tiny_imagenet"])
_ROOT = "tiny-imagenet-200"
_CLASS_LIST, _ANNOTATIONS = f"{_ROOT}/wnids.txt", f"{_ROOT}/val/val_annotations.txt"
_TRAIN = re.compile(rf"{_ROOT}/train/(n\d{{8}})/images/\1_\d+\.JPEG")
_UNLABELLED = re.compile(rf"{_ROOT}/test/images/test_\d+\.JPEG")


def _of_ten_classes(archive: str, classes: Mapping[str, str]) -> ImageReader:
    """Reader of ten classes; `classes` has their names by the WordNet ids that name their folders."""

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official pictures of a split, in the order of the archive: [N, 3, 80, 80]."""
        return read_pictures(folder / archive, labels_by_folder(folder / archive, list(classes), split), 80)

    return ImageReader(
        classes=tuple(classes.values()), files={"train": (archive,), "test": (archive,)}, read_split=read_split
    )


def labels_by_folder(archive: Path, wnids: Sequence[str], split: Split) -> dict[str, int]:
    """Return the class of every picture of a split by its name in the archive; each folder is a class."""
    labels = {}
    for member in walk(archive):
        path = PurePosixPath(member.name)
        # Operating systems leave files whose names begin with a dot in archives.
        if path.suffix.lower() not in (".jpeg", ".jpg", ".png") or path.name.startswith("."):
            continue
        match = _PICTURE.fullmatch(member.name)
        if match is None or match[2] not in wnids:
            raise DatasetError(f"{member.where}: a picture that belongs to no class")
        if match[1] == FOLDERS[split]:
            labels[member.name] = wnids.index(match[2])
    return labels


def _tiny(side: int) -> ImageReader:
    archive = "tiny-imagenet-200.zip"

    def read_split(folder: Path, split: Split) -> ImageSet:
        """The official pictures of a split, in the order of the archive: [N, 3, side, side]."""
        return read_pictures(folder / archive, _tiny_labels(folder / archive)[split], side)

    return ImageReader(
        classes=tuple(_CLASSES["tiny_imagenet"].values()),
        files={"train": (archive,), "test": (archive,)},
        read_split=read_split,
    )


def _tiny_labels(archive: Path) -> dict[Split, dict[str, int]]:
    """Return the class of every labelled picture by its name in the archive."""
    pictures, texts = set(), {}
    for member in walk(archive):
        if member.name.endswith(".JPEG"):
            pictures.add(member.name)
        elif member.name in (_CLASS_LIST, _ANNOTATIONS):
            texts[member.name] = member.read().decode(errors="replace")
    if sorted(texts.get(_CLASS_LIST, "").split()) != list(TINY_WNIDS):
        raise DatasetError(f"{archive}, {_CLASS_LIST}: missing, or not the {len(TINY_WNIDS)} classes of Tiny ImageNet")
    matches = {name: _TRAIN.fullmatch(name) for name in pictures}
    train = {name: TINY_WNIDS.index(match[1]) for name, match in matches.items() if match and match[1] in TINY_WNIDS}
    test = _annotated(texts.get(_ANNOTATIONS, ""), archive)
    for name in sorted(pictures - train.keys() - test.keys()):
        if not _UNLABELLED.fullmatch(name):
            raise DatasetError(f"{archive}, {name}: a picture that belongs to no class")
    for name in sorted(test.keys() - pictures):
        raise DatasetError(f"{archive}, {name}: {_ANNOTATIONS} names it, but it isn't there")
    return {"train": train, "test": test}


def _annotated(text: str, archive: Path) -> dict[str, int]:
    """Return the class of every validation picture; a line is its name, its class, then an unused box."""
    labels = {}
    for line in text.splitlines():
        picture, wnid, *_ = [*line.split("\t"), ""]
        name = f"{_ROOT}/val/images/{picture}"
        if wnid not in TINY_WNIDS:
            raise DatasetError(f"{archive}, {_ANNOTATIONS}: {line!r} names no class of Tiny ImageNet")
        if name in labels:
            raise DatasetError(f"{archive}, {_ANNOTATIONS}: {picture} occurs twice")
        labels[name] = TINY_WNIDS.index(wnid)
    return labels


IMAGENETTE = _of_ten_classes("imagenette2-160.tgz", _CLASSES["imagenette"])
IMAGEWOOF = _of_ten_classes("imagewoof2-160.tgz", _CLASSES["imagewoof"])
TINY_IMAGENET, TINY_IMAGENET_32 = _tiny(64), _tiny(32)
