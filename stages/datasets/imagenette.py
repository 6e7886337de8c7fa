"""Imagenette: ten easily told classes of ImageNet (Howard 2019, fast.ai), from the 160 px version.

A picture is packed as 80 x 80 pixels: its shorter side resized to 80, the middle kept, for training and test alike; a
random crop then comes from padding, as for CIFAR.  The DAC paper says no more than "160 px version" and "80 x 80".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from stages.datasets.archive import read_pictures, walk
from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError

WNIDS = (
    "n01440764",
    "n02102040",
    "n02979186",
    "n03000684",
    "n03028079",
    "n03394916",
    "n03417042",
    "n03425413",
    "n03445777",
    "n03888257",
)
CLASSES = (
    "tench",
    "English springer",
    "cassette player",
    "chain saw",
    "church",
    "French horn",
    "garbage truck",
    "gas pump",
    "golf ball",
    "parachute",
)
ARCHIVE = "imagenette2-160.tgz"
FILES: dict[Split, tuple[str, ...]] = {"train": (ARCHIVE,), "test": (ARCHIVE,)}
SIDE = 80
FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
# The number is the size of the version; a mirror's part may come from another one.
_PICTURE = re.compile(r"image(?:nette|woof)2(?:-\d+)?/(train|val)/(n\d{8})/[\w-]+\.JPEG")


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official pictures of a split, in the order of the archive: [N, 3, 80, 80]."""
    return read_pictures(folder / ARCHIVE, labels_by_folder(folder / ARCHIVE, WNIDS, split), SIDE)


def labels_by_folder(archive: Path, wnids: Sequence[str], split: Split) -> dict[str, int]:
    """Class of every picture of a split by its name in the archive; each folder is a class."""
    labels = {}
    for member in walk(archive):
        path = PurePosixPath(member.name)
        # Files whose names begin with a dot are left in archives by operating systems.
        if path.suffix.lower() not in (".jpeg", ".jpg", ".png") or path.name.startswith("."):
            continue
        match = _PICTURE.fullmatch(member.name)
        if match is None or match[2] not in wnids:
            raise DatasetError(f"{member.where}: a picture that belongs to no class")
        if match[1] == FOLDERS[split]:
            labels[member.name] = wnids.index(match[2])
    return labels
