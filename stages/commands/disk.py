"""Files on this machine: what takes how much, what killed trainings left, a test image to try."""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from stages.commands.command import Answer
from stages.commands.terminal import Column, Rows
from stages.datasets.packed import PackedDataError, read_images, read_info
from stages.datasets.sources import find_source
from stages.faults import named
from stages.params.experiment import load_params
from stages.upkeep.housekeeping import disk_usage, remove_leftovers, remove_objects


def usage(options: argparse.Namespace) -> Answer:
    """The disk usage of data and trainings."""
    sizes = disk_usage(Path())
    sizes["together"] = sum(sizes.values())
    rows = [[name, f"{size / 1e6:,.1f} MB"] for name, size in sizes.items()]
    return Answer(document={"bytes": sizes}, shown=[Rows([Column("place", left=True), Column("size")], rows)])


def clean_up(options: argparse.Namespace) -> Answer:
    """Remove what killed trainings left behind."""
    removed = [*map(str, remove_leftovers(Path())), *remove_objects(Path())]
    return Answer(
        document={"removed": removed},
        shown=[*removed, f"{len(removed)} leftovers removed; outcomes and states to go on from stay"],
    )


def sample(options: argparse.Namespace) -> Answer:
    """Write a test image of a packed data set as PNG, and say what it shows."""
    dataset, index = options.dataset, options.index
    kind = find_source(load_params().datasets, dataset).kind
    if kind != "images":
        raise PackedDataError(f"{dataset} is a {kind} and has no images")
    folder = Path("data/processed") / dataset
    info, test_set = read_info(folder), read_images(folder, "test")
    if not 0 <= index < len(test_set):
        raise PackedDataError(f"{dataset} has {len(test_set)} test images; --index is {index}")
    pixels = test_set.images[index]
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    path = options.output or Path(f"{dataset}-{index}.png")
    with named(path):
        image.save(path, "PNG")
    label = info.classes[test_set.labels[index]]
    return Answer(
        document={"path": str(path), "dataset": dataset, "index": index, "provenance": info.provenance, "class": label},
        shown=[f"{path}: test image {index} of {dataset} ({info.provenance} data), class {label}"],
    )
