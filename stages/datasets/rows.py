"""Number of rows that a data set gives to a training, known before anything is fetched or packed."""

from __future__ import annotations

from dataclasses import dataclass

from stages.datasets import text
from stages.datasets.embedded import stand_in_counts
from stages.datasets.prepare_table import STAND_IN_ROWS
from stages.params.experiment import DatasetSource


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of the official training and test set, and the shape of one; in a text a row is a window of tokens."""

    train: int
    test: int
    shape: tuple[int, ...]


def count_rows(name: str, source: DatasetSource, *, is_stand_in: bool) -> Rows:
    """Rows of the declared data set, or of its stand-in."""
    if source.kind == "text":
        return _count_windows(name, source, is_stand_in)
    train, test = source.train, source.test
    if is_stand_in and source.kind == "table":
        train, test = STAND_IN_ROWS["train"], STAND_IN_ROWS["test"]
    elif is_stand_in:
        train, test = stand_in_counts(source.classes)
    return Rows(train=train, test=test, shape=source.shape)


def _count_windows(name: str, source: DatasetSource, is_stand_in: bool) -> Rows:
    train, test, window = source.train, source.test, source.shape[0]
    if is_stand_in:
        train, test = text.split_lengths(len(text.compose_stand_in(name)))
        window = text.stand_in_window(source)
    return Rows(train=(train - 1) // window, test=(test - 1) // window, shape=(window,))
