"""Judge and check tables of claims by tables of reported results, and write a page of verdicts.

A row that can't be judged is reported with what was found, what was expected and how to fix it; all others are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from stages.reported import TableError as TableError
from stages.reported import judging
from stages.reported.judging import RULES, ReportedVerdict, measure_gains, unjudged
from stages.reported.reading import (
    COLUMNS,
    KINDS,
    OTHER_NAMES,
    ClaimRow,
    RowProblem,
    Table,
    check_unit,
    find_shares,
    nearest,
    read_results,
    read_rows,
    read_table,
)
from stages.reported.units import NO_SHARES, PrintedNumber, find_divisors, find_readings, last_word
from stages.rules import Rules
from stages.verdicts import ICONS, WORD_OF, Status

RELATIVE = ("ratio", "inconsistent")
"""Kinds of `data/claims.csv` that `lint` reads as a gain; it skips the others that this module doesn't judge."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Verdicts in the order of the claims, and the rows that could not be judged."""

    verdicts: tuple[ReportedVerdict, ...]
    problems: tuple[RowProblem, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each verdict."""
        return pd.DataFrame([verdict.to_dict() for verdict in self.verdicts])


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
        in_percent = frame["unit"] == "%"
        if frame.attrs["is_wide"]:  # the unit may be that of another column
            own = in_percent & ~frame["metric"].isin(self.shares)
            frame.loc[own, "unit"] = ""
            frame.loc[own, "divisor"] = math.nan
        else:
            percent = set(frame.loc[in_percent, "metric"])
            self.shares |= {metric for metric in percent if last_word(metric) not in NO_SHARES}
        self._confirmed = {
            (row.key, dataset)
            for row in rows
            if row.kind == "value" and row.unit and row.better == "lower" and row.key in self.shares
            for dataset, cells in frame[(frame["metric"] == row.key) & (frame["arm"] == row.arm)].groupby("dataset")
            if row.dataset in ("", dataset)
            if row.printed and row.printed.value / 10 < cells["value"].mean() < row.printed.value * 10
        }

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
        return unjudged(row.id, f"The results have no {row.metric!r}{nearest(row.key, frame.attrs['names'])}.")
    if row.dataset and row.dataset not in set(of_row["dataset"]):
        known = sorted(set(of_row["dataset"]) - {""})
        hint = "" if known else "; the results name no data set: fill in their column dataset, or empty the claim's"
        return unjudged(row.id, f"No results on {row.dataset!r}{nearest(row.dataset, known)}{hint}.")
    if row.dataset:
        of_row = of_row[of_row["dataset"] == row.dataset]
    elif row.kind != "wins" and of_row["dataset"].nunique() > 1:
        raise ValueError("the results have several data sets; fill in the column dataset")
    for arm in filter(None, (row.arm, row.baseline)):
        if arm not in set(of_row["arm"]):
            known = sorted(set(of_row["arm"]))
            return unjudged(row.id, f"No results of {arm!r} in {row.metric!r}{nearest(arm, known)}.")
    is_share = row.key in results.shares
    check_unit(row, is_share)
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


_MEANINGS: Mapping[Status, str] = {
    Status.REPRODUCED: "equals the printed number within the margin",
    Status.SUPPORTED: "the model that the paper calls better is better",
    Status.NOT_REPRODUCED: "differs from the printed number by more than the margin",
    Status.REVERSED: "the other model is better",
    Status.INCONCLUSIVE: "more replicates may decide it",
    Status.UNRESOLVED: "neither model is clearly better",
    Status.UNDECIDABLE: "no number of replicates would decide it",
}
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
    meaning = _MEANINGS.get(judged.status, "")
    icon = ICONS[WORD_OF[judged.status]] if meaning else ""
    why = "".join(f"<small>{escape(text)}</small>" for text in (judged.verdict.explanation, judged.of_size) if text)
    return (
        f"<tr><td>{escape(judged.claim)}<td><b>{icon} {escape(str(judged.status))}</b><small>{meaning}</small>"
        f"<td class=n>{_number(judged.printed)}<td class=n>{_number(judged.ours)}<td>{judged.to_svg()}<td>{why}</tr>"
    )


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:.4g}"
