"""`GET /compare`: ours beside the paper's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.database.comparing import Question
from service.database.schemas import Out
from service.dependencies import Compare
from service.http.errors import declared
from service.http.strict import StrictRoute
from service.http.tabular import CSV_TOO, ListFormat, Table
from service.routes.catalogue import DatasetFilter, PaperFilter, ProvenanceFilter
from stages.results import ExperimentComparison, as_csv

router = APIRouter(route_class=StrictRoute)


class ComparisonOut(Out):
    comparisons: tuple[ExperimentComparison, ...]


@router.get(
    "/compare",
    tags=["comparison"],
    operation_id="compare",
    response_model=ComparisonOut,
    responses=CSV_TOO | declared(404, 406, 422),
)
def read_comparison(
    compare: Compare,
    response: Response,
    form: ListFormat,
    dataset: DatasetFilter = None,
    paper: PaperFilter = None,
    profile: Annotated[str | None, Query(description="pin a profile; else the best", examples=["quick"])] = None,
    metric: Annotated[
        str | None, Query(description="else the one that the paper prints, of each experiment", examples=["loss"])
    ] = None,
    provenance: ProvenanceFilter = None,
) -> ComparisonOut | Response:
    """Per experiment and arm: ours and the paper's number with their errors, the difference, order, fidelity and cost.

    In the metric that the paper prints of these arms, unless another is asked for.  Shows the best evidence there is:
    real data before placeholders, then the stronger profile.  All arms of an experiment were trained under the same
    protocol on the same data.  A number from placeholder data is not ours: `ours` is null, and `reason` says so.
    """
    question = Question(dataset=dataset, paper=paper, profile=profile, metric=metric, provenance=provenance)
    found = compare(question)
    if form == "csv":
        return Table(as_csv(found), "compare")
    response.headers["vary"] = "Accept"
    return ComparisonOut(comparisons=tuple(found))
