"""Illustrations of a claim without a number, or on a size: our results or curves of the models that it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy.orm import Session

from service.database.comparing import Question
from service.database.curves import Curve, known_curves, list_curves
from service.pages.charts import band_chart, cost_chart
from service.pages.formats import SIDES_OF_A_SIZE, exact, value_in
from stages.results import METRICS, Claim, ClaimRecord, Dataset, ExperimentComparison, Status

Answer = Callable[[Question], list[ExperimentComparison]]
CURVES_OF: dict[str, tuple[Curve, ...]] = {
    "accuracy": ("train_accuracy", "test_accuracy"),
    "loss": ("train_loss", "test_loss"),
}
"""Figures in these metrics are of learning curves."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One experiment: `sentences` first, then the charts by name, then `comparison`, cut to the models in question."""

    comparison: ExperimentComparison
    charts: dict[str, dict[str, Any]]
    sentences: tuple[str, ...]


def list_shown(session: Session, record: ClaimRecord, compare: Answer) -> list[Shown]:
    """One for each experiment on real data; none for a claim that has other charts, of its number."""
    is_of_a_size = record.claim.kind in SIDES_OF_A_SIZE and record.verdict.estimate is not None
    if record.verdict.status != Status.SHOWN and not is_of_a_size:
        return []
    metric = record.claim.metric if record.claim.metric in METRICS else None
    found = []
    for name in record.datasets:
        kind = session.get_one(Dataset, name).kind
        for comparison in compare(Question(dataset=name, metric=metric)):
            if comparison.experiment in record.experiments and comparison.is_real:
                about = [arm for arm in comparison.arms if arm.ours and _is_about(record.claim, arm.arm)]
                found.append(_show(session, record.claim, replace(comparison, arms=tuple(about)), kind))
    return [item for item in found if item.comparison.arms]


def _is_about(claim: Claim, arm: str) -> bool:
    patterns = [pattern for pattern in (claim.arm, claim.baseline_arm) if pattern]
    return not patterns or any(fnmatchcase(arm, pattern) for pattern in patterns)


def _show(session: Session, claim: Claim, comparison: ExperimentComparison, kind: str) -> Shown:
    charts: dict[str, dict[str, Any]] = {}
    wanted = CURVES_OF.get(claim.metric) if claim.metric in METRICS else ("train_loss",)
    if wanted:
        known, titles = known_curves(session, comparison), {arm.arm: arm.title for arm in comparison.arms}
        for curve in wanted:
            if curve in known:
                points = list_curves(session, comparison, curve, list(titles))
                charts[curve] = band_chart(comparison.title, titles, points, curve, kind)
        return Shown(comparison=comparison, charts=charts, sentences=tuple(_bests(comparison)))
    bound = claim.value if claim.kind in SIDES_OF_A_SIZE else None
    if (drawn := cost_chart(comparison, "parameters", bound=bound)) is not None:
        charts["parameters"] = drawn
    sentences = _bests(comparison)
    if bound is not None:
        sentences = [f"The dashed line stands at the paper’s {value_in(claim.unit or '', exact)(bound)}."]
    return Shown(comparison=comparison, charts=charts, sentences=tuple(sentences))


def _bests(comparison: ExperimentComparison) -> list[str]:
    """The best model of each role, as a sentence."""
    write, is_lower = value_in(comparison.metric.unit), comparison.metric.better == "lower"
    sentences = []
    for role in ("baseline", "proposed"):
        own = [(arm.ours.value, arm.title) for arm in comparison.arms if arm.role == role and arm.ours]
        if own:
            mean, title = min(own) if is_lower else max(own)
            among = f"The best of {len(own)} {role} models" if len(own) > 1 else f"The {role} model"
            sentences.append(f"{among}: {title}, {write(mean)}.")
    return sentences
