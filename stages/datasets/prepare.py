"""Pack raw files: read them, check the declarations, leave out inexact test rows and judge provenance.

Also placeholder data that need no network: real handwritten digits composed into as many classes as a data set has.

The digits are the 1,797 of 8 x 8 pixels that scikit-learn ships (Alpaydin, Kaynak 1998, the test part of the UCI set
"Optical Recognition of Handwritten Digits").  A class is a number; its digits are side by side, each as large as fits,
upscaled without smoothing.  Images with three channels get a colour of their own for ink and paper.

Placeholder data share only the shape and the number of classes of their data set; the classes are named `digits-42`.
The sources are divided between training and test set before anything is composed, so no handwriting is in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from stages.datasets import own, tables, text
from stages.datasets.image_readers import (
    CIFAR10,
    CIFAR100,
    IMAGENETTE,
    IMAGEWOOF,
    ISIC2019,
    MNIST,
    STL10,
    TINY_IMAGENET,
    TINY_IMAGENET_32,
)
from stages.datasets.labels import check_masks, check_rounding, encode_masks
from stages.datasets.manifest import (
    ChecksumMismatch,
    DatasetError,
    ImageReader,
    Manifest,
    check_classes,
    check_shared,
    check_split,
    digest_file,
    find_reader,
    find_shared,
    judge_provenance,
    pixel_statistics,
)
from stages.datasets.packed import ImageSet, PackedInfo, Split, digest_images, write_packed
from stages.datasets.prepare_table import STAND_IN_ROWS, prepare_table
from stages.datasets.text import prepare_text
from stages.params.experiment import DatasetSource, SourceFile

READERS = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "imagenette": IMAGENETTE,
    "imagewoof": IMAGEWOOF,
    "isic2019": ISIC2019,
    "mnist": MNIST,
    "stl10": STL10,
    "tinyimagenet": TINY_IMAGENET,
    "tinyimagenet32": TINY_IMAGENET_32,
}


def prepare(source: DatasetSource, manifest: Manifest, home: Path, target: Path) -> PackedInfo:
    """Write the packed set of `manifest` into `target`."""
    folder = _verify_raw(manifest, home, source.folder or manifest.dataset)
    is_listed = not any(file.is_group for file in source.files)
    if not is_listed:
        source = replace(source, files=tuple(SourceFile(name=file.name) for file in manifest.files))
    if source.kind == "table" and source.reader != "sgemm":
        return tables.prepare_own_table(source, manifest, folder, target, is_listed=is_listed)
    if source.kind == "table":
        return prepare_table(source, manifest, folder, target)
    if source.kind == "text":
        return prepare_text(source, manifest, folder, target)
    return _prepare_images(source, manifest, folder, target)


def _prepare_images(source: DatasetSource, manifest: Manifest, folder: Path, target: Path) -> PackedInfo:
    if manifest.source == "embedded":
        train, test = compose_stand_in(manifest.dataset, source.shape, source.classes)
        classes = class_names(source.classes)
        if source.task is not None:
            train, test = (ImageSet(part.images, _stand_in_labels(part, source)) for part in (train, test))
        files: Mapping[Split, tuple[str, ...]] = {}
        kept, note, is_whole = None, None, False
    else:
        make = find_reader(manifest.dataset, source.reader, dict.fromkeys([*READERS, *own.IMAGES], own.image_reader))
        reader = READERS.get(source.reader) or make(source, manifest, folder)
        train = _read_checked(reader, folder, "train", source, manifest)
        test = _read_checked(reader, folder, "test", source, manifest)
        classes = reader.classes
        kept = None  # all test rows
        if manifest.inexact_test_rows:
            kept = np.setdiff1d(np.arange(len(test)), np.array(manifest.inexact_test_rows))
        note = (reader.describe(folder) or None) if reader.describe else None
        files = reader.files
        is_whole = source.complete_by_content and reader.is_whole is not None and reader.is_whole(folder)
    excluded = 0
    if kept is not None:
        excluded = len(test) - len(kept)
        test = ImageSet(images=test.images[kept], labels=test.labels[kept])
        _check_labels(test.labels, source, classes, f"{manifest.dataset}, test")
    shared = find_shared(train.images, test.images)
    if manifest.source != "embedded":
        # Without a count, official files are taken as they are; other files may share none.
        is_published = manifest.source == "official" and source.reader in READERS
        is_unknown = source.shared_images is None and is_published
        check_shared(shared, len(test) if is_unknown else source.shared_images or 0, manifest.dataset)
    mean, std = pixel_statistics(train.images)
    info = PackedInfo(
        dataset=manifest.dataset,
        provenance=judge_provenance(
            source,
            manifest,
            len(train),
            len(test),
            files=files,
            content_is_whole=is_whole,
        ),
        digest=digest_images(train, test, classes),
        classes=classes,
        shape=source.shape,
        train_images=len(train),
        test_images=len(test),
        test_rows=None if kept is None else tuple(kept.tolist()),
        excluded_test_images=excluded,
        source=manifest.source,
        shared_test_images=len(shared),
        mean=mean,
        std=std,
        split_note=note,
    )
    write_packed(target, {"train": train, "test": test}, info)
    return info


def _verify_raw(manifest: Manifest, home: Path, folder: str) -> Path:
    """Check the raw files against the manifest, and return their folder."""
    remedy = f"run `claimcheck stage fetch {manifest.dataset}` again"
    if manifest.source != "embedded" and not manifest.files:
        raise DatasetError(f"{manifest.dataset}: its manifest in data/raw lists no files; {remedy}")
    for file in manifest.files:
        path = home / file.path
        if not path.is_file():
            raise DatasetError(f"{path}: no such file, though the manifest lists it; {remedy}")
        digests = digest_file(path)
        if digests.sha256 != file.sha256:
            raise ChecksumMismatch(
                f"{path} (changed since it was fetched; {remedy})",
                kind="sha256",
                expected=file.sha256,
                got=digests.sha256,
                size_bytes=digests.size_bytes,
            )
    return home / "downloads" / folder


def _read_checked(
    reader: ImageReader, folder: Path, split: Split, source: DatasetSource, manifest: Manifest
) -> ImageSet:
    images = reader.read_split(folder, split)
    if len(reader.classes) != source.classes:
        raise DatasetError(
            f"{manifest.dataset}: {len(reader.classes)} class names; params.yaml declares {source.classes}"
        )
    # Only a split without official digests may be partial: a mirror's subset declares so by its files.  A user's own
    # files have all that are declared, but for those that are left out by choice.
    is_official = all(file.matches_official for file in manifest.files if file.name in reader.files[split])
    may_be_part = not is_official and (source.reader not in own.IMAGES or source.broken == "skip")
    check_split(images, split, source, f"{manifest.dataset}, {split}", may_be_part=may_be_part)
    _check_labels(images.labels, source, reader.classes, f"{manifest.dataset}, {split}")
    return images


def _check_labels(labels: np.ndarray, source: DatasetSource, classes: tuple[str, ...], where: str) -> None:
    if source.task == "segmentation":
        check_masks(labels, source, where)
    elif source.task == "regression":
        check_rounding(labels.view(np.float64), where)
    else:
        check_classes(labels, classes, where)


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Rows of the official training and test set, and the shape of one; in a text a row is a window of tokens."""

    train: int
    test: int
    shape: tuple[int, ...]


