"""Read tables of claims and of reported results, check each row, and judge them.

A row that can't be judged is reported with what was found, what was expected and how to fix it; all others are judged.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, cast

import pandas as pd

from stages.reported import TableError as TableError
from stages.reported import judging
from stages.reported.judging import PERCENT, RULES, Better, PrintedNumber, ReportedVerdict, parse_count, unjudged
from stages.rules import Rules
from stages.verdicts import Status

Table: TypeAlias = pd.DataFrame | str | Path
HIGHER = ("accuracy", "acc", "f1", "auc", "auroc", "map", "bleu", "precision", "recall", "iou", "psnr")
LOWER = ("error", "loss", "mse", "mae", "rmse", "perplexity", "fid", "wer")
SHARES = ("accuracy", "acc", "error", "f1", "auc", "auroc", "map", "precision", "recall", "iou")
KINDS = ("value", "order", "gap", "comparable", "wins")
OTHER_NAMES = {"difference": "order", "equivalence": "comparable", "": "value"}
COLUMNS = {
    "baseline_arm": "baseline",
    "experiment": "dataset",
    "value": "printed",
    "model": "arm",
    "stderr": "std",
}
"""Other names of columns of claims."""
RELATIVE = ("ratio", "inconsistent")
"""Kinds of `data/claims.csv` that `lint` reads as a gain; it skips the others that this module doesn't judge."""
_FAR = 30.0
"""Factor between a printed share and the results' beyond which percent and fractions are probably mixed."""
KEYS = ("dataset", "arm", "seed", "fold", "epoch", "unit", "lab", "url")


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One claim.  `line` counts from 2, as an editor shows the file; `printed` is None for an order without a size."""

    line: int
    id: str
    kind: str
    metric: str
    arm: str
    baseline: str
    dataset: str
    printed: PrintedNumber | None
    count: tuple[int, int] | None
    std: float | None
    n: int | None
    better: Better
    text: str

    @property
    def is_share(self) -> bool:
        return last_word(self.metric) in SHARES or bool(self.printed and self.printed.is_percent)


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

    Raises:
        TableError: it can't be read, or lacks one of these columns.
    """
    name = "the table" if isinstance(table, pd.DataFrame) else str(table)
    try:
        frame = (
            table.copy() if isinstance(table, pd.DataFrame) else pd.read_csv(table, dtype=str, keep_default_na=False)
        )
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise TableError(f"{name}: {error}") from None
    frame.columns = [str(column).strip().lower() for column in frame.columns]
    frame = frame.rename(columns={old: new for old, new in aliases.items() if new not in frame.columns})
    if lacking := [column for column in needed if column not in frame.columns]:
        raise TableError(f"{name} lacks the columns {', '.join(lacking)}; it has {', '.join(frame.columns)}")
    return frame


def read_rows(claims: Table) -> tuple[list[ClaimRow], list[RowProblem]]:
    """Read claims; each row is a `ClaimRow` or a `RowProblem`.

    Raises:
        TableError: as `read_table`.
    """
    frame = read_table(claims, ("id", "metric", "arm"), COLUMNS).fillna("")
    rows: dict[str, ClaimRow] = {}
    problems = []
    for line, cells in zip((int(index) + 2 for index in frame.index), frame.to_dict("records"), strict=True):
        texts = {str(column): str(cell).strip() for column, cell in cells.items()}
        try:
            row = _read_row(line, texts)
            if row.id in rows:
                raise ValueError(f"the id is already in line {rows[row.id].line}; give each claim its own")
            rows[row.id] = row
        except ValueError as error:
            problems.append(RowProblem(line=line, id=texts["id"], why=str(error)))
    return list(rows.values()), problems


def last_word(metric: str) -> str:
    """Return the last word of a metric's name, which says what it is: `accuracy` of `val/top1_accuracy`."""
    return re.split(r"[^a-z0-9]+", metric.strip().lower())[-1]


def _read_row(line: int, texts: Mapping[str, str]) -> ClaimRow:
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
    n, std = (text(name) and float(text(name)) for name in ("n", "std"))
    if n != "" and (n < 1 or n % 1):
        raise ValueError(f"n is {text('n')}; expected a number of runs")
    if std != "" and std < 0:
        raise ValueError(f"std is {text('std')}; expected a standard deviation")
    count = parse_count(text("printed")) if kind == "wins" else None
    printed = PrintedNumber.parse(text("printed"), text("unit")) if text("printed") and not count else None
    if printed is None and kind in ("value", "gap"):
        raise ValueError("printed is empty; the claim needs its number")
    scale = 100 if printed and printed.is_percent else 1
    row = ClaimRow(
        line=line,
        id=text("id"),
        kind=kind,
        metric=metric,
        arm=text("arm"),
        baseline=text("baseline"),
        dataset=text("dataset"),
        printed=printed,
        count=count,
        std=None if std == "" else std / scale,
        n=None if n == "" else int(n),
        better=cast("Better", better or known),
        text=text("printed"),
    )
    if kind == "value" and printed and row.is_share and not 0 <= printed.value <= 1:
        raise ValueError(f"{text('printed')} is no share of 1; write {text('printed')} % if it is in percent")
    return row


