"""CIFAR-100 in its binary version (Krizhevsky 2009; format: https://www.cs.toronto.edu/~kriz/cifar.html)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stages.datasets.cifar10 import read_rows
from stages.datasets.packed import ImageSet, Split

_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASSES = tuple(_CLASSES.split())
FILES: dict[Split, tuple[str, ...]] = {
    "train": ("cifar-100-binary/train.bin",),
    "test": ("cifar-100-binary/test.bin",),
}


def read_split(folder: Path, split: Split) -> ImageSet:
    """The official images of a split, in order: [N, 3, 32, 32], by their fine class.

    A row is the coarse class, the fine class, then the pixels; the 20 coarse classes are not used.
    """
    parts = [read_rows(folder / name, label_bytes=2) for name in FILES[split]]
    return ImageSet(
        images=np.concatenate([images for _, images in parts]),
        labels=np.concatenate([heads[:, 1] for heads, _ in parts]).astype(np.int64),
    )
