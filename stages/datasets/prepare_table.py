"""Pack the settings and run times of SGEMM as a table: split, take logarithms, standardise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stages.datasets.manifest import DatasetError, Manifest, all_files, check_response, judge_provenance
from stages.datasets.packed import PackedInfo, Split, TableSet, digest_tables, write_packed
from stages.params.experiment import DatasetSource

POWERS: dict[str, tuple[int, ...]] = {
    "MWG": (16, 32, 64, 128),
    "NWG": (16, 32, 64, 128),
    "KWG": (16, 32),
    "MDIMC": (8, 16, 32),
    "NDIMC": (8, 16, 32),
    "MDIMA": (8, 16, 32),
    "NDIMB": (8, 16, 32),
    "KWI": (2, 8),
    "VWM": (1, 2, 4, 8),
    "VWN": (1, 2, 4, 8),
}
SWITCHES = ("STRM", "STRN", "SA", "SB")
COLUMNS = (*POWERS, *SWITCHES)
FILE = "sgemm_product.csv"
_HEADER = ",".join((*COLUMNS, "Run1 (ms)", "Run2 (ms)", "Run3 (ms)", "Run4 (ms)"))


def read_rows(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read settings int64 [N, 14] and the four run times in ms float64 [N, 4] of all rows, in the order of the file."""
    path = folder / FILE
    with path.open(encoding="utf-8", errors="replace") as file:
        if file.readline().strip() != _HEADER:
            raise DatasetError(f"{path}: its first line isn't {_HEADER}")
        try:
            values = np.loadtxt(file, delimiter=",", dtype=np.float64, ndmin=2)
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from None
    if values.shape[0] == 0 or values.shape[1] != len(COLUMNS) + 4:
        raise DatasetError(f"{path}: has {values.shape[0]} rows of {values.shape[1]} values")
    settings, times = values[:, : len(COLUMNS)].astype(np.int64), values[:, len(COLUMNS) :]
    for index, column in enumerate(COLUMNS):
        wrong = np.flatnonzero(~np.isin(values[:, index], POWERS.get(column, (0, 1))))
        if wrong.size:
            raise DatasetError(f"{path}: row {wrong[0]} has {column} {values[wrong[0], index]:g}, which no kernel has")
    for row, run in np.argwhere(~((times > 0) & np.isfinite(times)))[:1]:
        raise DatasetError(f"{path}: row {row} has the run time {times[row, run]:g} ms")
    if len({row.tobytes() for row in settings}) != len(settings):
        raise DatasetError(f"{path}: a setting occurs twice")
    return settings, times