def _nearest(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {found[0]}?)" if found else ""


def read_results(results: Table, metrics: Collection[str]) -> pd.DataFrame:
    """Read results of `metrics` into the columns dataset, arm, seed, metric and value; of a curve, the last epoch.

    A column `unit` may say that a value is in percent; it becomes a fraction.  A wide table has a column for each
    metric.  `seed` may be `fold`, if models share folds.

    Raises:
        TableError: it can't be read, lacks a column, or a value isn't a number.
    """
    frame = read_table(results, ("arm",), {"model": "arm", "run": "seed"})
    if "dataset" not in frame.columns:
        frame["dataset"] = ""
    index = "fold" if "fold" in frame.columns else "seed"
    if index not in frame.columns:
        raise TableError(f"the results lack the column seed (or fold); they have {', '.join(frame.columns)}")
    if not {"metric", "value"} <= set(frame.columns):
        keys = [column for column in KEYS if column in frame.columns]
        named = {metric.lower(): metric for metric in metrics}  # as the columns are
        frame = frame.melt(keys, [column for column in frame.columns if column in named], "metric")
        frame["metric"] = frame["metric"].map(named)
    frame = frame[frame["metric"].isin(metrics)].copy()
    for column in {index, "value", "epoch"} & set(frame.columns):
        text = frame[column].astype(str).str.strip().str.lower()
        frame[column] = pd.to_numeric(frame[column].where(~text.isin(("", "nan", "none", "diverged"))), errors="coerce")
        wrong = frame[column].isna() & ~text.isin(("", "nan", "none", "diverged", "<na>"))
        if wrong.any():
            line = int(wrong.to_numpy().argmax())
            raise TableError(f"the results' {column} {text.iloc[line]!r} (row {line + 1}) is not a number")
    if "epoch" in frame.columns:
        frame = (
            frame.sort_values("epoch", kind="stable")
            .groupby(["dataset", "arm", index, "metric"], as_index=False)
            .last()
        )
    if "unit" in frame.columns:
        frame.loc[frame["unit"].astype(str).str.strip().str.lower().isin(PERCENT), "value"] /= 100
    frame = frame.rename(columns={index: "seed"}).sort_values("seed", kind="stable")
    twice = frame.duplicated(["dataset", "arm", "seed", "metric"], keep=False)
    if twice.any():
        first = frame[twice].iloc[0]
        raise TableError(
            f"the results have {first['arm']!r}, {index} {first['seed']:g}, {first['metric']!r} twice; keep one of each"
        )
    frame.attrs["is_folded"] = index == "fold"
    return frame


def judge(claims: Table, results: Table, rules: Rules = RULES) -> Judged:
    """Judge a table of claims by a table of results; both are files or data frames.

    Raises:
        TableError: one of them can't be read at all.
    """
    rows, problems = read_rows(claims)
    frame = read_results(results, {row.metric for row in rows})
    shares = {row.metric for row in rows if row.is_share}
    for metric in shares & set(frame["metric"]):
        of_metric = frame["metric"] == metric
        if frame.loc[of_metric, "value"].max() > 1:  # in percent
            frame.loc[of_metric, "value"] /= 100
    verdicts = []
    for row in rows:
        try:
            verdicts.append(_judge_row(row, frame, rules))
        except ValueError as error:
            problems.append(RowProblem(line=row.line, id=row.id, why=str(error)))
    return Judged(verdicts=tuple(verdicts), problems=tuple(sorted(problems, key=lambda problem: problem.line)))


