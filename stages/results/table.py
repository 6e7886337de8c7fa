"""Comparisons as one flat table, whose columns bear the names of the JSON: `ours.low`, `cost.parameters`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields

from stages.results.estimates import (
    ArmComparison,
    CostSummary,
    Difference,
    Estimate,
    ExperimentComparison,
    Gain,
    Measured,
    Printed,
    Ratio,
)

OF_EXPERIMENT = ("experiment", "paper", "dataset", "metric.name", "metric.unit")
AFTER = ("profile", "provenance", "label")
PARTS: dict[str, type] = {
    "ours": Estimate,
    "printed": Printed,
    "difference": Difference,
    "gain": Gain,
    "gain.ours": Measured,
    "gain.printed": Printed,
    "ratio": Ratio,
    "cost": CostSummary,
}
"""The parts of an arm's comparison that are objects, or null."""

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def no_formula(text: str) -> str:
    """The text, prefixed with an apostrophe where a spreadsheet would take it for a formula and compute it."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else str(text)


def _columns(kind: type, prefix: str = "") -> list[str]:
    """The leaves of a part, in the order of its fields; `population` decides nothing and stands in JSON alone."""
    found = []
    for field in fields(kind):
        name = f"{prefix}{field.name}"
        if name in PARTS:
            found += _columns(PARTS[name], f"{name}.")
        elif field.name != "population":
            found.append(name)
    return found


COLUMNS = (*OF_EXPERIMENT, *_columns(ArmComparison), *AFTER)


def as_csv(comparisons: Sequence[ExperimentComparison]) -> str:
    """One row per arm; None is empty, names in a list are separated by blanks, verdicts are JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for comparison in comparisons:
        for arm in comparison.arms:
            cells = [_leaf(comparison, name) for name in OF_EXPERIMENT]
            cells += [_leaf(arm, name) for name in COLUMNS[len(OF_EXPERIMENT) : -len(AFTER)]]
            writer.writerow([_cell(value) for value in (*cells, *(_leaf(comparison, name) for name in AFTER))])
    return buffer.getvalue()


def _leaf(whole: object, path: str) -> object:
    """The value at `path`; None if a part on the way there is None."""
    for name in path.split("."):
        whole = None if whole is None else getattr(whole, name)
    return whole


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        plain = [item for item in value if isinstance(item, str)]
        if len(plain) < len(value):
            return json.dumps([asdict(item) for item in value], ensure_ascii=False)
        value = " ".join(plain)
    return no_formula(value) if isinstance(value, str) else value
