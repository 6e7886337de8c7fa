"""A paper's tables: models down, data sets across; cells have printed numbers, ours and verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from sqlalchemy.orm import Session

from service.database.comparing import Answer, Curve, known_curves, list_curves, name_curve
from service.pages.charts import draw_costs, draw_curve
from service.pages.formats import exact, names_baseline_first, value_in
from service.pages.plots import Drawing, inks_of
from service.pages.wording import name_metric, word_of
from stages.results import (
    METRICS,
    Claim,
    ClaimRecord,
    Dataset,
    ExperimentComparison,
    JudgedClaim,
    Question,
    Status,
    ground_of,
)


@dataclass
class Cell:
    """A model's own number, if the paper prints one, and its gains: (the other model, claim)."""

    own: JudgedClaim | None = None
    gains: list[tuple[str, JudgedClaim]] = field(default_factory=list)

    @property
    def claims(self) -> list[JudgedClaim]:
        return [*([self.own] if self.own else []), *(row for _, row in self.gains)]


@dataclass(frozen=True)
class PrintedTable:
    """One metric of a table; `columns` are data sets, and `rows` pair a title with a cell per column.

    The title is a model's, or "A against B" in a table of pairs.
    """

    metric: str
    is_of_pairs: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]

    @property
    def claims(self) -> list[JudgedClaim]:
        return [row for _, cells in self.rows for cell in cells if cell for row in cell.claims]

    def experiment_of(self, column: str) -> str:
        """Return the experiment of the first number in a column."""
        position = self.columns.index(column)
        return next(row.experiments[0] for _, cells in self.rows if (cell := cells[position]) for row in cell.claims)


def lay_out(
    judged: Sequence[JudgedClaim], titles: Mapping[str, str], arms: Mapping[tuple[str, str], str]
) -> tuple[list[PrintedTable], list[JudgedClaim]]:
    """Return the tables of one place's claims, and the claims that fit into none.

    A gain is in its model's cell if the paper also prints this model's own number, else in a table of pairs.
    `titles` are the names of the data sets, `arms` those of each (experiment, arm).
    """
    values: dict[str, dict[tuple[str, str], Cell]] = {}
    for row in judged:
        if row.claim.facts.number == "model" and (place := _place(row, titles, arms)):
            cell = values.setdefault(row.claim.metric, {}).setdefault(place, Cell())
            cell.own = cell.own or row
    values = {metric: cells for metric, cells in values.items() if len(cells) > 1}
    pairs: dict[str, dict[tuple[str, str], Cell]] = {}
    for row in judged:
        place = _place(row, titles, arms)
        other = arms.get((row.experiments[0], row.claim.baseline_arm or "")) if row.experiments else None
        if not place or not other or names_baseline_first(row.claim):  # the number describes the other model
            continue
        if (own := values.get(row.claim.metric, {}).get(place)) is not None:
            own.gains.append((other, row))
        else:
            model, dataset = place
            pair = pairs.setdefault(row.claim.metric, {}).setdefault((f"{model} against {other}", dataset), Cell())
            pair.gains.append(("", row))
    pairs = {metric: cells for metric, cells in pairs.items() if len(cells) > 1}
    tables = []
    for found in (values, pairs):
        for metric, cells in found.items():
            columns = tuple(dict.fromkeys(dataset for _, dataset in cells))
            rows = [
                (model, tuple(cells.get((model, dataset)) for dataset in columns))
                for model in dict.fromkeys(model for model, _ in cells)
            ]
            title, is_of_pairs = name_metric(metric), found is pairs
            tables.append(PrintedTable(metric=title, is_of_pairs=is_of_pairs, columns=columns, rows=tuple(rows)))
    laid_out = {row.claim.id for table in tables for row in table.claims}
    return tables, [row for row in judged if row.claim.id not in laid_out]


def _place(row: JudgedClaim, titles: Mapping[str, str], arms: Mapping[tuple[str, str], str]) -> tuple[str, str] | None:
    """Return model and data set of a claim about one model of one experiment."""
    if len(row.datasets) != 1 or len(row.experiments) != 1:
        return None
    model = arms.get((row.experiments[0], row.claim.arm or ""))
    return (model, titles[row.datasets[0]]) if model else None


def count_errors(judged: Sequence[JudgedClaim]) -> dict[str, tuple[int, int]]:
    """Return (claims, errors) of each word with fewer errors than claims, because a paper's counts are of errors."""
    found: dict[str, list[str]] = {}
    for row in judged:
        found.setdefault(word_of(row), []).append((row.claim.finding or {}).get("error") or row.claim.id)
    return {word: (len(names), len(set(names))) for word, names in found.items() if len(set(names)) < len(names)}


IN_THE_TEXT = "In the text"
FEW = 3  # this many claims get their own heading

_FLOAT = re.compile(r"\b(Table|Figure)s? (\d+)")
_SECTION = re.compile(r"\bsections? (\d+(?:\.\d+)*)")


class Anchor(NamedTuple):
    """Sort key of a place: `order` is 0 for tables, 1 for figures, 2 for sections, 3 for places without a number."""

    order: int
    numbers: tuple[int, ...]
    title: str


@dataclass(frozen=True)
class Parts:
    """A paper's claims, each once: `results` by place, then computed ones, counts of data, and settings."""

    results: dict[str, list[JudgedClaim]]
    computed: list[JudgedClaim]
    counted: list[JudgedClaim]
    settings: list[JudgedClaim]


