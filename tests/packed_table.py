"""Small packed data sets in the format that `preprocess` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.datasets.packed import ImageSet, PackedInfo, TableSet, digest_images, digest_tables, write_packed


def describe(dataset: str, **fields: Any) -> PackedInfo:
    """Return the description of an empty set of embedded placeholder data unless `fields` override it."""
    known: dict[str, Any] = {"provenance": "embedded", "source": "embedded", "digest": "d", "classes": ()}
    known |= {"train_images": 0, "test_images": 0, "test_rows": None, "excluded_test_images": 0}
    return PackedInfo(dataset=dataset, **known | fields)


def pack_images(
    folder: Path, dataset: str, train: ImageSet, test: ImageSet, classes: Sequence[str], **fields: Any
) -> PackedInfo:
    """Pack images as embedded placeholder data unless `fields` override the description."""
    known: dict[str, Any] = {"digest": digest_images(train, test, tuple(classes)), "classes": tuple(classes)}
    known |= {"shape": train.images.shape[1:], "train_images": len(train), "test_images": len(test)}
    info = describe(dataset, **known | fields)
    write_packed(folder, {"train": train, "test": test}, info)
    return info


def pack_table(folder: Path, features: np.ndarray, targets: np.ndarray) -> PackedInfo:
    """Pack features [300, 3] and targets [300]; the test set is the first 40 rows with doubled features."""
    table = TableSet(features, targets)
    test = TableSet(table.features[:40] * 2, table.targets[:40])
    names = ("a", "b", "c")
    digest = digest_tables(table, test, names)
    info = describe("line", kind="table", digest=digest, classes=names, shape=(3,), train_images=300, test_images=40)
    write_packed(folder, {"train": table, "test": test}, info)
    return info
