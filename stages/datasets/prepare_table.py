"""From the settings and run times of SGEMM to the packed table: split, take logarithms, standardise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stages.datasets import sgemm
from stages.datasets.checks import UnknownReader, check_response
from stages.datasets.manifest import Manifest, all_files, judge_provenance
from stages.datasets.packed import PackedInfo, Split, TableSet, digest_tables, write_packed
from stages.datasets.verified import DatasetError
from stages.params.experiment import DatasetSource

STAND_IN_ROWS: dict[Split, int] = {"train": 576, "test": 64}
SPLIT_SEED = 0


def prepare_table(source: DatasetSource, manifest: Manifest, folder: Path, target: Path) -> PackedInfo:
    """Write the packed table of the raw files in `folder`, or of the stand-in, into `target`.

    Raises:
        DatasetError: the raw file doesn't match `source`.
    """
    counts: dict[Split, int] = {"train": source.train, "test": source.test}
    if source.reader != "sgemm":
        raise UnknownReader(manifest.dataset, source.reader, ["sgemm"])
    if source.shape != (len(sgemm.COLUMNS),):
        raise DatasetError(f"{manifest.dataset}: rows have {len(sgemm.COLUMNS)} columns; params.yaml: {source.shape}")
    if manifest.source == "embedded":
        counts = STAND_IN_ROWS
        settings, times = sgemm.compose_stand_in(sum(counts.values()))
    else:
        settings, runs = sgemm.read_rows(folder)
        check_response(runs, source, manifest.dataset)
        times = runs[:, 0]
    if len(settings) != sum(counts.values()):
        raise DatasetError(f"{manifest.dataset}: {len(settings):,} rows; params.yaml declares {sum(counts.values()):,}")
    splits, mean, std = standardise(settings, times, split_rows(counts))
    info = PackedInfo(
        dataset=manifest.dataset,
        kind="table",
        provenance=judge_provenance(
            source, manifest, counts["train"], counts["test"], files=all_files(source), content_is_whole=False
        ),
        digest=digest_tables(splits["train"], splits["test"], sgemm.COLUMNS),
        classes=sgemm.COLUMNS,
        shape=source.shape,
        train_images=counts["train"],
        test_images=counts["test"],
        test_rows=None,
        excluded_test_images=0,
        source=manifest.source,
        shared_test_images=0,
        mean=mean,
        std=std,
        split_note="test rows drawn once for all" if manifest.source != "embedded" else None,
    )
    write_packed(target, splits, info)
    return info


def split_rows(counts: Mapping[Split, int]) -> dict[Split, np.ndarray]:
    """Row numbers of each split, ascending; always the same for the same counts."""
    # RandomState and not default_rng: its stream is frozen.
    order = np.random.RandomState(SPLIT_SEED).permutation(sum(counts.values()))
    ends = np.cumsum(list(counts.values()))[:-1]
    return {split: np.sort(rows) for split, rows in zip(counts, np.split(order, ends), strict=True)}


def standardise(
    settings: np.ndarray, times: np.ndarray, rows: Mapping[Split, np.ndarray]
) -> tuple[dict[Split, TableSet], tuple[float, ...], tuple[float, ...]]:
    """The splits, and mean and standard deviation of each column over the training rows, which both share.

    The protocol decides which of the training rows validate, as with images.
    """
    # Every logarithm of a power of two is an integer, so the sums are exact and the same on every machine.
    powers = np.log2(settings[:, : len(sgemm.POWERS)]).round().astype(np.int64)
    features = np.concatenate([powers, settings[:, len(sgemm.POWERS) :]], axis=1)
    train = features[rows["train"]]
    total, squares, n = train.sum(0), (train**2).sum(0), len(train)
    mean, std = total / n, np.sqrt(n * squares - total**2) / n
    targets = np.array([math.log2(time) for time in times.tolist()], dtype=np.float32)
    splits = {
        split: TableSet(((features[part] - mean) / std).astype(np.float32), targets[part])
        for split, part in rows.items()
    }
    return splits, tuple(mean.tolist()), tuple(std.tolist())
