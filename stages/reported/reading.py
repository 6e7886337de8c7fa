"""Read and check tables of claims and of reported results.

A row that can't be judged is reported with what was found, what was expected and how to fix it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TypeAlias, cast

import pandas as pd

from stages.reported import TableError as TableError
from stages.reported.judging import Better
from stages.reported.units import (
    HIGHER,
    LARGEST,
    LOWER,
    NO_SHARES,
    PERCENT,
    SHARES,
    PrintedNumber,
    explain_number,
    last_word,
    parse_count,
)
from stages.texts import UnreadableText, csv_rows, decode, plain, surplus

Table: TypeAlias = pd.DataFrame | str | Path
KINDS = ("value", "order", "gap", "comparable", "wins")
OTHER_NAMES = {"difference": "order", "equivalence": "comparable", "": "value"}
COLUMNS = {"baseline_arm": "baseline", "experiment": "dataset", "value": "printed", "model": "arm"}
"""Other names of columns of claims."""
KEYS = ("dataset", "arm", "seed", "fold", "epoch", "unit", "lab", "url")
_DIVERGED = ("", "nan", "none", "diverged", "<na>", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_LONGEST = 400
"""Characters of a number; Python doesn't read integers of thousands."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"([+-]?\d+)(?:\.0*)?", re.ASCII)
_SEED = re.compile(r"^(?:s|seed|fold|run)[-_ ]?(\d+)$", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One claim.  `line` counts from 2, as an editor shows the file; `printed` is None for an order without a size.

    `unit` is in lower case, "%" of a number in percent and empty if none is given.
    """

    line: int
    id: str
    kind: str
    metric: str
    arm: str
    baseline: str
    dataset: str
    printed: PrintedNumber | None
    count: tuple[int, int] | None
    n: int | None
    better: Better
    text: str
    unit: str

    @property
    def key(self) -> str:
        """Name of the metric, as results have it."""
        return self.metric.lower()


@dataclass(frozen=True, kw_only=True)
class RowProblem:
    """A row that can't be judged, or whose numbers exclude each other, and why."""

    line: int
    id: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.id}: {self.why}"


def read_table(table: Table, needed: Sequence[str], aliases: Mapping[str, str]) -> pd.DataFrame:
    """Read a table with lower-case column names, in which `needed` columns must be.

    The index is each row's line in the file.  `attrs["surplus"]` are lines with more cells than columns.

    Raises:
        TableError: it can't be read, lacks one of these columns, or has one twice.
    """
    name = "the table" if isinstance(table, pd.DataFrame) else str(table)
    if isinstance(table, pd.DataFrame):
        frame = table.set_axis(range(2, len(table) + 2))
    elif isinstance(table, str | Path):
        frame = read_file(Path(table))
    else:
        raise TableError(f"{repr(table)[:60]} isn't a table; expected the path of a CSV file, or a data frame")
    frame.columns = [plain(str(column)).lower() for column in frame.columns]
    frame = frame.rename(columns={old: new for old, new in aliases.items() if new not in frame.columns})
    frame = frame.loc[:, [column != "" for column in frame.columns]]
    if lacking := [column for column in needed if column not in frame.columns]:
        raise TableError(f"{name} lacks the columns {', '.join(lacking)}; it has {', '.join(frame.columns)}")
    if twice := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise TableError(f"{name} has the columns {', '.join(twice)} twice, in any case; rename one of them")
    return frame


def read_file(path: Path) -> pd.DataFrame:
    """Read a CSV file, also with semicolons or tabs, or in UTF-16, as Excel writes it; as `read_table`."""
    try:
        rows = csv_rows(decode(path.read_bytes(), path), path)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    except UnreadableText as error:
        raise TableError(str(error)) from None
    if not rows:
        raise TableError(f"{path} is empty; expected a line with the names of the columns")
    columns = rows.pop(0)[1]
    frame = pd.DataFrame(
        [[*cells, *[""] * len(columns)][: len(columns)] for _, cells in rows],
        columns=columns,
        index=[line for line, _ in rows],
        dtype=str,
    )
    frame.attrs["surplus"] = {line: fault for line, cells in rows if (fault := surplus(cells, columns))}
    return frame


