"""Writes our scores as records of Every Eval Ever 0.3, one file per model, as its datastore lays them out.

Only full-length results on real data are written.  `uncertainty` has one source of error only, because its standard
error and interval are read with one `num_samples`: the test samples for accuracies, else the training runs.  `details`
always has the error between runs with its interval and number of runs, so accuracies have both.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.citation import name_author
from stages.results import (
    METRICS,
    ArmComparison,
    Checkpoint,
    Dataset,
    ExperimentComparison,
    MetricInfo,
    Paper,
    Question,
    Result,
    compare,
)
from stages.upkeep.exporting import Exported, ExportError, read_citation, require_new, sampling_error

SCHEMA = "0.3.0"
COLLECTION = "claimcheck"


def write_records(session: Session, root: Path, folder: Path, experiments: Collection[str]) -> Exported:
    """Write `data/claimcheck/claimcheck/<experiment>.<arm>/<uuid>.json` below `folder` for these experiments.

    Raises:
        ExportError: the folder exists, `CITATION.cff` doesn't, or there is no full-length result.
    """
    require_new(folder)
    about = read_citation(root)
    scored: dict[tuple[str, str], list[tuple[ExperimentComparison, ArmComparison]]] = defaultdict(list)
    shortened = set()
    for metric in (info.name for info in METRICS.values() if info.split == "test"):
        for comparison in compare(session, Question(metric=metric)):
            if comparison.experiment not in experiments or metric not in comparison.printed_metrics:
                continue
            for arm in (arm for arm in comparison.arms if arm.ours):
                if arm.no_difference:
                    shortened.add((comparison.experiment, arm.arm))
                else:
                    scored[comparison.experiment, arm.arm].append((comparison, arm))
    if not scored:
        raise ExportError(
            "no full-length result on real data; `claimcheck profile paper` makes the next repro train them"
        )
    for (experiment, name), scores in scored.items():
        record = _record(session, about, f"{COLLECTION}/{experiment}.{name}", scores)
        text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
        unique = uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4)
        path = folder / "data" / COLLECTION / record["model_info"]["id"] / f"{unique}.json"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n", encoding="utf-8")
    counts = {"models": len(scored), "scores": sum(map(len, scored.values()))}
    notes = [f"{len(shortened)} models left out: they have only shortened runs"] if shortened else []
    return Exported(folder=folder, counts=counts, notes=notes)


def _record(
    session: Session, about: dict[str, Any], model: str, scores: list[tuple[ExperimentComparison, ArmComparison]]
) -> dict[str, Any]:
    comparison, arm = scores[0]
    dataset, paper = session.get_one(Dataset, comparison.dataset), session.get_one(Paper, comparison.paper)
    run_keys = [key for _, arm in scores for key in arm.run_keys]
    origins = session.scalars(select(Result.origin).where(Result.run_key.in_(run_keys)))
    times = [datetime.fromisoformat(origin["published"]).timestamp() for origin in origins if origin]
    published = f"{max(times, default=time.time()):.0f}"  # seconds since 1970
    released = select(Checkpoint.id).where(Checkpoint.id.in_(arm.checkpoints), Checkpoint.dtype.is_not(None))
    authors = ", ".join(map(name_author, about["authors"]))
    source = {"dataset_name": dataset.title, "source_type": "url", "url": [dataset.homepage]}
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{COLLECTION}/{model}/{published}",
        "retrieved_timestamp": published,
        "source_metadata": {
            "source_name": "Claimcheck",
            "source_type": "evaluation_run",
            "source_organization_name": authors,
            "evaluator_relationship": "other",
            "additional_details": {"relationship": "the evaluator trained the models"},
        },
        "eval_library": {"name": "claimcheck", "version": version("claimcheck")},
        "model_info": {
            "name": arm.title,
            "id": model,
            "developer": authors,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if session.scalar(released) else "closed_weights",
                "paper": paper.title,
                "role": arm.role,
            },
        },
        "evaluation_results": [
            {
                "evaluation_result_id": f"{model}/{comparison.metric.name}",
                "evaluation_name": comparison.title,
                "source_data": source,
                "metric_config": _metric(comparison.metric),
                "score_details": _score(comparison, arm),
            }
            for comparison, arm in scores
        ],
    }


_UNITS = {"rmse": "target", "mae": "target", "perplexity": "perplexity"}


def _metric(metric: MetricInfo) -> dict[str, Any]:
    is_log, is_share = "log_" in metric.name, metric.unit == "fraction"
    return {
        "metric_id": metric.name,
        "metric_name": metric.title,
        "metric_unit": "proportion" if is_share else metric.unit or _UNITS.get(metric.name, "squared target"),
        "lower_is_better": metric.better == "lower",
        "score_type": "continuous",
        "min_score": "-Infinity" if is_log else 1.0 if metric.name == "perplexity" else 0.0,
        "max_score": 1.0 if is_share else "Infinity",
    }


def _score(comparison: ExperimentComparison, arm: ArmComparison) -> dict[str, Any]:
    ours, printed = arm.ours, arm.printed
    assert ours is not None, "the caller leaves out models without scores"
    population = ours.population
    sampling = sampling_error(ours.value, population.n_test) if population else None
    between = f"standard deviation over {ours.n} training runs / sqrt({ours.n})"
    interval_method = f"Student's t over {ours.n} training runs"
    if comparison.metric.of_arm:
        between, interval_method = f"the paper's own, over {ours.n} folds", f"jackknife over {ours.n} folds"
    bounds, error, method, how, n = (
        (population, sampling, "analytic", "Wilson score", population.n_test)
        if population
        else (ours, ours.stderr, between, interval_method, ours.n)
    )
    uncertainty: dict[str, Any] = {}
    if error is not None:
        uncertainty = {"standard_error": {"value": error, "method": method}, "num_samples": n}
    if bounds.low is not None:
        interval = {"lower": bounds.low, "upper": bounds.high, "confidence_level": 0.95, "method": how}
        uncertainty["confidence_interval"] = interval
    verdicts = [f"{one.claim}: {one.status}" for one in arm.verdicts if one.metric == comparison.metric.name]
    details = {
        "training_runs": ours.n,
        "diverged_runs": ours.n_diverged,
        "run_to_run_standard_deviation": ours.std,
        "run_to_run_standard_error": ours.stderr,
        "run_to_run_interval": None if ours.low is None else f"{ours.low} to {ours.high} (95 %, {interval_method})",
        "test_samples": ours.n_test,
        "sampling_standard_error": sampling,
        "fidelity": comparison.label,
        "printed": printed and f"{printed.value:g}{f' ± {printed.stderr:g}' if printed.stderr is not None else ''}",
        "verdicts": "; ".join(verdicts) or None,
        "run_keys": " ".join(arm.run_keys),
    }
    texts = {name: str(value) for name, value in details.items() if value is not None}
    return {"score": ours.value, "uncertainty": uncertainty, "details": texts}
