"""From raw files to the packed set: read, check the declarations, leave out inexact test rows, judge provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.datasets import isic2019, text
from stages.datasets.binary_images import CIFAR10, CIFAR100, MNIST, STL10
from stages.datasets.embedded import class_names, compose_stand_in, stand_in_counts
from stages.datasets.imagenet_parts import IMAGENETTE, IMAGEWOOF, TINY_IMAGENET, TINY_IMAGENET_32
from stages.datasets.manifest import (
    ImageReader,
    Manifest,
    check_classes,
    check_shared,
    check_split,
    find_reader,
    find_shared,
    judge_provenance,
    pixel_statistics,
)
from stages.datasets.packed import ImageSet, PackedInfo, Split, digest_images, write_packed
from stages.datasets.prepare_table import STAND_IN_ROWS, prepare_table
from stages.datasets.text import prepare_text
from stages.datasets.verified import ChecksumMismatch, DatasetError, digest_file
from stages.params.experiment import DatasetSource

READERS = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "imagenette": IMAGENETTE,
    "imagewoof": IMAGEWOOF,
    "isic2019": isic2019.READER,
    "mnist": MNIST,
    "stl10": STL10,
    "tinyimagenet": TINY_IMAGENET,
    "tinyimagenet32": TINY_IMAGENET_32,
}


def prepare(source: DatasetSource, manifest: Manifest, home: Path, target: Path) -> PackedInfo:
    """Write the packed set of `manifest` into `target`."""
    folder = _verify_raw(manifest, home, source.folder or manifest.dataset)
    if source.kind == "table":
        return prepare_table(source, manifest, folder, target)
    if source.kind == "text":
        return prepare_text(source, manifest, folder, target)
    return _prepare_images(source, manifest, folder, target)


def _prepare_images(source: DatasetSource, manifest: Manifest, folder: Path, target: Path) -> PackedInfo:
    if manifest.source == "embedded":
        train, test = compose_stand_in(manifest.dataset, source.shape, source.classes)
        classes = class_names(source.classes)
        files: Mapping[Split, tuple[str, ...]] = {}
        kept, note, is_whole = None, None, False
    else:
        reader = find_reader(manifest.dataset, source.reader, READERS)
        train = _read_checked(reader, folder, "train", source, manifest)
        test = _read_checked(reader, folder, "test", source, manifest)
        classes = reader.classes
        kept = _exact_rows(manifest, len(test))
        note = reader.describe(folder) if reader.describe else None
        files = reader.files
        is_whole = source.complete_by_content and reader.is_whole is not None and reader.is_whole(folder)
    excluded = 0
    if kept is not None:
        excluded = len(test) - len(kept)
        test = ImageSet(images=test.images[kept], labels=test.labels[kept])
        check_classes(test.labels, classes, f"{manifest.dataset}, test")
    shared = find_shared(train, test)
    if manifest.source != "embedded":
        # Where nobody has counted, official files are taken as they are; elsewhere the rule is that there are none.
        is_unknown = source.shared_images is None and manifest.source == "official"
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
    """Folder of the raw files, once they are found to match the manifest."""
    remedy = f"run `python -m stages.fetch {manifest.dataset}` again"
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
    # Only a split that no official digest vouches for may be a part: a mirror's subset declares so by its files.
    is_official = all(file.matches_official for file in manifest.files if file.name in reader.files[split])
    check_split(images, split, source, f"{manifest.dataset}, {split}", may_be_part=not is_official)
    check_classes(images.labels, reader.classes, f"{manifest.dataset}, {split}")
    return images


def _exact_rows(manifest: Manifest, rows: int) -> np.ndarray | None:
    """Positions of the test rows kept, or None for all of them."""
    if not manifest.inexact_test_rows:
        return None
    return np.setdiff1d(np.arange(rows), np.array(manifest.inexact_test_rows))


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Rows of the official training and test set, and the shape of one; in a text a row is a window of tokens."""

    train: int
    test: int
    shape: tuple[int, ...]


def count_rows(name: str, source: DatasetSource, *, is_stand_in: bool) -> RowCounts:
    """Rows of the declared data set, or of its stand-in."""
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
