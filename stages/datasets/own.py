"""A user's own pictures, declared in parameters alone: with classes, labels or masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stages.datasets import shards
from stages.datasets.archive import PICTURES, decode_own, upright_size, walk
from stages.datasets.labels import (
    check_mask_size,
    collect_labels,
    encode_masks,
    is_mask,
    match_labels,
    pair_masks,
    rarest_labels,
)
from stages.datasets.manifest import DatasetError, ImageReader, Manifest
from stages.datasets.packed import ImageSet, Split
from stages.datasets.shards import Picture, Pictures, choose_splits, split_of
from stages.datasets.tables import read_frame, read_image_arrays, refuse_alike, targets_of
from stages.params.experiment import DatasetSource

ARCHIVES = (".zip", ".tgz", ".tar", ".tar.gz")
IMAGES = ("folder", "npz", *shards.READERS)


def image_reader(source: DatasetSource, manifest: Manifest, folder: Path) -> ImageReader:
    """A reader for the pictures or arrays that the manifest lists."""
    names = tuple(file.name for file in manifest.files)
    if source.reader == "npz":
        splits, note = read_image_arrays(folder, names, source)
        return ImageReader(
            classes=tuple(map(str, range(source.classes))),
            files={"train": names, "test": names},
            read_split=lambda _, split: splits[split],
            describe=lambda _: note,
        )
    channels, height, width = source.shape
    seen, pixels, broken = dict[str, Picture](), dict[str, np.ndarray](), list[str]()
    sizes, has_masks = dict[str, tuple[int, int]](), source.task == "segmentation"
    for picture, read in shards.READERS.get(source.reader, _read_folders)(folder, names, source):
        name = picture.name
        seen[name] = picture
        try:
            content = read()
            is_mask_of_task = has_masks and picture.is_mask
            pixels[name] = decode_own(content, (channels, height, width), name, is_mask=is_mask_of_task)
            if has_masks:
                sizes[name] = upright_size(content)
        except DatasetError as error:
            broken.append(str(error))
    if not seen:
        raise DatasetError(f"{folder}: {len(names)} files have no picture that the reader {source.reader} can read")
    if not pixels or (broken and source.broken == "refuse"):
        raise DatasetError(f"{'; '.join(broken[:5])}; repair or remove them, or declare `broken: skip` in params.yaml")
    labels: dict[str, Any]
    if source.task is None:
        known = sorted({seen[name].label for name in pixels})
        classes = tuple(name for _, name in known)
        if source.reader == "folder" and all(map(split_of, classes)):
            raise DatasetError(
                f"{folder}: the folders of its pictures are {', '.join(classes)}, which are splits, not classes; "
                "move pictures into a folder for each class, below the splits, as in train/cat/0.png"
            )
        refuse_alike(classes, f"{folder}")
        labels = {name: known.index(seen[name].label) for name in pixels}
    else:
        classes, labels, groups = _read_labels(source, folder, names, seen, pixels, sizes)
        seen = {name: seen[name]._replace(label=(0, group)) for name, group in groups.items()}
    readable = pixels.keys() & labels.keys()
    parts, note = _divide(seen, readable, source, manifest.dataset)

    def read_split(_: Path, split: Split) -> ImageSet:
        images = np.array([pixels[name] for name in parts[split]], dtype=np.uint8).reshape(-1, *source.shape)
        return ImageSet(images, np.array([labels[name] for name in parts[split]], dtype=np.int64))

    def describe(_: Path) -> str:
        left_out = f"{len(broken)} broken pictures left out: {'; '.join(broken[:5])}"
        return "; ".join(filter(None, (note, left_out if broken else "")))

    return ImageReader(
        classes=classes,
        files={"train": names, "test": names},
        read_split=read_split,
        describe=describe,
    )


def _read_labels(
    source: DatasetSource,
    folder: Path,
    files: Sequence[str],
    seen: Mapping[str, Picture],
    pixels: Mapping[str, np.ndarray],
    sizes: Mapping[str, tuple[int, int]],
) -> tuple[tuple[str, ...], dict[str, np.ndarray], dict[str, str]]:
    """Names of the labels; the labels of each readable picture, from a table, a shard or its mask; each one's group.

    Test pictures are drawn from each group in proportion.
    """
    if source.task == "segmentation":
        pairs = {name: f"{name}, mask" for name, picture in seen.items() if not picture.is_mask}
        pairs, masks = pair_masks(seen, folder) if source.reader == "folder" else pairs, dict[str, np.ndarray]()
        for image, mask in pairs.items():
            if {image, mask} <= pixels.keys():
                check_mask_size(sizes[mask], sizes[image], f"{folder / mask}")
                masks[image] = encode_masks(pixels[mask], source, f"{folder / mask}")[0]
        return tuple(map(str, range(source.classes))), masks, dict.fromkeys(pairs, "")
    if source.reader != "folder":
        columns, labels = collect_labels({name: picture.value for name, picture in seen.items()}, source)
    else:
        path = folder / (source.labels or "")
        if source.labels not in files:
            raise DatasetError(f"{path}: isn't one of the declared `files`; `labels` must name one of them")
        frame = read_frame(path, source, "parquet" if path.suffix == ".parquet" else "csv")
        columns = targets_of(source) or tuple(map(str, frame.columns[1:]))
        labels = match_labels(frame, columns, source, path, seen, pixels.keys())
    return columns, labels, rarest_labels(labels) if source.task == "multi-label" else dict.fromkeys(labels, "")


def _read_folders(folder: Path, files: Sequence[str], source: DatasetSource) -> Pictures:
    """Yield the pictures among the files and in archives; the folder of each is its class."""

    def picture(name: str) -> Picture:
        place = PurePosixPath(name).parent
        split = split_of(str(place if source.task else place.parent))
        return Picture(name, (0, place.name), split, is_mask=is_mask(name))

    for file in files:
        if file.endswith(ARCHIVES):
            for member in walk(folder / file):
                path = PurePosixPath(member.name)
                if path.suffix.lower() in PICTURES and not path.name.startswith((".", "._")):
                    yield picture(f"{file}/{path}"), member.read
        elif PurePosixPath(file).suffix.lower() in PICTURES:
            yield picture(file), (folder / file).read_bytes


def _divide(
    pictures: Mapping[str, Picture], readable: Set[str], source: DatasetSource, where: str
) -> tuple[dict[Split, list[str]], str]:
    """Names of the readable pictures of each split, and a note: by the splits that they name, else drawn.

    The draw ranks all pictures, class by class, so that one that is repaired doesn't move the others.
    """
    names = sorted(pictures)
    published, note = choose_splits(
        {name: pictures[name].split for name in names}, "pictures", {name: name in readable for name in names}
    )
    for split, part in published.items():
        found, wanted = len(readable & {*part}), source.train if split == "train" else source.test
        if not found <= wanted <= len(part):  # a file may be cut where no reader sees it
            raise DatasetError(f"{where}, {split}: {found:,} images; params.yaml declares {wanted:,}")
    if published:
        return {split: [name for name in part if name in readable] for split, part in published.items()}, note
    declared = source.train + source.test
    if not len(readable) <= declared <= len(names):
        counts = f"{source.train:,} for training and {source.test:,} for testing"
        raise DatasetError(f"{where}: {len(readable):,} pictures; params.yaml declares {counts}")
    random = np.random.RandomState(0)  # frozen, so that the division stays the same with every numpy
    ranked = []
    for label in sorted({picture.label for picture in pictures.values()}):
        members = [name for name in names if pictures[name].label == label]
        ranked += [
            ((rank + 0.5) / len(members), members[place]) for rank, place in enumerate(random.permutation(len(members)))
        ]
    order = [name for _, name in sorted(ranked) if name in readable or declared == len(names)]
    held_out = readable & {*order[: source.test]}
    parts: dict[Split, list[str]] = {
        "train": sorted(readable - held_out),
        "test": sorted(held_out),
    }
    return parts, "test pictures drawn once, of each class in proportion"
