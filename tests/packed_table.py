"""A small packed table, as `preprocess` leaves one."""

from pathlib import Path

import numpy as np

from stages.datasets.packed import PackedInfo, TableSet, digest_tables, write_packed


def pack_table(folder: Path, features: np.ndarray, targets: np.ndarray) -> PackedInfo:
    """Pack features [300, 3] and targets [300]; the first 40 rows, with doubled features, are the test set."""
    table = TableSet(features, targets)
    test = TableSet(table.features[:40] * 2, table.targets[:40])
    info = PackedInfo(
        dataset="line",
        kind="table",
        provenance="embedded",
        digest=digest_tables(table, test, ("a", "b", "c")),
        classes=("a", "b", "c"),
        shape=(3,),
        train_images=300,
        test_images=40,
        test_rows=None,
        excluded_test_images=0,
        source="embedded",
    )
    write_packed(folder, {"train": table, "test": test}, info)
    return info
