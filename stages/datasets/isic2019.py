"""ISIC 2019: dermoscopic pictures of skin lesions in eight classes (Tschandl 2018, Codella 2017, Combalia 2019).

The labels of the official test set have a ninth class, so the labelled training pictures are divided here: a sixth of
each class is the test set.  Pictures of one lesion stay together if the metadata name the lesion, and so do files with
the same content; the rest is divided by picture.  Packed at 80 x 80 pixels as Imagenette is.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from stages.datasets.archive import Member, read_pictures, size_of, walk
from stages.datasets.manifest import DatasetError, ImageReader
from stages.datasets.packed import ImageSet, Split

COLUMNS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
ARCHIVE, TRUTH, METADATA = (f"ISIC_2019_Training_{name}" for name in ("Input.zip", "GroundTruth.csv", "Metadata.csv"))
SIDE = 80
TEST_PART = 6  # 4 : 1 : 1 with the five folds of the protocol
# HAM10000 and BCN_20000, 22,428 of the 25,331 pictures; those of MSK have various sizes (Gessert et al. 2019, 2.1).
NATIVE_SIZES = ((600, 450), (1024, 1024))
NATIVE_SHARE = 0.8


def read_split(folder: Path, split: Split) -> ImageSet:
    """The pictures of a split, in the order of the archive: [N, 3, 80, 80]."""
    members, labels = _pictures(folder)
    test = choose_test(labels, _groups(members, read_lesions(folder / METADATA)))
    chosen = {members[image].name: label for image, label in labels.items() if (image in test) == (split == "test")}
    return read_pictures(folder / ARCHIVE, chosen, SIDE)


def describe(folder: Path) -> str:
    """Describe how far the split keeps lesions together."""
    _, labels = _pictures(folder)
    lesions = read_lesions(folder / METADATA)
    known = sum(image in lesions for image in labels)
    return f"split by lesion for {known:,} of {len(labels):,} images ({known / len(labels):.1%}), by image for the rest"


def is_whole(folder: Path) -> bool:
    """True if the pictures have their official sizes: shrunken copies circulate under the same names.

    There is no published digest.  `read_split` checks that the official table names every picture, with one class for
    it; the number of each class must be the declared one.
    """
    labels = read_truth(folder / TRUTH)
    pictures = (member for member in walk(folder / ARCHIVE) if PurePosixPath(member.name).suffix == ".jpg")
    native = sum(size_of(member) in NATIVE_SIZES for member in pictures if PurePosixPath(member.name).stem in labels)
    return native >= NATIVE_SHARE * len(labels)


def choose_test(labels: Mapping[str, int], groups: Mapping[str, str]) -> set[str]:
    """Choose a sixth of each class, rounded: whole groups, in an order hashed from their names, as long as they fit."""
    members: dict[str, list[str]] = defaultdict(list)
    for image, group in groups.items():
        members[group].append(image)
    counts = [0] * len(COLUMNS)
    for label in labels.values():
        counts[label] += 1
    room = [(count + TEST_PART // 2) // TEST_PART for count in counts]
    test: set[str] = set()
    for group in sorted(members, key=lambda group: hashlib.sha256(group.encode()).digest()):
        needed = [sum(labels[image] == label for image in members[group]) for label in range(len(COLUMNS))]
        if all(have >= need for have, need in zip(room, needed, strict=True)):
            room = [have - need for have, need in zip(room, needed, strict=True)]
            test.update(members[group])
    return test


def read_truth(path: Path) -> dict[str, int]:
    """Read the class of each picture."""
    labels: dict[str, int] = {}
    for row in _rows(path, ("image", *COLUMNS)):
        marks = [row[column].strip() for column in COLUMNS]
        if sorted(marks) != ["0.0"] * (len(COLUMNS) - 1) + ["1.0"]:
            raise DatasetError(f"{path}: {row['image']} doesn't have exactly one of {', '.join(COLUMNS)}")
        if row["image"] in labels:
            raise DatasetError(f"{path}: {row['image']} occurs twice")
        labels[row["image"]] = marks.index("1.0")
    return labels


def read_lesions(path: Path) -> dict[str, str]:
    """Read the lesion of each picture that has one; none at all if a mirror's part has no metadata."""
    if not path.is_file():
        return {}
    return {row["image"]: row["lesion_id"] for row in _rows(path, ("image", "lesion_id")) if row["lesion_id"]}


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file, restval="")
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise DatasetError(f"{path}: has no column {', '.join(missing)}")
        return list(reader)


def _pictures(folder: Path) -> tuple[dict[str, Member], dict[str, int]]:
    """Return each picture's member of the archive, and its class."""
    labels = read_truth(folder / TRUTH)
    members: dict[str, Member] = {}
    for member in walk(folder / ARCHIVE):
        path = PurePosixPath(member.name)
        if path.suffix == ".jpg" and not path.name.startswith("."):
            if path.stem not in labels:
                raise DatasetError(f"{member.where}: {TRUTH} doesn't name it")
            if path.stem in members:
                raise DatasetError(f"{member.where}: {members[path.stem].name} is the same picture")
            members[path.stem] = member
    for image in labels:
        if image not in members:
            raise DatasetError(f"{folder / ARCHIVE}: has no {image}.jpg, which {TRUTH} names")
    return members, labels


def _groups(members: Mapping[str, Member], lesions: Mapping[str, str]) -> dict[str, str]:
    """Return the group of each picture: those of one lesion, and those whose files are the same."""
    first: dict[tuple[int | None, int], str] = {}
    leader = {image: lesions.get(image, image) for image in members}
    merged: dict[str, str] = {}
    for image, member in members.items():
        twin = first.setdefault((member.crc32, member.size_bytes), image)
        if leader[twin] != leader[image]:
            merged[_end(leader[image], merged)] = _end(leader[twin], merged)
    return {image: _end(group, merged) for image, group in leader.items()}


def _end(group: str, merged: Mapping[str, str]) -> str:
    while merged.get(group, group) != group:
        group = merged[group]
    return group


READER = ImageReader(
    classes=(
        "melanoma",
        "melanocytic nevus",
        "basal cell carcinoma",
        "actinic keratosis",
        "benign keratosis",
        "dermatofibroma",
        "vascular lesion",
        "squamous cell carcinoma",
    ),
    files={"train": (METADATA, TRUTH, ARCHIVE), "test": (METADATA, TRUTH, ARCHIVE)},
    read_split=read_split,
    describe=describe,
    is_whole=is_whole,
)
