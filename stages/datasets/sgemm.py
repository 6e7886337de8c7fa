"""SGEMM: run times of a matrix product on a GPU for each setting of its kernel (Nugteren, Codreanu 2015; UCI 440).

The target is the first of the four measured runs, in ms, as log2: the DAC paper takes "one replica each".  The ten
settings that are powers of two are taken as log2, too; the four switches stay 0 and 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stages.datasets.verified import DatasetError

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
    """Settings int64 [N, 14] and the four run times in ms float64 [N, 4] of every row, in the order of the file.

    Raises:
        DatasetError: the file isn't the official table or a part of it.
    """
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
        raise DatasetError(f"{path}: a setting comes twice")
    return settings, times


def compose_stand_in(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Settings int64 [N, 14] and one run time in ms for each, float64 [N], from a model of a GPU instead of a real one.

    Time is work divided by throughput.  Throughput grows with the work that each thread has (more reuse of registers),
    with wider loads and with staging in local memory, and falls where a work group is too small or its tiles don't fit.
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
