"""A user's own data, declared in parameters alone: pictures with classes, labels or masks, arrays, and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stages.datasets import shards
from stages.datasets.archive import FORMATS, PICTURES, decode_square, walk
from stages.datasets.labels import encode_masks, encode_targets, is_mask, match_labels, pair_masks, rarest_labels
from stages.datasets.manifest import ImageReader, Manifest, check_classes, check_response, find_reader
from stages.datasets.packed import ImageSet, PackedInfo, Split, TableSet
from stages.datasets.prepare_table import STAND_IN_ROWS, pack_table, split_rows
from stages.datasets.shards import SPLIT_OF, SPLITS, Picture, Pictures
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource
from stages.params.schema import nearest

ARCHIVES = (".zip", ".tgz", ".tar", ".tar.gz")
IMAGES = ("folder", "npz", *shards.READERS)
_TRAIN, *_TESTS = SPLITS
_MOST_CATEGORIES = 50


def image_reader(source: DatasetSource, manifest: Manifest, folder: Path) -> ImageReader:
    """A reader for the pictures or arrays that the manifest lists."""
    names = tuple(file.name for file in manifest.files)
    if source.reader == "npz":
        classes = tuple(str(number) for number in range(source.classes))
        splits: dict[Split, ImageSet] = {
            split: ImageSet(*_arrays(folder, names, split, source)) for split in ("train", "test")
        }
        return ImageReader(
            classes=classes, files={"train": names, "test": names}, read_split=lambda _, split: splits[split]
        )
    side, mode = source.shape[1], "L" if source.shape[0] == 1 else "RGB"
    found, pixels, broken, seen = dict[str, Picture](), dict[str, np.ndarray](), list[str](), list[str]()
    for picture, read in shards.READERS.get(source.reader, _read_folders)(folder, names, source):
        seen.append(picture.name)
        one = "P" if source.task == "segmentation" and is_mask(picture.name) else mode
        try:
            pixels[picture.name] = decode_square(read(), side, picture.name, formats=FORMATS, mode=one)
            found[picture.name] = picture
        except DatasetError as error:
            broken.append(str(error))
    if not found and not broken:
        raise DatasetError(f"{folder}: {len(names)} files have no picture that the reader {source.reader} knows")
    if not found or (broken and source.broken == "refuse"):
        raise DatasetError(f"{'; '.join(broken[:5])}; repair or remove it, or declare `broken: skip` in params.yaml")
    labels: dict[str, Any]
    if source.task is None:
        known = sorted({picture.label for picture in found.values()})
        classes = tuple(name for _, name in known)
        labels = {name: known.index(picture.label) for name, picture in found.items()}
    else:
        classes, labels = _read_labels(source, folder, names, seen, pixels)
        groups = rarest_labels(labels) if source.task == "multi-label" else dict.fromkeys(labels, "")
        found = {name: found[name]._replace(label=(0, group)) for name, group in groups.items()}
    parts, note = _divide(found, source)
    if note and not len(found) <= source.train + source.test <= len(found) + len(broken):
        counts = f"{source.train:,} to train with and {source.test:,} to test"
        raise DatasetError(f"{manifest.dataset}: {len(found):,} pictures; params.yaml declares {counts}")

    def read_split(_: Path, split: Split) -> ImageSet:
        images = np.array([pixels[name] for name in parts[split]], dtype=np.uint8).reshape(
            -1, source.shape[0], side, side
        )
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
    source: DatasetSource, folder: Path, files: Sequence[str], seen: Sequence[str], pixels: Mapping[str, np.ndarray]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Names of the labels, and the labels of each picture: those in a table, or its mask."""
    if source.task == "segmentation":
        pairs = [(image, mask) for image, mask in pair_masks(seen, folder).items() if {image, mask} <= pixels.keys()]
        masks = {image: encode_masks(pixels[mask], source, mask)[0] for image, mask in pairs}
        return tuple(map(str, range(source.classes))), masks
    path = folder / (source.labels or "")
    if source.labels not in files:
        raise DatasetError(f"{path}: is not one of the files that params.yaml declares; `labels` names one")
    frame = _read_frame(path, source, "parquet" if path.suffix == ".parquet" else "csv")
    columns = _targets_of(source) or tuple(map(str, frame.columns[1:]))
    return columns, match_labels(frame, columns, source, path, seen, pixels.keys())


def _read_folders(folder: Path, files: Sequence[str], source: DatasetSource) -> Pictures:
    """Yield the pictures among the files and in archives; the folder of each is its class."""

    def picture(name: str) -> Picture:
        place = PurePosixPath(name).parent
        return Picture(name, (0, place.name), _side_of(place if source.task else place.parent))

    for file in files:
        if file.endswith(ARCHIVES):
            for member in walk(folder / file):
                path = PurePosixPath(member.name)
                if path.suffix.lower() in PICTURES and not path.name.startswith((".", "._")):
                    yield picture(f"{file}/{path}"), member.read
        elif PurePosixPath(file).suffix.lower() in PICTURES:
            yield picture(file), (folder / file).read_bytes


