"""Labels of a user's own data other than one class: several of a row, numbers, or masks of pixels.

All are packed in int64 [N, ...], as classes are, so that one format, which every run key covers, has them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stages.datasets.manifest import DatasetError
from stages.params.experiment import DatasetSource
from stages.texts import plain

GREATEST = float(np.finfo(np.float32).max)
"""Greatest number that training, which is in float32, can read."""


def is_mask(name: str) -> bool:
    """Return True for a picture in a folder called masks."""
    return "masks" in PurePosixPath(name).parent.parts


def pair_masks(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Return each picture's mask: `images/cat.jpg` has `masks/cat.png`, in any folder.

    Raises:
        DatasetError: there are none, a picture has no mask, or a mask no picture.
    """
    pairs: dict[str, dict[str, str]] = {"images": {}, "masks": {}}
    for name in names:
        path = PurePosixPath(name)
        for kind in {*path.parent.parts} & pairs.keys():
            key = "/".join(part for part in path.with_suffix("").parts if part != kind)
            if (other := pairs[kind].setdefault(key, name)) != name:
                raise DatasetError(f"{folder}: {other} and {name} name the same picture; rename one of them")
    images, masks = pairs["images"], pairs["masks"]
    if not images:
        raise DatasetError(f"{folder}: no picture is in a folder called images; its mask is in one called masks")
    if single := sorted(images.keys() ^ masks.keys()):
        raise DatasetError(
            f"{folder}: {len(single)} of images/ and masks/ have no counterpart: {', '.join(single[:5])}"
        )
    return {image: masks[key] for key, image in images.items()}


def check_mask_size(mask: tuple[int, int], image: tuple[int, int], where: str) -> None:
    """Check that a mask of this width and height covers its picture: it may only be scaled.

    Raises:
        DatasetError: it has other proportions, by more than whole pixels allow.
    """
    (width, height), (wide, high) = mask, image
    is_alike = abs(width * high - height * wide) * 2 <= max(width + height, wide + high)
    if not is_alike or (width == wide) != (height == high):
        raise DatasetError(
            f"{where}: {width} x {height} pixels; its picture has {wide} x {high}, and a mask the same proportions"
        )


def encode_masks(masks: np.ndarray, source: DatasetSource, where: str) -> np.ndarray:
    """Bytes of masks [N, H, W], eight in an int64: 0 for a pixel that doesn't count (255), else its class and one.

    Raises:
        DatasetError: they have another shape or type, or a number that isn't a class.
    """
    if masks.ndim != 3 or masks.shape[1:] != source.shape[1:] or masks.dtype.kind not in "iub":
        expected = f"integers [N, {source.shape[1]}, {source.shape[2]}]"
        raise DatasetError(f"{where}: masks are {masks.dtype} {[*masks.shape]}; expected {expected}")
    for row, top, left in np.argwhere(((masks < 0) | (masks >= source.classes)) & (masks != 255))[:1]:
        most = source.classes - 1
        raise DatasetError(
            f"{where}: mask {row} has {masks[row, top, left]}; expected 0 to {most}, or 255 for pixels to ignore"
        )
    raised = (masks.astype(np.uint8) + np.uint8(1)).reshape(len(masks), -1)  # 255 becomes 0
    return np.pad(raised, ((0, 0), (0, -raised.shape[1] % 8))).view("<i8")


def check_masks(labels: np.ndarray, source: DatasetSource, where: str) -> None:
    """Check that every class has a pixel."""
    counts = np.bincount(labels.view(np.uint8).reshape(-1), minlength=source.classes + 1)[1:]
    if (counts == 0).any():
        empty = ", ".join(map(str, np.flatnonzero(counts == 0)[:5]))
        raise DatasetError(f"{where}: no pixel of class {empty}; pixels of 255 are ignored")


def match_labels(
    frame: Any,
    columns: Sequence[str],
    source: DatasetSource,
    path: Path,
    seen: Collection[str],
    readable: Collection[str],
) -> dict[str, np.ndarray]:
    """Return the labels of each picture, by the table in `path`, whose first column names the pictures.

    `seen` has the names of all pictures, of which only the readable ones need labels; a row names one by the end of its
    path.

    Raises:
        DatasetError: a row names no picture, several, or one that has a row; or a picture has none.
    """
    import pandas as pd  # takes half a second

    names, frame = frame[frame.columns[0]].map(lambda name: plain(str(name))), frame[[*columns]]
    frame = frame.apply(pd.to_numeric, errors="coerce").fillna(frame)  # other text stays, for the message
    values = encode_targets(frame.to_numpy(), source, columns, str(path))
    by_ending: dict[str, list[str]] = {}
    for name in seen:
        parts = PurePosixPath(name).parts
        for start in range(len(parts)):
            by_ending.setdefault(plain("/".join(parts[start:])), []).append(name)
    row_of: dict[str, int] = {}
    for row, name in enumerate(names):
        fitting = by_ending.get(name, [])
        if len(fitting) != 1 or fitting[0] in row_of:
            raise DatasetError(f"{path}: {name!r} names {len(fitting)} pictures, or the same one as an earlier row")
        row_of[fitting[0]] = row
    if lacking := sorted(set(readable) - row_of.keys()):
        raise DatasetError(f"{path}: has no row for {len(lacking)} pictures: {', '.join(lacking[:5])}")
    return {name: values[row_of[name]] for name in seen if name in row_of}


