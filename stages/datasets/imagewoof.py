"""Imagewoof: ten breeds of dogs of ImageNet, hard to tell apart (Howard 2019, fast.ai); packed as Imagenette is."""

from __future__ import annotations

from pathlib import Path

from stages.datasets.archive import read_pictures
from stages.datasets.imagenette import SIDE, labels_by_folder
from stages.datasets.packed import ImageSet, Split

WNIDS = (
    "n02086240",
    "n02087394",
    "n02088364",
    "n02089973",
    "n02093754",
    "n02096294",
    "n02099601",
    "n02105641",
    "n02111889",
    "n02115641",
)
CLASSES = (
    "Shih-Tzu",
    "Rhodesian ridgeback",
    "beagle",
    "English foxhound",
    "Border terrier",
    "Australian terrier",
    "golden retriever",
    "Old English sheepdog",
    "Samoyed",
    "dingo",
)
ARCHIVE = "imagewoof2-160.tgz"
FILES: dict[Split, tuple[str, ...]] = {"train": (ARCHIVE,), "test": (ARCHIVE,)}


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official pictures of a split, in the order of the archive: [N, 3, 80, 80]."""
    return read_pictures(folder / ARCHIVE, labels_by_folder(folder / ARCHIVE, WNIDS, split), SIDE)