def _divide(pictures: Mapping[str, Picture], source: DatasetSource) -> tuple[dict[Split, list[str]], str]:
    """Names of each split, and a note: by the splits `train` and `test` (or `val`), else drawn, class by class."""
    names = sorted(pictures)
    splits = {name: pictures[name].split for name in names}
    test = next((one for one in _TESTS if one in splits.values()), None)
    if test is not None and _TRAIN in splits.values():
        if lost := [name for name in names if not splits[name]]:
            raise DatasetError(
                f"{len(lost)} pictures are in no split, for example {lost[0]}; move them below train or test"
            )
        published: dict[Split, str] = {"train": _TRAIN, "test": test}
        return {split: [name for name in names if splits[name] == one] for split, one in published.items()}, ""
    random = np.random.RandomState(0)  # frozen, so that the division stays the same with every numpy
    ranked = []
    for label in sorted({picture.label for picture in pictures.values()}):
        members = [name for name in names if pictures[name].label == label]
        ranked += [
            ((rank + 0.5) / len(members), members[place]) for rank, place in enumerate(random.permutation(len(members)))
        ]
    held_out = {name for _, name in sorted(ranked)[: source.test]}
    parts: dict[Split, list[str]] = {
        "train": [name for name in names if name not in held_out],
        "test": sorted(held_out),
    }
    return parts, "test pictures drawn once, of each class in proportion"


def _side_of(folder: PurePosixPath) -> str:
    """Return the innermost folder, or archive, that is called train or like a test set; empty if there is none."""
    for part in reversed(PurePosixPath(str(folder).lower()).parts):
        stem = next((part.removesuffix(ending) for ending in ARCHIVES if part.endswith(ending)), part)
        if stem in SPLIT_OF:
            return SPLIT_OF[stem]
    return ""