def collect_labels(cells: Mapping[str, Any], source: DatasetSource) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the names of the labels, and the labels of each picture; `cells` has these by its name.

    They are numbers and names of the labels that it has, or a value for each label, if `source.target` has several.

    Raises:
        DatasetError: a picture doesn't have the declared number of labels, or one can't be learned.
    """
    columns = source.target if isinstance(source.target, tuple) else tuple(map(str, range(source.classes)))
    if source.task == "multi-label" and not isinstance(source.target, tuple):
        known = sorted({label for cell in cells.values() for label in cell})
        is_twice = [name for name, cell in cells.items() if len({*cell}) < len(cell)]
        is_full = [name for name, cell in cells.items() if len(cell) == source.classes]
        if is_twice or len(is_full) == len(cells):
            what = f"a label is twice in {is_twice[0]}" if is_twice else "every picture has every label"
            raise DatasetError(
                f"lists of labels: {what}; a list has the names or numbers of a picture's labels; instead of a 0 or 1 "
                "for each label, write a column for each, and declare their names as `target`"
            )
        columns = tuple(name for _, name in known)
        cells = {name: [label in cell for label in known] for name, cell in cells.items()}
    labels = {}
    for name, cell in cells.items():
        row = np.empty((1, len(cell)), dtype=object)
        row[0] = cell
        labels[name] = encode_targets(row, source, columns if len(columns) == len(cell) else (), name)[0]
    return columns, labels


def encode_targets(values: np.ndarray, source: DatasetSource, columns: Sequence[str], where: str) -> np.ndarray:
    """Labels int64 [N, K]: 0 or 1, or the bits of the float64 numbers that a regression learns.

    Raises:
        DatasetError: there are not as many columns as declared, or a value isn't such a number.
    """
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != source.classes:
        named = f" ({', '.join(columns)})" if columns else ""
        raise DatasetError(f"{where}: labels are {values.shape}{named}; params.yaml declares classes: {source.classes}")
    is_number = source.task == "regression"
    if values.dtype.kind in "biuf":
        is_right = abs(values) <= GREATEST if is_number else np.isin(values, (0, 1))
    else:
        checked = [
            isinstance(value, int | float | np.number | np.bool_)
            and (-GREATEST <= value <= GREATEST if is_number else value in (0, 1))
            for value in values.flat
        ]
        is_right = np.array(checked, dtype=bool).reshape(values.shape)
    for row, column in np.argwhere(~is_right)[:1]:
        name, expected = columns[column] if columns else column, "a finite number of float32" if is_number else "0 or 1"
        raise DatasetError(f"{where}: row {row} of label {name} is {values[row, column]}; expected {expected}")
    return values.astype("<f8").view("<i8") if is_number else values.astype(np.int64)


def check_rounding(targets: np.ndarray, where: str) -> None:
    """Check that numbers to learn, float64 [N, ...], stay apart in float32, in which networks are trained.

    Raises:
        DatasetError: rounding changes one by more than a thousandth of their standard deviation.
    """
    rounded = abs(targets.astype(np.float32) - targets).max(axis=0, initial=0)
    spread, greatest = targets.std(axis=0), abs(targets).max(axis=0, initial=0)
    is_constant = spread <= 4 * np.finfo(np.float64).eps * greatest
    for place in np.argwhere((rounded > spread / 1000) & ~is_constant)[:1]:
        lost, known = rounded[(*place,)], spread[(*place,)]
        raise DatasetError(
            f"{where}: float32 rounds a target by {lost:.2g}, while their standard deviation is {known:.2g}; subtract "
            "a constant from them"
        )


def rarest_labels(labels: dict[str, np.ndarray]) -> dict[str, str]:
    """The rarest label of each picture, for test pictures to have their share of every label."""
    counts = np.sum([*labels.values()], axis=0)
    return {name: str(min(np.flatnonzero(row), key=counts.__getitem__, default="")) for name, row in labels.items()}