def compose_stand_in(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Compose settings int64 [N, 14] and a run time in ms for each, float64 [N], from a model of a GPU.

    Time is work divided by throughput.  Throughput grows with the work that each thread has (more reuse of registers),
    with wider loads and with staging in local memory, and falls if a work group is too small or its tiles don't fit.
    """
    random = np.random.RandomState(0)  # frozen, so that the digest stays the same with every numpy
    choices = [POWERS.get(column, (0, 1)) for column in COLUMNS]
    drawn = np.stack([random.choice(values, 4 * rows) for values in choices], axis=1)
    _, first = np.unique(drawn, axis=0, return_index=True)
    settings = drawn[np.sort(first)[:rows]].astype(np.int64)
    value = dict(zip(COLUMNS, settings.T.astype(np.float64), strict=True))
    threads = value["MDIMC"] * value["NDIMC"]
    per_thread = value["MWG"] * value["NWG"] / threads
    staged = (value["SA"] * value["MWG"] + value["SB"] * value["NWG"]) * value["KWG"]
    efficiency = (
        per_thread
        / (per_thread + 16)
        * threads
        / (threads + 64)
        * (1 + 0.25 * value["SA"] + 0.25 * value["SB"])
        * (value["VWM"] + value["VWN"])
        / (value["VWM"] + value["VWN"] + 2)
        * value["KWI"]
        / (value["KWI"] + 1)
        / (1 + staged / 4096)
        / (1 + 0.125 * np.abs(value["STRM"] - value["STRN"]))
    )
    work, peak = 2 * 2048.0**3, 4e9  # floating-point operations, and how many of them the model does per ms
    return settings, work / (peak * efficiency)


STAND_IN_ROWS: dict[Split, int] = {"train": 576, "test": 64}
SPLIT_SEED = 0


def prepare_table(source: DatasetSource, manifest: Manifest, folder: Path, target: Path) -> PackedInfo:
    """Write the packed table of the raw files in `folder`, or of placeholder data, into `target`."""
    counts: dict[Split, int] = {"train": source.train, "test": source.test}
    if source.shape != (len(COLUMNS),):
        raise DatasetError(f"{manifest.dataset}: rows have {len(COLUMNS)} columns; params.yaml: {source.shape}")
    if manifest.source == "embedded":
        counts = STAND_IN_ROWS
        settings, times = compose_stand_in(sum(counts.values()))
    else:
        settings, runs = read_rows(folder)
        check_response(runs, source, manifest.dataset)
        times = runs[:, 0]
    if len(settings) != sum(counts.values()):
        raise DatasetError(f"{manifest.dataset}: {len(settings):,} rows; params.yaml declares {sum(counts.values()):,}")
    splits, mean, std = standardise(settings, times, split_rows(counts))
    note = "test rows drawn once for all" if manifest.source != "embedded" else None
    return pack_table(source, manifest, splits, COLUMNS, mean, std, note, target)


def pack_table(
    source: DatasetSource,
    manifest: Manifest,
    splits: Mapping[Split, TableSet],
    columns: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    note: str | None,
    target: Path,
    shared: int = 0,
) -> PackedInfo:
    """Write the splits of a table, standardised by `mean` and `std`, and their description into `target`.

    `shared`: how many test rows are training rows, too; rows of SGEMM are checked to be different.
    """
    train, test = len(splits["train"].targets), len(splits["test"].targets)
    info = PackedInfo(
        dataset=manifest.dataset,
        kind="table",
        provenance=judge_provenance(source, manifest, train, test, files=all_files(source), content_is_whole=False),
        digest=digest_tables(splits["train"], splits["test"], columns),
        classes=columns,
        shape=source.shape,
        train_images=train,
        test_images=test,
        test_rows=None,
        excluded_test_images=0,
        source=manifest.source,
        shared_test_images=shared,
        mean=mean,
        std=std,
        split_note=note,
    )
    write_packed(target, splits, info)
    return info


def split_rows(counts: Mapping[Split, int], kept: np.ndarray | None = None) -> dict[Split, np.ndarray]:
    """Return the row numbers of each split, ascending; always the same for the same counts.

    `kept` are the rows of a file that count, bool; row numbers are among them, and all rows are drawn, so that a row
    that is repaired doesn't move the others.
    """
    # RandomState and not default_rng: its stream is frozen.
    order = np.random.RandomState(SPLIT_SEED).permutation(sum(counts.values()) if kept is None else len(kept))
    if kept is not None:
        order = (kept.cumsum() - 1)[order[kept[order]]]
    ends = np.cumsum(list(counts.values()))[:-1]
    return {split: np.sort(rows) for split, rows in zip(counts, np.split(order, ends), strict=True)}


def standardise(
    settings: np.ndarray, times: np.ndarray, rows: Mapping[Split, np.ndarray]
) -> tuple[dict[Split, TableSet], tuple[float, ...], tuple[float, ...]]:
    """Return the splits, and the mean and deviation of each column over the training rows, which standardise both.

    The protocol decides which of the training rows validate, as with images.
    """
    # Every logarithm of a power of two is an integer, so the sums are exact and the same on every machine.
    powers = np.log2(settings[:, : len(POWERS)]).round().astype(np.int64)
    features = np.concatenate([powers, settings[:, len(POWERS) :]], axis=1)
    train = features[rows["train"]]
    total, squares, n = train.sum(0), (train**2).sum(0), len(train)
    mean, std = total / n, np.sqrt(n * squares - total**2) / n
    targets = np.array([math.log2(time) for time in times.tolist()], dtype=np.float32)
    splits = {
        split: TableSet(((features[part] - mean) / std).astype(np.float32), targets[part])
        for split, part in rows.items()
    }
    return splits, tuple(mean.tolist()), tuple(std.tolist())
