"""Read tables of claims and of reported results, check each row, and judge them.

A row that can't be judged is reported with what was found, what was expected and how to fix it; all others are judged.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import difflib
import io
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias, cast

import pandas as pd

from stages.reported import TableError as TableError
from stages.reported import judging
from stages.reported.judging import (
    RULES,
    Better,
    PrintedNumber,
    ReportedVerdict,
    measure_gains,
    parse_count,
    unjudged,
)
from stages.reported.units import (
    HIGHER,
    LARGEST,
    LOWER,
    NO_SHARES,
    PERCENT,
    SHARES,
    find_divisors,
    find_readings,
    last_word,
)
from stages.rules import Rules
from stages.verdicts import Status

Table: TypeAlias = pd.DataFrame | str | Path
KINDS = ("value", "order", "gap", "comparable", "wins")
OTHER_NAMES = {"difference": "order", "equivalence": "comparable", "": "value"}
COLUMNS = {"baseline_arm": "baseline", "experiment": "dataset", "value": "printed", "model": "arm"}
"""Other names of columns of claims."""
RELATIVE = ("ratio", "inconsistent")
"""Kinds of `data/claims.csv` that `lint` reads as a gain; it skips the others that this module doesn't judge."""
KEYS = ("dataset", "arm", "seed", "fold", "epoch", "unit", "lab", "url")
_DIVERGED = ("", "nan", "none", "diverged", "<na>", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Verdicts in the order of the claims, and the rows that could not be judged."""

    verdicts: tuple[ReportedVerdict, ...]
    problems: tuple[RowProblem, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each verdict."""
        return pd.DataFrame([verdict.to_dict() for verdict in self.verdicts])


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
        raise TableError(f"{repr(table)[:60]} is no table; expected the path of a CSV file, or a data frame")
    frame.columns = [str(column).strip().lower() for column in frame.columns]
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
        raw = path.read_bytes()
        utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        lines = list(io.StringIO(raw.decode("utf-16" if utf16 else "utf-8-sig"), newline=""))
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TableError(f"{path} isn't text in UTF-8; save it as CSV UTF-8") from None
    first = next((at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    header = lines[first] if first < len(lines) else ""
    rows: list[list[str]] = []
    numbers, surplus = [], {}
    reader = csv.reader(lines[first:], delimiter=max(",;\t", key=header.count), strict=True)
    try:
        columns = next(reader, [])
        end = first + reader.line_num
        for cells in reader:
            line, end = end + 1, first + reader.line_num
            if any(cell.strip() for cell in cells):
                if any(cell.strip() for cell in cells[len(columns) :]):
                    surplus[line] = f"{len(cells)} cells in {len(columns)} columns; quote a cell that has a comma"
                rows.append([*cells, *[""] * len(columns)][: len(columns)])
                numbers.append(line)
    except csv.Error as error:
        raise TableError(f"{path}: {error} in line {first + reader.line_num}; expected CSV") from None
    if not columns:
        raise TableError(f"{path} is empty; expected a line with the names of the columns")
    frame = pd.DataFrame(rows, columns=columns, index=numbers, dtype=str)
    frame.attrs["surplus"] = surplus
    return frame


def _texts(cells: pd.Series) -> pd.Series:
    return pd.Series([_text(cell) for cell in cells], index=cells.index, dtype=object)


def _text(cell: object) -> str:
    """Return the text of a cell, empty if it is missing."""
    return "" if cell is None or (pd.api.types.is_scalar(cell) and pd.isna(cell)) else str(cell).strip()  # type: ignore[call-overload]


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
            _check_unit(row, row.key in shares)
            valid.append(row)
        except ValueError as error:
            problems.append(RowProblem(line=row.line, id=row.id, why=str(error)))
    return valid, problems


def find_shares(rows: Collection[ClaimRow]) -> set[str]:
    """Return the metrics that are shares: those known to be, and others of which a value is in percent."""
    percent = {row.key for row in rows if row.kind == "value" and row.unit == "%"}
    known = {row.key for row in rows if last_word(row.key) in SHARES}
    return known | {key for key in percent if last_word(key) not in NO_SHARES}


def _check_unit(row: ClaimRow, is_share: bool) -> None:
    """Check that the printed number can be one of the metric.

    Raises:
        ValueError: it can't.
    """
    if row.printed is None:
        return
    if not is_share and row.unit == "%":
        raise ValueError(
            f"{row.text} in percent is no difference of {row.metric!r}, which is no share; print it in the metric's "
            "unit, or leave printed empty to judge the order alone"
        )
    size = abs(row.printed.value)
    if is_share and size > 1 and not row.printed.is_percent:
        raise ValueError(f"{row.text} is no share of 1; write {row.text} % if it is in percent")
    if is_share and (size > 1 or (row.kind == "value" and row.printed.value < 0)):
        raise ValueError(f"{row.text} is no share; expected a number from 0 to 100 %")


def _read_row(line: int, texts: Mapping[str, str], printed_cell: object) -> ClaimRow:
    def text(name: str) -> str:
        return texts.get(name, "")

    kind, metric, better = text("kind").lower(), text("metric"), text("better").lower()
    kind = OTHER_NAMES.get(kind, kind)
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}{_nearest(kind, KINDS)}; expected one of {', '.join(KINDS)}")
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
        raise ValueError(f"printed is {text('printed')}, which is no size to compare with; use kind comparable")
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


def _nearest(name: str, known: Sequence[str]) -> str:
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
    frame["value"] = _read_numbers(frame, "value", texts.str.removesuffix("%").str.strip(), _DIVERGED)
    seeds = _texts(frame[index]).str.lower().replace(_SEED, r"\1", regex=True)
    frame["seed"] = _read_numbers(frame, index, seeds)
    run = ["dataset", "arm", "seed", "metric"]
    if "epoch" in frame.columns:
        frame["epoch"] = _read_numbers(frame, "epoch", _texts(frame["epoch"]))
        _refuse_twice(frame, [*run, "epoch", "lab"], index)
        frame = frame.sort_values("epoch", kind="stable").drop_duplicates([*run, "lab"], keep="last")
    _refuse_twice(frame, run, index)
    frame["divisor"] = frame["unit"].map(lambda unit: math.nan if not unit else 100.0 if unit == "%" else 1.0)
    frame = frame.sort_values("seed", kind="stable")
    frame.attrs.update(is_folded=index == "fold", is_wide=is_wide, names=names)
    return frame


def _read_numbers(frame: pd.DataFrame, column: str, texts: pd.Series, missing: Sequence[str] = ()) -> pd.Series:
    """Return the numbers that the texts hold, NaN for those that are `missing`.

    Raises:
        TableError: a text is neither.
    """
    is_missing = texts.isin(missing)
    numbers = pd.to_numeric(texts.where(~is_missing), errors="coerce").astype(float)
    wrong = ~numbers.abs().le(LARGEST) & ~is_missing
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        expected = "97.1, 97.1 % or, if it diverged, nothing" if column == "value" else "a number in each row"
        raise TableError(
            f"the results' {column} {texts.iloc[at][:40]!r} (line {frame['line'].iloc[at]}) is not a number; expected "
            f"{expected}"
        )
    return numbers


def _refuse_twice(frame: pd.DataFrame, columns: Sequence[str], index: str) -> None:
    twice = frame[frame.duplicated(columns, keep=False)]
    if twice.empty:
        return
    first = twice.iloc[0]
    lines = twice[(twice[list(columns)] == first[list(columns)]).all(axis=1)]["line"].tolist()
    raise TableError(
        f"the results have {first['arm']!r}, {index} {first['seed']:g}, {first['metric']!r} twice; keep one of each "
        f"(lines {', '.join(map(str, lines[:4]))})"
    )


def judge(claims: Table, results: Table, rules: Rules = RULES) -> Judged:
    """Judge a table of claims by a table of results; both are files or data frames.

    Raises:
        TableError: one of them can't be read at all, or `rules` aren't rules.
    """
    if not isinstance(rules, Rules):
        raise TableError(f"rules is {repr(rules)[:60]}; expected Rules, such as claimcheck.RULES")
    rows, problems = read_rows(read_table(claims, ("id", "metric", "arm"), COLUMNS))
    found = _Results(read_results(results, {row.key for row in rows}), rows)
    verdicts = []
    for row in rows:
        try:
            verdicts.append(_judge_row(row, found, rules))
        except ValueError as error:
            problems.append(RowProblem(line=row.line, id=row.id, why=str(error)))
    return Judged(verdicts=tuple(verdicts), problems=tuple(sorted(problems, key=lambda problem: problem.line)))


class _Results:
    """Results with the decision on the unit of each metric and data set, the same for all claims."""

    def __init__(self, frame: pd.DataFrame, rows: Sequence[ClaimRow]) -> None:
        self.frame = frame
        self.shares = find_shares(rows)
        if not frame.attrs["is_wide"]:  # there a unit may be that of another column
            percent = set(frame.loc[frame["unit"] == "%", "metric"])
            self.shares |= {metric for metric in percent if last_word(metric) not in NO_SHARES}
        own = ~frame["metric"].isin(self.shares)
        if frame.attrs["is_wide"]:
            own &= frame["unit"] == "%"
            frame.loc[own, "unit"] = ""
            frame.loc[own, "divisor"] = math.nan
        self._confirmed = {
            (row.key, dataset)
            for row in rows
            if row.kind == "value" and row.unit and row.better == "lower" and row.key in self.shares
            for dataset, cells in self._select(row).groupby("dataset")
            if row.printed and row.printed.value / 10 < cells["value"].mean() < row.printed.value * 10
        }

    def _select(self, row: ClaimRow) -> pd.DataFrame:
        frame = self.frame[(self.frame["metric"] == row.key) & (self.frame["arm"] == row.arm)]
        return frame[frame["dataset"] == row.dataset] if row.dataset else frame

    def divisors(self, row: ClaimRow, dataset: str) -> Sequence[float]:
        """Return what a result without a unit may have to be divided by.

        Raises:
            ValueError: the results aren't those of the metric.
        """
        cells = self.frame[(self.frame["metric"] == row.key) & (self.frame["dataset"] == dataset)]
        if row.key in self.shares:
            possible = find_divisors(cells, row.better)
            return possible[:1] if (row.key, dataset) in self._confirmed else possible
        units = sorted({*cells["unit"], row.unit} - {""})
        if len(units) > 1 or "%" in units:
            raise ValueError(
                f"the unit of {row.metric!r} is {' and '.join(units)}; expected one unit, and % only of a share of 1"
            )
        return (1.0,)


def _judge_row(row: ClaimRow, results: _Results, rules: Rules) -> ReportedVerdict:
    frame = results.frame
    of_row = frame[frame["metric"] == row.key]
    if of_row.empty:
        return unjudged(row.id, f"The results have no {row.metric!r}{_nearest(row.key, frame.attrs['names'])}.")
    if row.dataset and row.dataset not in set(of_row["dataset"]):
        known = sorted(set(of_row["dataset"]) - {""})
        hint = "" if known else "; the results name no data set: fill in their column dataset, or empty the claim's"
        return unjudged(row.id, f"No results on {row.dataset!r}{_nearest(row.dataset, known)}{hint}.")
    if row.dataset:
        of_row = of_row[of_row["dataset"] == row.dataset]
    elif row.kind != "wins" and of_row["dataset"].nunique() > 1:
        raise ValueError("the results have several data sets; fill in the column dataset")
    for arm in filter(None, (row.arm, row.baseline)):
        if arm not in set(of_row["arm"]):
            known = sorted(set(of_row["arm"]))
            return unjudged(row.id, f"No results of {arm!r} in {row.metric!r}{_nearest(arm, known)}.")
    is_share = row.key in results.shares
    _check_unit(row, is_share)
    possible = {dataset: results.divisors(row, dataset) for dataset in sorted(set(of_row["dataset"]))}
    options: dict[str, Any] = {"rules": rules, "claim": row.id, "better": row.better}
    if row.kind == "wins":
        pairs = [
            (_values(part, row.arm), _values(part, row.baseline))
            for dataset, part in of_row.groupby("dataset")
            if {row.arm, row.baseline} <= set(part["arm"])
        ]
        return judging.wins(pairs, printed=row.text, **options)
    options |= {"is_share": is_share}
    if row.kind != "comparable":
        options |= {"n": row.n}
    if row.kind != "value":
        count = of_row["seed"].nunique() if frame.attrs["is_folded"] else 0
        options |= {"folds": count if count > 1 else None}
        if count or rules.is_anytime:
            seeds = [set(of_row.loc[of_row["arm"] == arm, "seed"]) for arm in (row.arm, row.baseline)]
            of_row = of_row[of_row["seed"].isin(seeds[0] & seeds[1])]
            if of_row.empty:
                raise ValueError("the models have no seed in common; `looks: anytime` compares them seed by seed")
    (divisors,) = possible.values()

    def judge_with(claim: float, divisor: float) -> ReportedVerdict:
        printed = row.printed and row.printed.divided(claim)
        if row.kind == "value":
            assert printed is not None
            return judging.value(printed=printed, ours=_values(of_row, row.arm, divisor), **options)
        compare: Callable[..., ReportedVerdict] = getattr(judging, row.kind)
        arms = (_values(of_row, arm, divisor) for arm in (row.arm, row.baseline))
        return compare(*arms, printed=printed, **options)

    may_be_share = is_share or last_word(row.key) not in NO_SHARES
    has_unit = (bool(row.unit) or row.printed is None, not of_row["divisor"].isna().any())
    readings = find_readings(
        row.printed.value if row.printed and row.kind != "comparable" else None,
        [_measure(row, of_row, divisor) for divisor in (1, 100)],
        divisors,
        has_unit=has_unit if may_be_share else (True, True),
        is_share=is_share,
    )
    found = [judge_with(*reading) for reading in readings]
    if len({(one.status, one.verdict.size and one.verdict.size.status) for one in found}) > 1:
        lacking = [name for name, known in zip(("the claim", "the results"), has_unit, strict=True) if not known]
        raise ValueError(
            f"the verdict depends on the unit, which is missing: write % or fraction in a column unit of "
            f"{' and '.join(lacking)}"
        )
    return found[0]


def _measure(row: ClaimRow, frame: pd.DataFrame, divisor: float) -> float:
    """Return the mean of the row's model, or its gain; NaN if all runs diverged."""
    one, other = (float(pd.Series(_values(frame, arm, divisor)).mean()) for arm in (row.arm, row.baseline))
    return one if row.kind == "value" else measure_gains(one, other, row.better, is_share=False)[0]


def _values(frame: pd.DataFrame, arm: str, divisor: float = 1.0) -> list[float]:
    of_arm = frame[frame["arm"] == arm]
    return [float(each) for each in of_arm["value"] / of_arm["divisor"].fillna(divisor)]


def lint(claims: Table) -> list[RowProblem]:
    """Check claims without results: every row, and every printed gain against the cells that it comes from.

    A gain of one arm over another fits if it is the difference of their cells, their ratio minus 1, or the share by
    which the error falls, within the printed rounding of all three numbers.  If an arm has several cells, one suffices.

    Raises:
        TableError: as `read_table`.
    """
    frame = read_table(claims, ("id", "metric", "arm"), COLUMNS)
    if {"statement", "kind", "baseline", "printed"} <= set(frame.columns):  # our own: claims of other kinds, too
        frame = frame.astype(object).fillna("")
        kinds = frame["kind"].replace(dict.fromkeys(RELATIVE, "gap"))
        frame = frame.assign(kind=kinds)[kinds.isin((*KINDS, *OTHER_NAMES)) & (frame["arm"] != "")]
        frame = frame[
            (frame["baseline"] != frame["arm"]) & (frame["kind"].isin(("value", "order")) | (frame["printed"] != ""))
        ]
    rows, problems = read_rows(frame)
    shares = find_shares(rows)
    cells: dict[tuple[str, str, str], list[PrintedNumber]] = {}
    for row in rows:
        if row.kind == "value" and row.printed:
            cells.setdefault((row.dataset, row.key, row.arm), []).append(row.printed)
    for row in rows:
        ours, theirs = (cells.get((row.dataset, row.key, arm), []) for arm in (row.arm, row.baseline))
        if row.kind not in ("order", "gap") or not (row.printed and ours and theirs):
            continue
        pairs = [(one, other) for one in ours for other in theirs]
        is_share = row.key in shares
        if any(_fits(row, row.printed, *pair, is_share) for pair in pairs):
            continue
        difference, share, _ = measure_gains(ours[0].value, theirs[0].value, row.better, is_share)
        why = f"{row.text} is printed, but {ours[0].value:g} and {theirs[0].value:g} differ by {difference:.4g}"
        why = f"{why}, which is {100 * share:.3g} %"
        if is_share and not row.unit and any(_fits(row, row.printed.divided(100), *pair, is_share) for pair in pairs):
            why = f"{row.text} without a unit is a fraction; write {row.text} % if it is in percent"
        problems.append(RowProblem(line=row.line, id=row.id, why=why))
    return sorted(problems, key=lambda problem: problem.line)


def _fits(row: ClaimRow, gain: PrintedNumber, one: PrintedNumber, other: PrintedNumber, is_share: bool) -> bool:
    """Return True if rounding of the cells and of the gain may explain a printed gain."""
    slack = gain.precision / 2 + 1e-12
    corners = [
        measure_gains(one.value + i * one.precision / 2, other.value + j * other.precision / 2, row.better, is_share)
        for i in (-1, 1)
        for j in (-1, 1)
    ]
    signs = (1, -1) if row.kind == "gap" and row.better == "lower" else (1,)
    return any(
        min(ends) - slack <= sign * gain.value <= max(ends) + slack
        for ends in zip(*corners, strict=True)
        for sign in signs
    )


_MEANINGS: Mapping[Status, tuple[str, str]] = {
    Status.REPRODUCED: ("✓", "equals the printed number within the margin"),
    Status.SUPPORTED: ("✓", "the model that the paper calls better is better"),
    Status.NOT_REPRODUCED: ("✗", "differs from the printed number by more than the margin"),
    Status.REVERSED: ("✗", "the other model is better"),
    Status.INCONCLUSIVE: ("?", "more replicates may decide it"),
    Status.UNRESOLVED: ("?", "neither model is clearly better"),
    Status.UNDECIDABLE: ("?", "no number of replicates would decide it"),
}
"""An icon, and what the status means."""
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.5rem;border-bottom:1px solid #ccc;text-align:left;"
    "vertical-align:top}td.n{text-align:right}small{color:#555;display:block;font-weight:normal}li{margin:.3rem 0}"
)


def write_page(judged: Judged, title: str) -> str:
    """Return the page: a row for each verdict, then the rows that can't be judged."""
    rows = "".join(map(_row, judged.verdicts))
    problems = "".join(f"<li>{escape(str(problem))}</li>" for problem in judged.problems)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>Reported, not retrained: these verdicts compare printed numbers with results "
        "trained elsewhere. They don't show how those results were produced.</p><table><tr><th>claim<th>verdict"
        "<th>printed<th>reported<th>difference<small>line: its interval; shaded: the margin</small>"
        f"<th>why</tr>{rows}</table>"
        f"{f'<h2>Rows that could not be judged</h2><ul>{problems}</ul>' if problems else ''}</html>\n"
    )


def _row(judged: ReportedVerdict) -> str:
    icon, meaning = _MEANINGS.get(judged.status, ("", ""))
    why = "".join(f"<small>{escape(text)}</small>" for text in (judged.verdict.explanation, judged.of_size) if text)
    return (
        f"<tr><td>{escape(judged.claim)}<td><b>{icon} {escape(str(judged.status))}</b><small>{meaning}</small>"
        f"<td class=n>{_number(judged.printed)}<td class=n>{_number(judged.ours)}<td>{judged.to_svg()}<td>{why}</tr>"
    )


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.4g}"