def take_apart(judged: Sequence[JudgedClaim]) -> Parts:
    """Sort a paper's claims into the parts of its page; a model's printed number is always a result."""
    results, computed, counted, settings = (list[JudgedClaim]() for _ in range(4))
    for row in judged:
        is_of_a_model = row.claim.facts.number == "model" and row.claim.arm is not None
        if row.claim.facts.by == "params":
            settings.append(row)
        elif ground_of(row.claim, row.verdict) == "data":
            counted.append(row)
        else:
            (computed if row.verdict.basis == "finding" and not is_of_a_model else results).append(row)
    return Parts(group_by_place(results), computed, counted, settings)


def anchor_of(place: str) -> Anchor:
    """Return the table or figure that a place names, else its section, else its first words."""
    if found := _FLOAT.search(place):
        kind, number = found.groups()
        return Anchor(("Table", "Figure").index(kind), (int(number),), f"{kind} {number}")
    if found := _SECTION.search(place):
        return Anchor(2, tuple(map(int, found[1].split("."))), f"Section {found[1]}")
    first = place.partition(",")[0]
    return Anchor(2 if first == "abstract" else 3, (), first[0].upper() + first[1:])


def group_by_place(judged: Sequence[JudgedClaim]) -> dict[str, list[JudgedClaim]]:
    """Group claims by title, in the page's order; passages with few claims form the last group.

    Claims of one table are one group, even if their places differ ("Table 1" and "section 5, Table 1").
    """
    groups: dict[Anchor, list[JudgedClaim]] = {}
    for row in judged:
        groups.setdefault(anchor_of(row.claim.place), []).append(row)
    ordered = sorted(groups, key=lambda anchor: anchor[:2])  # stable: places without a number keep the paper's order
    scattered = [anchor for anchor in ordered if anchor.order >= 2 and len(groups[anchor]) < FEW]
    if len(scattered) == 1:
        scattered = []
    found = {}
    for anchor in (anchor for anchor in ordered if anchor not in scattered):
        (place, *others) = {row.claim.place for row in groups[anchor]}  # the title, if the claims share it
        is_whole = not others and place[:6].lower() == anchor.title[:6].lower()
        found[place[0].upper() + place[1:] if is_whole else anchor.title] = groups[anchor]
    if scattered:
        found[IN_THE_TEXT] = [row for anchor in scattered for row in groups[anchor]]
    return found


CURVES_OF: dict[str, tuple[Curve, ...]] = {
    "accuracy": ("train_accuracy", "test_accuracy"),
    "loss": ("train_loss", "test_loss"),
}
"""Curves of figures in these metrics."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One experiment: sentences, charts by name, and the comparison, reduced to the models in question."""

    comparison: ExperimentComparison
    charts: dict[str, Drawing]
    sentences: tuple[str, ...]


def list_shown(session: Session, record: ClaimRecord, compare: Answer) -> list[Shown]:
    """Return what to show for each experiment on real data; [] for claims whose number is drawn elsewhere."""
    is_of_a_size = record.claim.facts.at_size and record.verdict.estimate is not None
    if record.verdict.status != Status.SHOWN and not is_of_a_size:
        return []
    metric = record.claim.metric if record.claim.metric in METRICS else None
    patterns = [pattern for pattern in (record.claim.arm, record.claim.baseline_arm) if pattern]
    found = []
    for name in record.experiments:
        (comparison,) = compare(Question(experiment=name, metric=metric))
        about = tuple(
            arm
            for arm in comparison.arms
            if arm.ours and (not patterns or any(fnmatchcase(arm.arm, pattern) for pattern in patterns))
        )
        if comparison.is_real and about:
            kind = session.get_one(Dataset, comparison.dataset).kind
            found.append(_show(session, record.claim, replace(comparison, arms=about), kind))
    return found


def _show(session: Session, claim: Claim, comparison: ExperimentComparison, kind: str) -> Shown:
    charts: dict[str, Drawing] = {}
    inks = inks_of(session)
    wanted = CURVES_OF.get(claim.metric) if claim.metric in METRICS else ("train_loss",)
    if wanted:
        known, titles = known_curves(session, comparison), {arm.arm: arm.title for arm in comparison.arms}
        for curve in wanted:
            if curve in known:
                points = list_curves(session, comparison, curve, list(titles))
                if (drawn := draw_curve(points, titles, inks, curve, kind)) is not None:
                    charts[name_curve(curve, kind)] = drawn
        return Shown(comparison=comparison, charts=charts, sentences=tuple(_bests(comparison)))
    bound = claim.value if claim.facts.at_size else None
    if (drawn := draw_costs(comparison, "parameters", inks, printed=bound)) is not None:
        charts[f"{comparison.metric.title} over parameters"] = drawn
    sentences = _bests(comparison)
    if bound is not None:
        sentences = [f"The dashed line is the paper’s {value_in(claim.unit or '', exact)(bound)}."]
    return Shown(comparison=comparison, charts=charts, sentences=tuple(sentences))


def _bests(comparison: ExperimentComparison) -> list[str]:
    """Name the best model of each role, one sentence per role."""
    write, is_lower = value_in(comparison.metric.unit), comparison.metric.better == "lower"
    sentences = []
    for role in ("baseline", "proposed"):
        own = [(arm.ours.value, arm.title) for arm in comparison.arms if arm.role == role and arm.ours]
        if own:
            mean, title = min(own) if is_lower else max(own)
            among = f"The best of {len(own)} {role} models" if len(own) > 1 else f"The {role} model"
            sentences.append(f"{among}: {title}, {write(mean)}.")
    return sentences
