"""Scores only part of the test rows, if a profile's budget allows no more.

The results are marked `subset` and count what they leave out, like those of a data set that lacks test rows, so that no
claim treats them as results on the whole test set.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from stages.datasets.packed import PackedInfo, TokenSet
from stages.training.kinds import RowSet


def cut_info(info: PackedInfo, test_rows: int | None) -> PackedInfo:
    """The packed set's info when `test_rows` of its test rows are scored; a text's rows are windows of tokens."""
    kept = info.test_images
    if test_rows is not None:
        kept = min(kept, test_rows * info.shape[0] + 1 if info.kind == "text" else test_rows)
    if kept == info.test_images:
        return info
    return dataclasses.replace(
        info,
        test_images=kept,
        excluded_test_images=info.excluded_test_images + info.test_images - kept,
        provenance="subset" if info.provenance == "full" else info.provenance,
    )


def cut_rows(rows: RowSet, kept: int) -> RowSet:
    """The first `kept` tokens of a text; otherwise rows evenly spread over the set, which may be ordered by class."""
    if kept >= len(rows):
        return rows
    chosen = np.arange(kept) if isinstance(rows, TokenSet) else np.linspace(0, len(rows) - 1, kept).astype(int)
    return type(rows)(*(getattr(rows, field.name)[chosen] for field in dataclasses.fields(rows)))