def _arrays(folder: Path, names: tuple[str, ...], split: Split, source: DatasetSource) -> tuple[np.ndarray, ...]:
    """Rows and targets of a split, from arrays with names such as `x_train` and `y_train`, or `train_images`."""
    (name, *more) = names
    if more:
        raise DatasetError(f"{folder}: {len(names)} files; the arrays of a data set are in one npz")
    try:
        with np.load(folder / name, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{folder / name}: not an npz file of plain arrays ({error})") from None
    found = []
    for kind in ("x|images?|data|features", "y|labels?|targets?|masks?"):
        pattern = re.compile(rf"(?:{split}_(?:{kind})|(?:{kind})_{split})")
        key = next((key for key in arrays if pattern.fullmatch(key)), None)
        if key is None:
            raise DatasetError(f"{folder / name}: has no array like {kind[0]}_{split}; it has {', '.join(arrays)}")
        found.append(arrays[key])
    (rows, targets), shape = found, source.shape
    if source.task == "segmentation":
        targets = encode_masks(targets, source, f"{folder / name}, {split}")
    elif source.task is not None:
        targets = encode_targets(targets, source, (), f"{folder / name}, {split}")
    if len(shape) == 1:
        return rows.astype(np.float64), targets.astype(np.float64).reshape(targets.shape if source.task else -1)
    if rows.dtype != np.uint8:
        raise DatasetError(f"{folder / name}: images are {rows.dtype}; expected uint8")
    if rows.ndim == 3:
        rows = rows[:, None]
    elif rows.shape[1:] != shape and rows.shape[1:] == (*shape[1:], shape[0]):
        rows = rows.transpose(0, 3, 1, 2)
    return rows, targets if source.task is not None else targets.reshape(-1).astype(np.int64)


def prepare_own_table(source: DatasetSource, manifest: Manifest, folder: Path, target: Path) -> PackedInfo:
    """Write the packed table of a CSV, Parquet or npz file, or of placeholder rows, into `target`."""
    counts: dict[Split, int] = {"train": source.train, "test": source.test}
    note = "test rows drawn once for all"
    if manifest.source == "embedded":
        counts, note = STAND_IN_ROWS, ""
        random = np.random.RandomState(0)
        features = random.standard_normal((sum(counts.values()), *source.shape))
        columns, targets = tuple(f"column {number}" for number in range(source.shape[0])), features.sum(1)
        if source.task is not None:
            targets = (targets[:, None] > np.linspace(-1, 1, source.classes)).astype(np.float64)
        rows = split_rows(counts)
    elif source.reader == "npz":
        files = tuple(file.name for file in manifest.files)
        parts = [_arrays(folder, files, split, source) for split in counts]
        features, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        columns = tuple(f"column {number}" for number in range(features.shape[1]))
        rows, note = _in_order([len(part[1]) for part in parts]), ""
    else:
        columns, features, targets, sizes = _read_tables(source, folder)
        is_one = len(sizes) == 1
        rows = split_rows(counts) if is_one and len(targets) == sum(counts.values()) else _in_order(sizes)
        note = note if is_one else ""
    if manifest.source != "embedded":
        found = {split: len(part) for split, part in rows.items()}
        if found != counts:
            raise DatasetError(
                f"{manifest.dataset}: {' and '.join(f'{n:,}' for n in found.values() if n)} rows; params.yaml declares "
                f"{source.train:,} to train with and {source.test:,} to test"
            )
        check_response(targets, source, manifest.dataset)
        if source.task is not None:
            names = _targets_of(source) or tuple(map(str, range(source.classes)))
            for split, part in rows.items():
                check_classes(targets[part].astype(np.int64), names, f"{manifest.dataset}, {split}")
    if features.shape[1:] != source.shape:
        raise DatasetError(
            f"{manifest.dataset}: {len(columns)} columns ({', '.join(columns)}); params.yaml declares {source.shape}"
        )
    for row, column in np.argwhere(np.isinf(features))[:1]:
        raise DatasetError(f"{folder}: row {row} of column {columns[column]!r} is infinite")
    if source.missing == "refuse" and np.isnan(features).any():  # of an npz file; tables were checked column by column
        raise DatasetError(f"{manifest.dataset}: missing values; repair them, or declare `missing: mean`")
    known = [column[~np.isnan(column)].tolist() for column in features[rows["train"]].T]
    # fsum rounds once, so the numbers are the same on every machine.
    mean = np.array([math.fsum(column) / max(len(column), 1) for column in known])
    squares = [math.fsum((value - m) ** 2 for value in column) for column, m in zip(known, mean.tolist(), strict=True)]
    std = np.array(
        [math.sqrt(total / max(len(column), 1)) or 1.0 for total, column in zip(squares, known, strict=True)]
    )
    scaled = np.nan_to_num((features - mean) / std).astype(np.float32)  # a missing value becomes the mean
    splits = {split: TableSet(scaled[part], targets[part].astype(np.float32)) for split, part in rows.items()}
    return pack_table(
        source, manifest, splits, columns, tuple(mean.tolist()), tuple(std.tolist()), note or None, target
    )


def _in_order(sizes: list[int]) -> dict[Split, np.ndarray]:
    """Rows of a training and a test file, one after the other."""
    train, total = sizes[0], sum(sizes)
    return {"train": np.arange(train), "test": np.arange(train, total)}


def _read_tables(source: DatasetSource, folder: Path) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, list[int]]:
    """Names and values of the columns, the target, and the rows of each file; text becomes a column per value."""
    import pandas as pd  # half a second

    wanted = [*_targets_of(source)]
    if not wanted:
        raise DatasetError(f"{folder.name}: which column is the target?  Declare `target` in params.yaml")
    frames = []
    for file in source.files:
        path = folder / file.name
        frame = _read_frame(path, source, source.reader)
        gaps = frame.isna()
        if gaps.any(axis=None) and source.missing == "refuse":
            named = ", ".join(f"{name} ({count:,})" for name, count in gaps.sum().items() if count)
            raise DatasetError(f"{path}: missing values in {named}; declare `missing: drop` or `mean` in params.yaml")
        frame = frame[~(gaps if source.missing == "drop" else gaps[wanted]).any(axis=1)]
        frames.append(frame)
    if any({*frame.columns} != {*frames[0].columns} for frame in frames):
        raise DatasetError(f"{folder}: its files have different columns")
    whole = pd.concat(frames, ignore_index=True)
    target, whole = whole[wanted], whole.drop(columns=wanted)
    for name in wanted:
        if not pd.api.types.is_numeric_dtype(target[name]):
            raise DatasetError(f"{folder}: the target {name!r} has {target[name].iloc[0]!r}; expected numbers")
    targets = target.to_numpy(np.float64)
    targets = targets[:, 0] if source.task is None else encode_targets(targets, source, wanted, str(folder))
    texts = [name for name in whole if not pd.api.types.is_numeric_dtype(whole[name])]
    for name in texts:
        whole[name] = whole[name].astype(str).where(whole[name].notna())
        if (count := whole[name].nunique()) > _MOST_CATEGORIES:
            raise DatasetError(f"{folder}: column {name!r} has {count:,} different texts; leave it out by `ignore`")
    whole = pd.get_dummies(whole, columns=texts, prefix_sep="=")
    values = whole.to_numpy(dtype=np.float64, na_value=np.nan)
    return tuple(map(str, whole.columns)), values, targets, [len(frame) for frame in frames]


def _targets_of(source: DatasetSource) -> tuple[str, ...]:
    return (source.target,) if isinstance(source.target, str) else source.target or ()


def _read_frame(path: Path, source: DatasetSource, reader: str) -> Any:
    """The table in a file, without the columns to ignore."""
    import pandas as pd  # half a second

    known: dict[str, Any] = {"csv": partial(pd.read_csv, sep=source.separator or ","), "parquet": pd.read_parquet}
    read = find_reader(path.parent.name, reader, known | dict.fromkeys(("npz", "sgemm"), pd.read_csv))
    try:
        frame = read(path)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise DatasetError(f"{path}: {error}") from None
    for column in (*_targets_of(source), *source.ignore):
        if column not in frame:
            hint = nearest(str(column), map(str, frame.columns))
            raise DatasetError(f"{path}: has no column {column!r}{hint} (separator: {source.separator or ','!r})")
    return frame.drop(columns=[*source.ignore])
