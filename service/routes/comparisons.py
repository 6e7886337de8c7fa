"""`GET /compare`: ours beside the paper's."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response

from service.dependencies import ResultsSession
from service.errors import declared
from service.negotiation import preferred
from service.routes.catalogue import DatasetFilter, PaperFilter
from service.schemas import ComparisonOut, ExperimentComparisonOut
from stages.results import compare

router = APIRouter()
EXAMPLES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}, "example": "experiment,arm,role,…"}}},
}


@router.get(
    "/compare",
    tags=["comparison"],
    operation_id="compare",
    response_model=ComparisonOut,
    responses=EXAMPLES | declared(404, 406, 422),
)
def read_comparison(
    session: ResultsSession,
    dataset: DatasetFilter = None,
    paper: PaperFilter = None,
    profile: Annotated[str | None, Query(description="pin a profile; else the best", examples=["quick"])] = None,
    metric: Annotated[str, Query(examples=["accuracy"])] = "accuracy",
    format: Annotated[Literal["json", "csv"] | None, Query(description="else by Accept")] = None,  # noqa: A002
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
) -> ComparisonOut | Response:
    """Per experiment and arm: ours with its interval, the paper's value, the difference, order, fidelity and cost.

    Shows the best evidence there is: real data before stand-ins, then the stronger profile.  All arms of an experiment
    were trained under the same protocol on the same data.
    """
    wanted = format or preferred(accept, {"json": "application/json", "csv": "text/csv"})
    found = compare(session, dataset=dataset, paper=paper, profile=profile, metric=metric)
    comparisons = [ExperimentComparisonOut.model_validate(comparison) for comparison in found]
    if wanted == "csv":
        headers = {"content-disposition": 'inline; filename="compare.csv"', "vary": "Accept"}
        return Response(as_csv(comparisons), media_type="text/csv", headers=headers)
    return ComparisonOut(comparisons=comparisons)


CSV_COLUMNS = (
    *("experiment", "paper", "dataset", "metric", "unit", "arm", "title", "role"),
    *("ours", "ours_low", "ours_high", "ours_std", "n_replicates", "n_diverged", "n_test"),
    *("paper_value", "paper_claim", "difference", "rank_ours", "rank_paper", "profile", "provenance", "label"),
    *("train_seconds", "parameters", "flops_per_image", "peak_memory_bytes", "latency_seconds_per_sample"),
    *("latency_ratio", "checkpoints", "run_keys"),
)
SHARED_COLUMNS = ("experiment", "paper", "dataset", "profile", "provenance", "label")


def as_csv(comparisons: list[ExperimentComparisonOut]) -> str:
    """A row an arm; what JSON has as null is empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for comparison in comparisons:
        shared = {name: getattr(comparison, name) for name in SHARED_COLUMNS}
        shared |= {"metric": comparison.metric.name, "unit": comparison.metric.unit}
        for arm in comparison.arms:
            cost = {name: value for name, value in arm.cost.model_dump().items() if name in CSV_COLUMNS}
            writer.writerow(
                {**shared, **cost}
                | {
                    "arm": arm.arm,
                    "title": arm.title,
                    "role": arm.role,
                    "ours": arm.ours.mean,
                    "ours_low": arm.ours.low,
                    "ours_high": arm.ours.high,
                    "ours_std": arm.ours.std,
                    "n_replicates": arm.ours.n_replicates,
                    "n_diverged": arm.ours.n_diverged,
                    "n_test": arm.ours.n_test,
                    "paper_value": arm.paper.value if arm.paper else None,
                    "paper_claim": arm.paper.claim if arm.paper else None,
                    "difference": arm.difference.value if arm.difference else None,
                    "rank_ours": arm.rank_ours,
                    "rank_paper": arm.rank_paper,
                    "checkpoints": " ".join(arm.checkpoints),
                    "run_keys": " ".join(arm.run_keys),
                }
            )
    return buffer.getvalue()