def _texts(cells: pd.Series) -> pd.Series:
    return pd.Series([_text(cell) for cell in cells], index=cells.index, dtype=object)


def _text(cell: object) -> str:
    """Return the text of a cell, empty if it is missing."""
    return "" if cell is None or (pd.api.types.is_scalar(cell) and pd.isna(cell)) else plain(str(cell))  # type: ignore[call-overload]


def read_rows(frame: pd.DataFrame) -> tuple[list[ClaimRow], list[RowProblem]]:
    """Read claims, as `read_table` returns them; each row is a `ClaimRow` or a `RowProblem`."""
    rows: dict[str, ClaimRow] = {}
    problems = []
    surplus = frame.attrs.get("surplus", {})
    for line, cells in zip(frame.index, frame.to_dict("records"), strict=True):
        texts = {str(column): _text(cell) for column, cell in cells.items()}
        if not any(texts.values()):
            continue
        try:
            if line in surplus:
                raise ValueError(surplus[line])
            row = _read_row(line, texts, cells.get("printed"))
            if row.id in rows:
                raise ValueError(f"the id is already in line {rows[row.id].line}; give each claim its own")
            rows[row.id] = row
        except ValueError as error:
            problems.append(RowProblem(line=line, id=texts["id"], why=str(error)))
    shares = find_shares(rows.values())
    valid = []
    for row in rows.values():
        try:
            check_unit(row, row.key in shares)
            valid.append(row)
        except ValueError as error:
            problems.append(RowProblem(line=row.line, id=row.id, why=str(error)))
    return valid, problems


def find_shares(rows: Collection[ClaimRow]) -> set[str]:
    """Return the metrics that are shares: those known to be, and others of which a value is in percent."""
    percent = {row.key for row in rows if row.kind == "value" and row.unit == "%"}
    known = {row.key for row in rows if last_word(row.key) in SHARES}
    return known | {key for key in percent if last_word(key) not in NO_SHARES}


def check_unit(row: ClaimRow, is_share: bool) -> None:
    """Check that the printed number can be one of the metric.

    Raises:
        ValueError: it can't.
    """
    if row.printed is None:
        return
    if not is_share and row.unit == "%":
        raise ValueError(
            f"{row.text} in percent isn't a difference of {row.metric!r}, which isn't a share; print it in the "
            "metric's unit, or leave printed empty to judge the order alone"
        )
    size = abs(row.printed.value)
    if is_share and size > 1 and not row.printed.is_percent:
        raise ValueError(f"{row.text} isn't a share of 1; write {row.text} % if it is in percent")
    if is_share and (size > 1 or (row.kind == "value" and row.printed.value < 0)):
        raise ValueError(f"{row.text} isn't a share; expected a number from 0 to 100 %")


