"""What is learned from each kind of packed data: its task over one split of it."""

from __future__ import annotations

from pathlib import Path

import torch

from stages.datasets.packed import PackedInfo, Split, read_images, read_table, read_tokens
from stages.run import Protocol
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task
from stages.training.tables import Regression, TableRows
from stages.training.tokens import NextToken, TokenWindows


def read_task(folder: Path, info: PackedInfo, split: Split, protocol: Protocol, device: torch.device) -> Task:
    """The task of a packed set's kind, with its arrays on `device`.

    Raises:
        PackedDataError: the split's file is missing or damaged.
    """
    if info.kind == "table":
        table = read_table(folder, split)
        return Regression(TableRows(*(torch.from_numpy(array).to(device) for array in (table.features, table.targets))))
    if info.kind == "text":
        tokens = torch.from_numpy(read_tokens(folder, split).tokens).to(device)
        return NextToken(TokenWindows(tokens, info.shape[0]), protocol)
    images = read_images(folder, split)
    data = LabelledImages(torch.from_numpy(images.images).to(device), torch.from_numpy(images.labels).to(device))
    return ImageClassification(data, protocol)
