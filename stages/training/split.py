"""Index lists over the official training set: the rows that train and the rows that validate."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.run import Protocol, Replicate, SplitSpec


def split_indices(n: int, split: SplitSpec, fold: int | None) -> tuple[Tensor, Tensor]:
    """Return (train, validation) rows of n, int64, disjoint and together all of them; no validation for `none`.

    Raises:
        ValueError: the split's numbers contradict each other.
    """
    if split.kind == "none":
        return torch.arange(n), torch.empty(0, dtype=torch.int64)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(split.seed))
    if split.kind == "fraction":
        if split.fraction is None or not 0 < split.fraction < 1:
            raise ValueError(f"split.fraction is {split.fraction}; expected a number between 0 and 1")
        held_out = round(n * split.fraction)
        return order[held_out:].sort().values, order[:held_out].sort().values
    if split.folds is None or split.folds < 2 or fold is None or not 0 <= fold < split.folds:
        raise ValueError(f"split.folds is {split.folds} and the fold {fold}; expected 0 <= fold < folds, folds >= 2")
    parts = order.tensor_split(split.folds)
    rest = torch.cat([part for index, part in enumerate(parts) if index != fold])
    return rest.sort().values, parts[fold].sort().values


def training_rows(n: int, protocol: Protocol, replicate: Replicate) -> tuple[Tensor, Tensor]:
    """Return (train, validation) rows under `protocol`; `train_images` keeps a fixed random part of the former."""
    train, validation = split_indices(n, protocol.split, replicate.fold)
    if protocol.train_images is not None and protocol.train_images < len(train):
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(protocol.split.seed))
        train = train[chosen[: protocol.train_images].sort().values]
    return train, validation