def _judge_row(row: ClaimRow, frame: pd.DataFrame, rules: Rules) -> ReportedVerdict:
    of_row = frame[frame["metric"] == row.metric]
    if of_row.empty:
        return unjudged(row.id, f"The results have no {row.metric!r}.")
    if row.dataset and row.dataset not in set(of_row["dataset"]):
        known = sorted(set(map(str, of_row["dataset"])))
        return unjudged(row.id, f"No results on {row.dataset!r}{_nearest(row.dataset, known)}.")
    if row.dataset:
        of_row = of_row[of_row["dataset"] == row.dataset]
    elif row.kind != "wins" and of_row["dataset"].nunique() > 1:
        raise ValueError("the results have several data sets; fill in the column dataset")
    for arm in filter(None, (row.arm, row.baseline)):
        if arm not in set(of_row["arm"]):
            known = sorted(set(map(str, of_row["arm"])))
            return unjudged(row.id, f"No results of {arm!r} in {row.metric!r}{_nearest(arm, known)}.")
    options: dict[str, Any] = {"rules": rules, "claim": row.id, "better": row.better}
    if row.kind == "value":
        assert row.printed is not None
        mean = of_row.loc[of_row["arm"] == row.arm, "value"].mean()
        if row.is_share and row.printed.value and not 1 / _FAR < mean / row.printed.value < _FAR:
            raise ValueError(
                f"{mean:.4g} of the results is far from the printed {row.printed.value:.4g}: if one of them is in "
                "percent, say so: 0.4 % in the claim, % in a column unit of the results"
            )
        ours = _values(of_row, row.arm)
        return judging.value(printed=row.printed, ours=ours, std=row.std, n=row.n, is_share=row.is_share, **options)
    if row.kind == "wins":
        pairs = [
            (_values(part, row.arm), _values(part, row.baseline))
            for _, part in of_row.groupby("dataset")
            if {row.arm, row.baseline} <= set(part["arm"])
        ]
        return judging.wins(pairs, printed=row.text, **options)
    count = of_row["seed"].nunique() if frame.attrs["is_folded"] else 0
    folds = count if count > 1 else None
    if count or rules.is_anytime:
        seeds = [set(of_row.loc[of_row["arm"] == arm, "seed"]) for arm in (row.arm, row.baseline)]
        of_row = of_row[of_row["seed"].isin(seeds[0] & seeds[1])]
        if of_row.empty:
            raise ValueError("the models have no seed in common; `looks: anytime` compares them seed by seed")
    compare: Callable[..., ReportedVerdict] = getattr(judging, row.kind)
    a, b = _values(of_row, row.arm), _values(of_row, row.baseline)
    return compare(a, b, printed=row.printed, folds=folds, **options)


def _values(frame: pd.DataFrame, arm: str) -> list[float]:
    return [float(each) for each in frame.loc[frame["arm"] == arm, "value"]]


def lint(claims: Table) -> list[RowProblem]:
    """Check claims without results: every row, and every printed gain against the cells that it comes from.

    A gain of one arm over another fits if it is the difference of their cells, their ratio minus 1, or the share by
    which the error falls, within the printed rounding of all three numbers.

    Raises:
        TableError: as `read_table`.
    """
    frame = read_table(claims, ("id", "metric", "arm"), COLUMNS).fillna("")
    if "statement" in frame.columns:  # our own: claims of other kinds, too
        kinds = frame["kind"].replace(dict.fromkeys(RELATIVE, "gap"))
        frame = frame.assign(kind=kinds)[kinds.isin((*KINDS, *OTHER_NAMES)) & (frame["arm"] != "")]
        frame = frame[
            (frame["baseline"] != frame["arm"]) & (frame["kind"].isin(("value", "order")) | (frame["printed"] != ""))
        ]
    rows, problems = read_rows(frame)
    cells = {(row.dataset, row.metric, row.arm): row.printed for row in rows if row.kind == "value" and row.printed}
    for row in rows:
        one, other = (cells.get((row.dataset, row.metric, arm)) for arm in (row.arm, row.baseline))
        if row.kind not in ("order", "gap") or not (row.printed and one and other):
            continue
        # rounding of the cells and of the gain may explain a printed gain
        half, slack = (one.precision / 2, other.precision / 2), row.printed.precision / 2 + 1e-12
        corners = [_gains(row, one.value + i * half[0], other.value + j * half[1]) for i in (-1, 1) for j in (-1, 1)]
        gain = row.printed.value
        if not any(min(ends) - slack <= gain <= max(ends) + slack for ends in zip(*corners, strict=True)):
            difference, share, _ = _gains(row, one.value, other.value)
            why = f"{row.text} is printed, but {one.value:g} and {other.value:g} differ by {difference:.4g}"
            problems.append(RowProblem(line=row.line, id=row.id, why=f"{why}, which is {100 * share:.3g} %"))
    return sorted(problems, key=lambda problem: problem.line)


def _gains(row: ClaimRow, a: float, b: float) -> tuple[float, float, float]:
    """Return the difference, the ratio minus 1, and an error's relative fall: better positive; NaN if undefined."""
    if row.better == "lower":
        a, b = b, a
    errors = (1 - a, 1 - b) if row.better == "higher" else (b, a)
    fall = 1 - errors[0] / errors[1] if errors[1] and (row.is_share or row.better == "lower") else math.nan
    return a - b, a / b - 1 if b else math.nan, fall


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
