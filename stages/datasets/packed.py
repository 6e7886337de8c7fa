"""Packed image sets: the one form in which training and evaluation read data.

`data/processed/<dataset>/` holds `train.safetensors` and `test.safetensors` (`images` uint8 [N, C, H, W], `labels`
int64 [N]) and `dataset.json`, a `PackedInfo`.  The worker imports this module, so it needs numpy and safetensors only.
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

Split = Literal["train", "test"]


class PackedDataError(ValueError):
    """A packed data set is missing or damaged; the message names the file and how to make it again."""


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 [N, C, H, W] and their classes int64 [N]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class PackedInfo:
    """What a packed data set is; the content of `dataset.json`.

    `digest` covers the pixels, labels and class names and nothing of the file format.  `source` says whose digests the
    raw bytes answer to: `official`, or `mirror` where a file is known only by a mirror's word.  `test_rows` are the
    official positions of the test images kept (None: all of them); `excluded_test_images` counts the rest.
    `shared_test_images` are in the training set, too, pixel by pixel.  `mean` and `std` per channel, in [0, 1], are
    those of all training pixels and of nothing else.  `split_note` says how a split that is ours was made.
    """

    dataset: str
    provenance: Literal["embedded", "subset", "full"]
    digest: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    train_images: int
    test_images: int
    test_rows: tuple[int, ...] | None
    excluded_test_images: int
    source: Literal["embedded", "mirror", "official"]
    shared_test_images: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    split_note: str | None = None


def digest_images(train: ImageSet, test: ImageSet, classes: tuple[str, ...]) -> str:
    """sha256 over class names, shapes and little-endian bytes of the four arrays."""
    arrays = [(train.images, "u1"), (train.labels, "<i8"), (test.images, "u1"), (test.labels, "<i8")]
    head = {"classes": classes, "shapes": [array.shape for array, _ in arrays]}
    digest = hashlib.sha256(json.dumps(head, separators=(",", ":")).encode())
    for array, kind in arrays:
        digest.update(np.ascontiguousarray(array, dtype=kind).data)
    return digest.hexdigest()


def write_packed(folder: Path, train: ImageSet, test: ImageSet, info: PackedInfo) -> None:
    """Write the set beside `folder`, then put it in its place: a reader never sees a part of it."""
    staged = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    for leftover in (staged, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        for split, images in (("train", train), ("test", test)):
            arrays: dict[str, np.ndarray] = {
                "images": np.ascontiguousarray(images.images, dtype=np.uint8),
                "labels": np.ascontiguousarray(images.labels, dtype=np.int64),
            }
            _write_durably(staged / f"{split}.safetensors", save(arrays))
        text = json.dumps(dataclasses.asdict(info), sort_keys=True) + "\n"
        _write_durably(staged / "dataset.json", text.encode())
        if folder.exists():
            os.rename(folder, replaced)
        os.rename(staged, folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_info(folder: Path) -> PackedInfo:
    """The `dataset.json` of a packed set.

    Raises:
        PackedDataError: it is missing or is not one.
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
    """One split of a packed set, in its stored order.

    Raises:
        PackedDataError: the file is missing or damaged.
    """
    path = folder / f"{split}.safetensors"
    try:
        arrays = load_file(path)
        return ImageSet(images=arrays["images"], labels=arrays["labels"])
    except FileNotFoundError:
        raise PackedDataError(f"{path}: no such file; {_remedy(folder)}") from None
    except (SafetensorError, KeyError) as error:
        raise PackedDataError(f"{path}: not a packed split ({error}); {_remedy(folder)}") from error


def _remedy(folder: Path) -> str:
    return f"`python -m stages.preprocess {folder.name}` writes it"
