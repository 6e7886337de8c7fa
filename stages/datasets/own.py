"""A user's own data, declared in parameters alone: pictures with classes, labels or masks, arrays, and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stages.datasets import shards
from stages.datasets.archive import PICTURES, decode_own, upright_size, walk
from stages.datasets.labels import (
    check_mask_size,
    collect_labels,
    encode_masks,
    encode_targets,
    is_mask,
    match_labels,
    pair_masks,
    rarest_labels,
)
from stages.datasets.manifest import ImageReader, Manifest, check_classes, check_response, find_reader
from stages.datasets.packed import ImageSet, PackedInfo, Split, TableSet
from stages.datasets.prepare_table import STAND_IN_ROWS, pack_table, split_rows
from stages.datasets.shards import SPLIT_OF, Picture, Pictures, choose_splits, split_of
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource
from stages.params.schema import nearest

ARCHIVES = (".zip", ".tgz", ".tar", ".tar.gz")
IMAGES = ("folder", "npz", *shards.READERS)
_MOST_CATEGORIES = 50


def image_reader(source: DatasetSource, manifest: Manifest, folder: Path) -> ImageReader:
    """A reader for the pictures or arrays that the manifest lists."""
    names = tuple(file.name for file in manifest.files)
    if source.reader == "npz":
        classes = tuple(str(number) for number in range(source.classes))
        splits: dict[Split, ImageSet] = {
            split: ImageSet(*_arrays(folder, names, split, source)) for split in ("train", "test")
        }
        note = _spare_arrays(folder, names)
        return ImageReader(
            classes=classes,
            files={"train": names, "test": names},
            read_split=lambda _, split: splits[split],
            describe=lambda _: note,
        )
    side, mode = source.shape[1], "L" if source.shape[0] == 1 else "RGB"
    seen, pixels, broken = dict[str, Picture](), dict[str, np.ndarray](), list[str]()
    sizes, has_masks = dict[str, tuple[int, int]](), source.task == "segmentation"
    for picture, read in shards.READERS.get(source.reader, _read_folders)(folder, names, source):
        name = picture.name
        seen[name] = picture
        try:
            content = read()
            one = "P" if has_masks and picture.is_mask else mode
            pixels[name] = decode_own(content, side, name, one)
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
        labels = {name: known.index(seen[name].label) for name in pixels}
    else:
        classes, labels, groups = _read_labels(source, folder, names, seen, pixels, sizes)
        seen = {name: seen[name]._replace(label=(0, group)) for name, group in groups.items()}
    readable = pixels.keys() & labels.keys()
    parts, note = _divide(seen, readable, source, manifest.dataset)

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
        frame = _read_frame(path, source, "parquet" if path.suffix == ".parquet" else "csv")
        columns = _targets_of(source) or tuple(map(str, frame.columns[1:]))
        labels = match_labels(frame, columns, source, path, seen, pixels.keys())
    return columns, labels, rarest_labels(labels) if source.task == "multi-label" else dict.fromkeys(labels, "")


def _read_folders(folder: Path, files: Sequence[str], source: DatasetSource) -> Pictures:
    """Yield the pictures among the files and in archives; the folder of each is its class."""

    def picture(name: str) -> Picture:
        place = PurePosixPath(name).parent
        split = _side_of(place if source.task else place.parent)
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
    if published:
        return {split: [name for name in part if name in readable] for split, part in published.items()}, note
    declared = source.train + source.test
    if not len(readable) <= declared <= len(names):
        counts = f"{source.train:,} to train with and {source.test:,} to test"
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
    found = []
    try:
        with np.load(folder / name, allow_pickle=False) as file:
            for kind in (_ROWS, _TARGETS):
                pattern = _array_names(kind, split)
                keys = [key for key in file.files if pattern.fullmatch(key)]
                if len(keys) != 1:
                    has = " and ".join(keys) or f"no array like {kind[0]}_{split}; it has {', '.join(file.files)}"
                    raise DatasetError(f"{folder / name}: has {has}; expected one array, called like {kind[0]}_{split}")
                found.append(file[keys[0]])
    except (OSError, ValueError, EOFError) as error:
        raise DatasetError(f"{folder / name}: not an npz file of plain arrays ({error})") from None
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


_ROWS, _TARGETS = "x|images?|data|features", "y|labels?|targets?|masks?"


def _array_names(kind: str, split: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{split})_(?:{kind})|(?:{kind})_(?:{split})")


def _spare_arrays(folder: Path, names: tuple[str, ...]) -> str:
    """Note on the arrays of an npz file that are of no split, such as x_val; empty if there are none."""
    pattern = _array_names(f"{_ROWS}|{_TARGETS}", "val(?:id(?:ation)?)?")
    with np.load(folder / names[0], allow_pickle=False) as file:
        spare = [key for key in file.files if pattern.fullmatch(key)]
    return f"arrays left out: {', '.join(spare)}" if spare else ""


def prepare_own_table(
    source: DatasetSource, manifest: Manifest, folder: Path, target: Path, *, is_listed: bool
) -> PackedInfo:
    """Write the packed table of CSV, Parquet or npz files, or of placeholder rows, into `target`.

    `is_listed`: params.yaml lists the files one by one, so their order means something.
    """
    counts: dict[Split, int] = {"train": source.train, "test": source.test}
    note = ""
    if manifest.source == "embedded":
        counts = STAND_IN_ROWS
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
        train, total = len(parts[0][1]), len(targets)
        rows, note = {"train": np.arange(train), "test": np.arange(train, total)}, _spare_arrays(folder, files)
    else:
        columns, features, targets, kept = _read_tables(source, folder)
        rows, note = _divide_tables(kept, counts, is_listed=is_listed)
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


def _divide_tables(
    kept: Mapping[str, np.ndarray], counts: Mapping[Split, int], *, is_listed: bool
) -> tuple[dict[Split, np.ndarray], str]:
    """Row numbers of each split, and a note: by the splits that the files' names have, or their order, else drawn.

    `kept`: of each file, the rows that aren't dropped, bool; row numbers are among these.
    """
    files, is_kept = [*kept], np.concatenate([*kept.values()])
    sizes = {file: int(rows.sum()) for file, rows in kept.items()}
    words = {file: split_of(file) for file in files} if len(files) > 1 else {}
    parts, note = choose_splits(words, "rows", sizes)
    if not parts and is_listed and len(files) == 2:
        train, test = files
        if words[train] in ("", "train") and words[test] != "train":
            parts, note = {"train": [train], "test": [test]}, f"training rows from {train}, test rows from {test}"
    if parts:
        ends = dict(zip(files, np.cumsum([*sizes.values()]), strict=True))
        blocks = {file: np.arange(end - sizes[file], end) for file, end in ends.items()}
        return {split: np.concatenate([blocks[file] for file in part]) for split, part in parts.items()}, note
    if len({*words.values()}) > 1:
        named = ", ".join(f"{file} ({word or 'none'})" for file, word in words.items())
        raise DatasetError(f"splits that the files' names have: {named}; expected train in some and test in the others")
    if sum(sizes.values()) != sum(counts.values()):  # for an error with the right number
        return {"train": np.arange(sum(sizes.values())), "test": np.arange(0)}, ""
    return split_rows(counts, is_kept), "test rows drawn once for all"


def _read_tables(
    source: DatasetSource, folder: Path
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Names and values of the columns, and the targets, of the rows that aren't dropped; which these are, by file.

    Text becomes a column per value.
    """
    import pandas as pd  # half a second

    wanted = [*_targets_of(source)]
    if not wanted:
        raise DatasetError(f"{folder.name}: which column is the target?  Declare `target` in params.yaml")
    frames, kept = [], dict[str, np.ndarray]()
    for file in source.files:
        path = folder / file.name
        frame = _read_frame(path, source, source.reader)
        gaps = frame.isna()
        if gaps.any(axis=None) and source.missing == "refuse":
            named = ", ".join(f"{name} ({count:,})" for name, count in gaps.sum().items() if count)
            raise DatasetError(f"{path}: missing values in {named}; declare `missing: drop` or `mean` in params.yaml")
        kept[file.name] = ~(gaps if source.missing == "drop" else gaps[wanted]).any(axis=1).to_numpy()
        frames.append(frame[kept[file.name]])
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
    return tuple(map(str, whole.columns)), values, targets, kept


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
