"""Packed data sets: the one form in which training and evaluation read data.

`data/processed/<dataset>/` holds one file of arrays per split and `dataset.json`, a `PackedInfo`.

images  train, test              `images` uint8 [N, C, H, W], `labels` int64 [N], or [N, ...] for another task
table   train, test              `features` float32 [N, D], `targets` float32 [N]
text    train, test              `tokens` uint16 [N]

The worker imports this module, so it needs numpy and safetensors only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from stages.faults import named

Split = Literal["train", "test"]
Kind = Literal["images", "table", "text"]
DTYPES = {"images": np.uint8, "labels": np.int64, "features": np.float32, "targets": np.float32, "tokens": np.uint16}


class PackedDataError(ValueError):
    """A packed data set is missing or damaged; the message names the file and how to recreate it."""


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 [N, C, H, W] and their classes int64 [N]; or other labels, encoded by `stages.datasets.labels`."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TableSet:
    """Standardised features float32 [N, D] and targets float32 [N], or labels [N, K] for another task."""

    features: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class TokenSet:
    """Token ids uint16 [N] of one text, in its order."""

    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class PackedInfo:
    """Description of a packed data set; the content of `dataset.json`.

    `digest` covers the values and the class names but not the file format.  `source` says whose digests the raw bytes
    match: `official`, or `mirror` if only a mirror gives the digest of some file.  `test_rows` are the official
    positions of the test images kept (None: all of them); `excluded_test_images` counts the rest.  `shared_test_images`
    are also in the training set, pixel by pixel.  `mean` and `std` per channel, in [0, 1], are those of the training
    pixels alone.  `split_note` says how a split of our own was made.

    A table has `shape` [D], its columns' names as `classes`, and `mean` and `std` of each column
    before it was standardised; a text has shape [T], the tokens that a row reads, and counts tokens, with ids below
    `vocabulary`.
    """

    dataset: str
    provenance: Literal["embedded", "subset", "full"]
    digest: str
    classes: tuple[str, ...]
    shape: tuple[Any, ...]
    train_images: int
    test_images: int
    test_rows: tuple[int, ...] | None
    excluded_test_images: int
    source: Literal["embedded", "mirror", "official"]
    shared_test_images: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    split_note: str | None = None
    kind: Kind = "images"
    vocabulary: int | None = None


def digest_images(train: ImageSet, test: ImageSet, classes: tuple[str, ...]) -> str:
    """sha256 over class names, shapes and little-endian bytes of the four arrays."""
    arrays = [(train.images, "u1"), (train.labels, "<i8"), (test.images, "u1"), (test.labels, "<i8")]
    return _digest(classes, arrays)


def digest_tables(train: TableSet, test: TableSet, columns: tuple[str, ...]) -> str:
    """sha256 over column names, shapes and little-endian bytes of both tables."""
    return _digest(columns, [(array, "<f4") for table in (train, test) for array in (table.features, table.targets)])


def digest_tokens(train: TokenSet, test: TokenSet, window: int) -> str:
    """sha256 over the tokens per row, and lengths and little-endian bytes of both texts."""
    return _digest((f"windows of {window}",), [(train.tokens, "<u2"), (test.tokens, "<u2")])


def _digest(names: tuple[str, ...], arrays: list[tuple[np.ndarray, str]]) -> str:
    head = {"classes": names, "shapes": [array.shape for array, _ in arrays]}
    digest = hashlib.sha256(json.dumps(head, separators=(",", ":")).encode())
    for array, kind in arrays:
        digest.update(np.ascontiguousarray(array, dtype=kind).data)
    return digest.hexdigest()


def write_packed(folder: Path, splits: Mapping[Split, ImageSet | TableSet | TokenSet], info: PackedInfo) -> None:
    """Write the set next to `folder`, then move it into place, so that readers never see part of it."""
    staged = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    for leftover in (staged, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        for split, content in splits.items():
            arrays = {field.name: getattr(content, field.name) for field in dataclasses.fields(content)}
            packed = {name: np.ascontiguousarray(array, dtype=DTYPES[name]) for name, array in arrays.items()}
            _write_durably(staged / f"{split}.safetensors", save(packed))
        text = json.dumps(dataclasses.asdict(info), sort_keys=True) + "\n"
        _write_durably(staged / "dataset.json", text.encode())
        if folder.exists():
            os.rename(folder, replaced)
        os.rename(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def _write_durably(path: Path, content: bytes) -> None:
    with named(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_info(folder: Path) -> PackedInfo:
    """Read the `dataset.json` of a packed set.

    Raises:
        PackedDataError: it is missing or invalid.
    """
    path = folder / "dataset.json"
    try:
        fields: Mapping[str, Any] = json.loads(path.read_text())
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        return PackedInfo(**{**fields, **lists})
    except FileNotFoundError:
        raise PackedDataError(f"{path}: no such file; {_remedy(folder)}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise PackedDataError(f"{path}: not the description of a packed set ({error}); {_remedy(folder)}") from error


def read_images(folder: Path, split: Split) -> ImageSet:
    """Read one split of a packed set of images, in its stored order.

    Raises:
        PackedDataError: the file is missing or damaged.
    """
    return ImageSet(*_read_arrays(folder, split, ("images", "labels")))


def read_table(folder: Path, split: Split) -> TableSet:
    """Read one split of a packed table, in its stored order.

    Raises:
        PackedDataError: the file is missing or damaged.
    """
    return TableSet(*_read_arrays(folder, split, ("features", "targets")))


def read_tokens(folder: Path, split: Split) -> TokenSet:
    """Read one part of a packed text.

    Raises:
        PackedDataError: the file is missing or damaged.
    """
    return TokenSet(*_read_arrays(folder, split, ("tokens",)))


def _read_arrays(folder: Path, split: str, names: tuple[str, ...]) -> list[np.ndarray]:
    path = folder / f"{split}.safetensors"
    try:
        arrays = load_file(path)
        return [arrays[name] for name in names]
    except FileNotFoundError:
        raise PackedDataError(f"{path}: no such file; {_remedy(folder)}") from None
    except (SafetensorError, KeyError) as error:
        raise PackedDataError(f"{path}: not a packed split ({error}); {_remedy(folder)}") from error


def digest_packed(folder: Path, info: PackedInfo) -> str:
    """Compute the digest of the current content of the folder's files.

    Raises:
        PackedDataError: they can't be read.
    """
    if info.kind == "images":
        return digest_images(read_images(folder, "train"), read_images(folder, "test"), info.classes)
    if info.kind == "table":
        return digest_tables(read_table(folder, "train"), read_table(folder, "test"), info.classes)
    return digest_tokens(read_tokens(folder, "train"), read_tokens(folder, "test"), info.shape[0])


def _remedy(folder: Path) -> str:
    return f"`python -m stages.preprocess {folder.name}` writes it"