def _read_row(line: int, texts: Mapping[str, str], printed_cell: object) -> ClaimRow:
    def text(name: str) -> str:
        return texts.get(name, "")

    kind, metric, better = text("kind").lower(), text("metric"), text("better").lower()
    kind = OTHER_NAMES.get(kind, kind)
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}{nearest(kind, KINDS)}; expected one of {', '.join(KINDS)}")
    last = last_word(metric)
    known = "higher" if last in HIGHER else "lower" if last in LOWER else ""
    if better not in ("", "higher", "lower"):
        raise ValueError(f"better is {better!r}; expected higher or lower")
    if not (better or known):
        raise ValueError(f"it isn't known which way {metric!r} points; fill in the column better: higher or lower")
    if known and better and better != known:
        raise ValueError(f"better is {better!r}, but {known} is better for {metric!r}")
    if not text("arm"):
        raise ValueError("arm is empty; name the model that the claim is about")
    if kind != "value" and text("baseline") in ("", text("arm")):
        raise ValueError(f"kind {kind} compares two models; baseline is {text('baseline') or 'empty'!r}")
    n = _read_count(text("n"))
    unit = text("unit").lower() or ("%" if "%" in metric else "")
    unit = "%" if unit in PERCENT else unit
    count = parse_count(text("printed")) if kind == "wins" else None
    given = printed_cell if isinstance(printed_cell, Real) else text("printed")
    printed = PrintedNumber.parse(given, unit) if text("printed") and not count else None
    if printed is None and kind in ("value", "gap"):
        raise ValueError("printed is empty; the claim needs its number")
    std = _read_std(texts, printed, unit, n)
    if printed and std is not None:
        printed = dataclasses.replace(printed, std=std)
    if kind == "comparable" and printed and printed.std is not None:
        raise ValueError("a loss that counts as comparable has no standard deviation; leave it out")
    if kind == "order" and printed and printed.value <= 0:
        raise ValueError(
            f"printed is {text('printed')}, but a gain in favour of the arm is positive, also if lower is better; drop "
            "the sign, or use kind gap for a worse model and kind comparable for 0"
        )
    if kind == "gap" and printed and not printed.value:
        raise ValueError(f"printed is {text('printed')}, which isn't a size to compare with; use kind comparable")
    return ClaimRow(
        line=line,
        id=text("id"),
        kind=kind,
        metric=metric,
        arm=text("arm"),
        baseline=text("baseline"),
        dataset=text("dataset"),
        printed=printed,
        count=count,
        n=n,
        better=cast("Better", better or known),
        text=text("printed"),
        unit="%" if printed and printed.is_percent else unit,
    )


def _read_count(text: str) -> int | None:
    try:
        n = float(text or 1)
    except ValueError:
        n = math.nan
    if not (1 <= n < 1e9 and n % 1 == 0):
        raise ValueError(f"n is {text[:40]}; expected a number of runs")
    return int(n) if text else None


def _read_std(texts: Mapping[str, str], printed: PrintedNumber | None, unit: str, n: int | None) -> float | None:
    """Return the standard deviation in the columns std or stderr, the second one for the mean of `n` runs."""
    filled = [(name, texts[name]) for name in ("std", "stderr") if texts.get(name)]
    if not filled:
        return None
    name, text = filled[0]
    if len(filled) > 1 or printed is None or printed.std is not None:
        raise ValueError(f"{name} is {text}; expected one standard deviation or error, of the number in printed")
    std = PrintedNumber.parse(text, unit)
    if std.value < 0 or std.std is not None:
        raise ValueError(f"{name} is {text}; expected a standard deviation")
    if std.is_percent and not printed.is_percent:
        raise ValueError(f"{name} is {text}, but printed is {texts['printed']}; write both in percent or neither")
    value = std.value if std.is_percent or not printed.is_percent else std.value / 100
    return value * (math.sqrt(n or 1) if name == "stderr" else 1.0)