def count_rows(name: str, source: DatasetSource, *, is_stand_in: bool) -> RowCounts:
    """Count the rows of the declared data set, or of its placeholder data."""
    if source.kind == "text":
        train, test, window = source.train, source.test, source.shape[0]
        if is_stand_in:
            train, test = text.split_lengths(len(text.compose_stand_in(name)))
            window = text.stand_in_window(source)
        return RowCounts(train=(train - 1) // window, test=(test - 1) // window, shape=(window,))
    train, test = source.train, source.test
    if is_stand_in and source.kind == "table":
        train, test = STAND_IN_ROWS["train"], STAND_IN_ROWS["test"]
    elif is_stand_in:
        train, test = stand_in_counts(source.classes)
    return RowCounts(train=train, test=test, shape=source.shape)


TRAIN_IMAGES = 128
TEST_IMAGES = 16  # every printed architecture reads this many: most of an evaluation's time
TEST_EVERY = 4  # every fourth source of a digit belongs to the test set
INK_LEVELS = 16


def class_names(classes: int) -> tuple[str, ...]:
    """`digits-0` to `digits-9`, `digits-00` to `digits-99` and so on."""
    return tuple(f"digits-{number:0{_places(classes)}d}" for number in range(classes))


def compose_stand_in(name: str, shape: tuple[int, ...], classes: int) -> tuple[ImageSet, ImageSet]:
    """Compose training and test set of images uint8, `shape` [C, H, W]; `name` seeds the choice of digits and colours.

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


def _stand_in_labels(images: ImageSet, source: DatasetSource) -> np.ndarray:
    """Labels of the task: the class and the one before it, or the brightness of the image or of each pixel."""
    if source.task == "regression":
        brightness = images.images.mean(axis=(1, 2, 3))
        return np.repeat(brightness[:, None], source.classes, axis=1).view(np.int64)
    if source.task == "segmentation":
        masks = images.images.mean(axis=1) * source.classes // 256
        return encode_masks(masks.astype(np.uint8), source, "placeholder data")
    both = np.eye(source.classes, dtype=np.int64) + np.eye(source.classes, k=-1, dtype=np.int64)
    return both[images.labels]


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
