"""The arrays of an npz file: rows or images, and their targets, of both splits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from stages.datasets.labels import encode_masks, encode_targets
from stages.datasets.packed import ImageSet, Split
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource

_ROWS, _TARGETS = "x|images?|data|features", "y|labels?|targets?|masks?"
Arrays = dict[Split, tuple[np.ndarray, np.ndarray]]


def read_arrays(folder: Path, names: tuple[str, ...]) -> tuple[Arrays, str]:
    """Return rows and targets of each split, from arrays called like `x_train` and `y_train`, or `train_images`.

    Also a note on arrays of a validation split, which are left out.

    Raises:
        DatasetError: the file is damaged, or lacks an array; or one isn't of numbers, or differs in length from its
            targets.
    """
    (name, *more), found = names, Arrays()
    if more:
        raise DatasetError(f"{folder}: {len(names)} files; the arrays of a data set are in one npz")
    path = folder / name
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DatasetError(f"{path}: is one array, as numpy.save writes; save the arrays with numpy.savez")
        with content as file:
            for split in ("train", "test"):
                (x, rows), (y, targets) = (_find(file, kind, split, path) for kind in (_ROWS, _TARGETS))
                if len(rows) != len(targets):
                    raise DatasetError(f"{path}: {x} has {len(rows):,} rows and {y} {len(targets):,}")
                found[split] = rows, targets
            spare = [
                key for key in file.files if _pattern(f"{_ROWS}|{_TARGETS}", "val(?:id(?:ation)?)?").fullmatch(key)
            ]
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001  (numpy and zipfile read damaged headers without a check)
        raise DatasetError(
            f"{path}: not an npz file of plain arrays ({error}); write it with `numpy.savez`, without objects"
        ) from None
    return found, f"arrays left out: {', '.join(spare)}" if spare else ""


def _find(file: Any, kind: str, split: str, path: Path) -> tuple[str, np.ndarray]:
    """Name and content of the one array of a kind and a split."""
    one = f"{kind[0]}_{split}"
    keys = [key for key in file.files if _pattern(kind, split).fullmatch(key)]
    if len(keys) != 1:
        has = " and ".join(keys) or f"no array like {one}; it has {', '.join(file.files)}"
        raise DatasetError(f"{path}: has {has}; expected one array, called like {one}")
    array = file[keys[0]]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or not array.ndim:
        has = f"{array.dtype} {[*array.shape]}" if isinstance(array, np.ndarray) else "no array"
        raise DatasetError(f"{path}: {keys[0]} is {has}; expected an array of numbers; classes are numbers from 0")
    return keys[0], array


def _pattern(kind: str, split: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{split})_(?:{kind})|(?:{kind})_(?:{split})")


def read_image_arrays(folder: Path, names: tuple[str, ...], source: DatasetSource) -> tuple[dict[Split, ImageSet], str]:
    """Return images and labels of each split, and a note on arrays that are left out.

    Raises:
        DatasetError: as `read_arrays`; or images aren't uint8, or labels aren't as the task needs them.
    """
    found, note = read_arrays(folder, names)
    splits: dict[Split, ImageSet] = {}
    for split, (images, labels) in found.items():
        where = f"{folder / names[0]}, {split}"
        if images.dtype != np.uint8:
            raise DatasetError(f"{where}: images are {images.dtype}; expected uint8")
        if images.ndim == 3:
            images = images[:, None]
        elif images.shape[1:] != source.shape and images.shape[1:] == (*source.shape[1:], source.shape[0]):
            images = images.transpose(0, 3, 1, 2)
        if source.task == "segmentation":
            labels = encode_masks(labels, source, where)
        elif source.task is not None:
            labels = encode_targets(labels, source, (), where)
        else:
            labels = one_of_each_row(labels, where)
            for row in np.flatnonzero((labels != np.rint(labels)) | ~(abs(labels) < 1 << 31))[:1]:
                raise DatasetError(
                    f"{where}: the class of row {row} is {labels[row]}; expected a whole number from 0, or declare "
                    "`task: regression`"
                )
            labels = labels.astype(np.int64)
        splits[split] = ImageSet(images, labels)
    return splits, note


def one_of_each_row(targets: np.ndarray, where: str) -> np.ndarray:
    """Return targets [N] or [N, 1] as [N].

    Raises:
        DatasetError: they have another shape.
    """
    if targets.size != len(targets):
        raise DatasetError(
            f"{where}: targets are {[*targets.shape]}; expected one number for each row, or declare a `task`"
        )
    return targets.reshape(-1)