def nearest(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def read_results(results: Table, metrics: Collection[str]) -> pd.DataFrame:
    """Read results of `metrics` into the columns dataset, arm, seed, metric and value; of a curve, the last epoch.

    A wide table has a column for each metric.  `seed` may be `fold`, if models share folds.  `divisor` is 100 of a
    value in percent, 1 of one in another unit, and NaN if it has none; `unit` is what the table says.

    Raises:
        TableError: it can't be read, lacks a column, or a value isn't a number.
    """
    frame = read_table(results, ("arm",), {"model": "arm", "run": "seed"})
    for line, why in frame.attrs.get("surplus", {}).items():
        raise TableError(f"line {line} of the results has {why}")
    index = "fold" if "fold" in frame.columns else "seed"
    if index not in frame.columns:
        raise TableError(f"the results lack the column seed (or fold); they have {', '.join(frame.columns)}")
    frame["line"] = frame.index
    is_wide = not {"metric", "value"} <= set(frame.columns)
    if is_wide:
        keys = [column for column in (*KEYS, "line") if column in frame.columns]
        named = [column for column in frame.columns if column in metrics]
        parts = [frame[keys].assign(metric=column, value=frame[column]) for column in named]
        frame = pd.concat(parts) if parts else frame[keys].iloc[:0].assign(metric="", value="")
    for column in ("dataset", "arm", "metric", "unit", "lab"):
        frame[column] = _texts(frame[column]) if column in frame.columns else ""
    names, frame["metric"] = sorted(set(frame["metric"])), frame["metric"].str.lower()
    frame["unit"] = frame["unit"].str.lower().replace(dict.fromkeys(PERCENT, "%"))
    frame.loc[frame["unit"].eq("") & frame["metric"].str.contains("%", regex=False), "unit"] = "%"
    frame = frame[frame["metric"].isin(metrics)].copy()
    texts = _texts(frame["value"]).str.lower().str.replace("\u2212", "-").str.replace("\uff05", "%")
    in_percent = texts.str.endswith("%")
    frame.loc[in_percent, "unit"] = "%"
    frame["value"] = _read_numbers(frame, "value", texts.str.removesuffix("%").str.strip(), _DIVERGED).astype(float)
    advice = "keep one of each"
    if index == "fold" and "seed" in frame.columns and _texts(frame["seed"]).nunique() > 1:
        advice = (
            "folds of several seeds share their data, so these aren't independent runs: replace the results of each "
            "fold by their mean, or keep those of one seed"
        )
    seeds = _texts(frame[index]).str.lower().replace(_SEED, r"\1", regex=True)
    frame["seed"] = _read_numbers(frame, index, seeds)
    run = ["dataset", "arm", "seed", "metric"]
    if "epoch" in frame.columns:
        frame["epoch"] = _read_numbers(frame, "epoch", _texts(frame["epoch"]))
        _refuse_twice(frame, [*run, "epoch", "lab"], index, advice)
        frame = frame.sort_values("epoch", kind="stable").drop_duplicates([*run, "lab"], keep="last")
    _refuse_twice(frame, run, index, advice)
    frame["divisor"] = frame["unit"].map(lambda unit: math.nan if not unit else 100.0 if unit == "%" else 1.0)
    frame = frame.sort_values("seed", kind="stable")
    frame.attrs.update(is_folded=index == "fold", is_wide=is_wide, names=names)
    return frame


def _read_numbers(frame: pd.DataFrame, column: str, texts: pd.Series, missing: Sequence[str] = ()) -> pd.Series:
    """Return the numbers that the texts hold, NaN for those that are `missing`.

    Raises:
        TableError: a text is neither.
    """
    numbers = [math.nan if text in missing else _read_number(text) for text in texts]
    if None in numbers:
        at = numbers.index(None)
        text, line = texts.iloc[at][:40], frame["line"].iloc[at]
        expected = "97.1, 97.1 % or, if it diverged, nothing" if column == "value" else "a number in each row"
        raise TableError(
            f"the results' {column} {text!r} (line {line}) is not a number up to 1e100{explain_number(text)}; expected "
            f"{expected}"
        )
    return pd.Series(numbers, index=texts.index, dtype=object)


def _read_number(text: str) -> float | None:
    """Return the number in a text, a whole one exactly, because floats merge seeds from 2^53; None if there is none."""
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text) or abs(float(text)) > LARGEST:
        return None
    whole = _WHOLE.fullmatch(text)
    return int(whole[1]) if whole else float(text)


def _refuse_twice(frame: pd.DataFrame, columns: Sequence[str], index: str, advice: str) -> None:
    twice = frame[frame.duplicated(columns, keep=False)]
    if twice.empty:
        return
    first = twice.iloc[0]
    lines = twice[(twice[list(columns)] == first[list(columns)]).all(axis=1)]["line"].tolist()
    raise TableError(
        f"the results have {first['arm']!r}, {index} {first['seed']}, {first['metric']!r} twice; {advice} (lines "
        f"{', '.join(map(str, lines[:4]))})"
    )
