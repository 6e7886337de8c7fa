"""Published data sets of images, from binary files or archives of pictures.

MNIST has four idx files (LeCun, Cortes, Burges 1998; format: http://yann.lecun.com/exdb/mnist/).  CIFAR is in its
binary version (Krizhevsky 2009; format: https://www.cs.toronto.edu/~kriz/cifar.html), and so is STL-10 (Coates, Lee, Ng
2011; format: https://cs.stanford.edu/~acoates/stl10/), whose unlabelled pictures are not used.

Three are parts of ImageNet: Imagenette, Imagewoof (Howard 2019, fast.ai), Tiny ImageNet (Li, Karpathy, Johnson 2015,
CS231n).  Imagenette has ten dissimilar classes, Imagewoof ten breeds of dogs; both in the 160 px version.  A picture is
packed as 80 x 80 pixels: its shorter side resized to 80, the middle kept, for training and test alike; random crops
come from padding, as for CIFAR.  The DAC paper says no more than "160 px version" and "80 x 80".

Tiny ImageNet has 200 classes at 64 x 64 pixels, here also resized to 32 x 32 (bilinear), the HyperBF paper's stated
input.  The test set is the 10,000 labelled validation pictures; the labels of the official test pictures are not
published.

ISIC 2019 has dermoscopic pictures of skin lesions in eight classes (Tschandl 2018, Codella 2017, Combalia 2019).  The
labels of the official test set have a ninth class, so the labelled training pictures are divided here: a sixth of each
class is the test set.  Pictures of one lesion stay together if the metadata name the lesion, and so do files with the
same content; the rest is divided by picture.  Packed at 80 x 80 pixels as Imagenette is.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import yaml

from stages.datasets.archive import Member, read_pictures, size_of, walk
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


ISIC_COLUMNS = tuple(_CLASSES["isic2019"])
ISIC_ARCHIVE, ISIC_TRUTH, ISIC_METADATA = (
    f"ISIC_2019_Training_{name}" for name in ("Input.zip", "GroundTruth.csv", "Metadata.csv")
)
_TEST_PART = 6  # 4 : 1 : 1 with the five folds of the protocol
# HAM10000 and BCN_20000, 22,428 of the 25,331 pictures; those of MSK have various sizes (Gessert et al. 2019, 2.1).
_NATIVE_SIZES = ((600, 450), (1024, 1024))
_NATIVE_SHARE = 0.8


def _read_isic(folder: Path, split: Split) -> ImageSet:
    """The pictures of a split, in the order of the archive: [N, 3, 80, 80]."""
    members, labels = _isic_pictures(folder)
    test = choose_isic_test(labels, _group_by_lesion(members, _read_lesions(folder / ISIC_METADATA)))
    chosen = {members[image].name: label for image, label in labels.items() if (image in test) == (split == "test")}
    return read_pictures(folder / ISIC_ARCHIVE, chosen, 80)


def _describe_isic(folder: Path) -> str:
    """Describe how far the split keeps lesions together."""
    _, labels = _isic_pictures(folder)
    lesions = _read_lesions(folder / ISIC_METADATA)
    known = sum(image in lesions for image in labels)
    return f"split by lesion for {known:,} of {len(labels):,} images ({known / len(labels):.1%}), by image for the rest"


def _is_whole_isic(folder: Path) -> bool:
    """True if the pictures have their official sizes: shrunken copies circulate under the same names.

    There is no published digest.  `read_split` checks that the official table names every picture, with one class for
    it; the number of each class must be the declared one.
    """
    labels = _read_truth(folder / ISIC_TRUTH)
    pictures = (member for member in walk(folder / ISIC_ARCHIVE) if PurePosixPath(member.name).suffix == ".jpg")
    native = sum(size_of(member) in _NATIVE_SIZES for member in pictures if PurePosixPath(member.name).stem in labels)
    return native >= _NATIVE_SHARE * len(labels)


def choose_isic_test(labels: Mapping[str, int], groups: Mapping[str, str]) -> set[str]:
    """Choose a sixth of each class, rounded: whole groups, in an order hashed from their names, as long as they fit."""
    members: dict[str, list[str]] = defaultdict(list)
    for image, group in groups.items():
        members[group].append(image)
    counts = Counter(labels.values())
    room = [(counts[label] + _TEST_PART // 2) // _TEST_PART for label in range(len(ISIC_COLUMNS))]
    test: set[str] = set()
    for group in sorted(members, key=lambda group: hashlib.sha256(group.encode()).digest()):
        needed = [sum(labels[image] == label for image in members[group]) for label in range(len(ISIC_COLUMNS))]
        if all(have >= need for have, need in zip(room, needed, strict=True)):
            room = [have - need for have, need in zip(room, needed, strict=True)]
            test.update(members[group])
    return test


def _read_truth(path: Path) -> dict[str, int]:
    """Read the class of each picture."""
    labels: dict[str, int] = {}
    for row in _read_columns(path, ("image", *ISIC_COLUMNS)):
        marks = [row[column].strip() for column in ISIC_COLUMNS]
        if sorted(marks) != ["0.0"] * (len(ISIC_COLUMNS) - 1) + ["1.0"]:
            raise DatasetError(f"{path}: {row['image']} doesn't have exactly one of {', '.join(ISIC_COLUMNS)}")
        if row["image"] in labels:
            raise DatasetError(f"{path}: {row['image']} occurs twice")
        labels[row["image"]] = marks.index("1.0")
    return labels


def _read_lesions(path: Path) -> dict[str, str]:
    """Read the lesion of each picture that has one; none at all if a mirror's part has no metadata."""
    if not path.is_file():
        return {}
    return {row["image"]: row["lesion_id"] for row in _read_columns(path, ("image", "lesion_id")) if row["lesion_id"]}


