"""Tiny ImageNet resized to 32 x 32 pixels (bilinear), the HyperBF paper's stated input."""

from __future__ import annotations

from pathlib import Path

from stages.datasets import tinyimagenet
from stages.datasets.packed import ImageSet, Split

CLASSES = tinyimagenet.CLASSES
FILES = tinyimagenet.FILES
SIDE = 32


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official pictures of a split, in the order of the archive: [N, 3, 32, 32]."""
    return tinyimagenet.read_split(folder, split, SIDE)
