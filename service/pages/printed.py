"""A paper's tables as printed: models down, data sets across, our number and the verdict in the same cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.pages.wording import name_metric
from stages.results import JudgedClaim


@dataclass(frozen=True)
class PrintedTable:
    """One metric of a table: `rows` hold a model's title and its claim on each of the data sets in `columns`."""

    metric: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[JudgedClaim | None, ...]], ...]


def lay_out(
    judged: Sequence[JudgedClaim], titles: Mapping[str, str], arms: Mapping[tuple[str, str], str]
) -> tuple[list[PrintedTable], list[JudgedClaim]]:
    """Lay out the tables that the claims of one place fill; returns them and the claims that fit into none.

    `titles` are the names of the data sets, `arms` those of each (experiment, arm).
    """
    cells: dict[str, dict[tuple[str, str], JudgedClaim]] = {}
    rest = []
    for row in judged:
        claim = row.claim
        is_cell = claim.kind == "value" and claim.arm is not None and len(row.datasets) == 1 == len(row.experiments)
        place = (arms.get((row.experiments[0], claim.arm or ""), ""), titles[row.datasets[0]]) if is_cell else ("", "")
        filled = cells.setdefault(claim.metric, {}) if place[0] else {}
        if not place[0] or place in filled:
            rest.append(row)
        else:
            filled[place] = row
    tables = []
    for metric, filled in cells.items():
        if len(filled) < 2:
            rest = [row for row in judged if row in rest or row in filled.values()]
        else:
            tables.append(_table(metric, filled))
    return tables, rest


def _table(metric: str, filled: Mapping[tuple[str, str], JudgedClaim]) -> PrintedTable:
    columns = tuple(dict.fromkeys(dataset for _, dataset in filled))
    models = dict.fromkeys(model for model, _ in filled)
    return PrintedTable(
        metric=name_metric(metric),
        columns=columns,
        rows=tuple((model, tuple(filled.get((model, dataset)) for dataset in columns)) for model in models),
    )


def count_errors(judged: Sequence[JudgedClaim]) -> dict[str, tuple[int, int]]:
    """`{verdict: (claims, errors)}` where fewer errors than claims stand behind a verdict; a paper counts errors."""
    found: dict[str, list[str]] = {}
    for row in judged:
        found.setdefault(row.verdict.status, []).append((row.claim.finding or {}).get("error") or row.claim.id)
    return {status: (len(names), len(set(names))) for status, names in found.items() if len(set(names)) < len(names)}
