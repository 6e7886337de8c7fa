"""Maps each kind of packed data to its reader and its task."""

from __future__ import annotations

from pathlib import Path

import torch

from stages.datasets.packed import (
    ImageSet,
    PackedInfo,
    Split,
    TableSet,
    TokenSet,
    read_images,
    read_table,
    read_tokens,
)
from stages.run import Protocol
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task
from stages.training.tables import Regression, TableRows
from stages.training.tokens import NextToken, TokenWindows

RowSet = ImageSet | TableSet | TokenSet


def read_rows(folder: Path, info: PackedInfo, split: Split) -> RowSet:
    """Read one split of a packed set.

    Raises:
        PackedDataError: the file is missing or damaged.
    """
    if info.kind == "table":
        return read_table(folder, split)
    return read_tokens(folder, split) if info.kind == "text" else read_images(folder, split)


def make_task(rows: RowSet, info: PackedInfo, protocol: Protocol, device: torch.device) -> Task:
    """Build the task for this kind of rows, with the arrays on `device`."""
    if isinstance(rows, TableSet):
        return Regression(TableRows(*(torch.from_numpy(array).to(device) for array in (rows.features, rows.targets))))
    if isinstance(rows, TokenSet):
        return NextToken(TokenWindows(torch.from_numpy(rows.tokens).to(device), info.shape[0]), protocol)
    data = LabelledImages(torch.from_numpy(rows.images).to(device), torch.from_numpy(rows.labels).to(device))
    return ImageClassification(data, protocol)