def _read_columns(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file, restval="")
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise DatasetError(f"{path}: has no column {', '.join(missing)}")
        return list(reader)


def _isic_pictures(folder: Path) -> tuple[dict[str, Member], dict[str, int]]:
    """Return each picture's member of the archive, and its class."""
    labels = _read_truth(folder / ISIC_TRUTH)
    members: dict[str, Member] = {}
    for member in walk(folder / ISIC_ARCHIVE):
        path = PurePosixPath(member.name)
        if path.suffix == ".jpg" and not path.name.startswith("."):
            if path.stem not in labels:
                raise DatasetError(f"{member.where}: {ISIC_TRUTH} doesn't name it")
            if path.stem in members:
                raise DatasetError(f"{member.where}: {members[path.stem].name} is the same picture")
            members[path.stem] = member
    for image in labels:
        if image not in members:
            raise DatasetError(f"{folder / ISIC_ARCHIVE}: has no {image}.jpg, which {ISIC_TRUTH} names")
    return members, labels


def _group_by_lesion(members: Mapping[str, Member], lesions: Mapping[str, str]) -> dict[str, str]:
    """Return the group of each picture: those of one lesion, and those whose files are the same."""
    first: dict[tuple[int | None, int], str] = {}
    leader = {image: lesions.get(image, image) for image in members}
    merged: dict[str, str] = {}
    for image, member in members.items():
        twin = first.setdefault((member.crc32, member.size_bytes), image)
        if leader[twin] != leader[image]:
            merged[_last_of(leader[image], merged)] = _last_of(leader[twin], merged)
    return {image: _last_of(group, merged) for image, group in leader.items()}


def _last_of(group: str, merged: Mapping[str, str]) -> str:
    while merged.get(group, group) != group:
        group = merged[group]
    return group


ISIC2019 = ImageReader(
    classes=tuple(_CLASSES["isic2019"].values()),
    files={"train": (ISIC_METADATA, ISIC_TRUTH, ISIC_ARCHIVE), "test": (ISIC_METADATA, ISIC_TRUTH, ISIC_ARCHIVE)},
    read_split=_read_isic,
    describe=_describe_isic,
    is_whole=_is_whole_isic,
)
