"""`GET /compare`: ours beside the paper's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response

from service.dependencies import ResultsSession
from service.errors import declared
from service.negotiation import preferred
from service.routes.catalogue import DatasetFilter, PaperFilter
from service.schemas import ComparisonOut, ExperimentComparisonOut
from stages.results import as_csv, compare

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
    response: Response,
    dataset: DatasetFilter = None,
    paper: PaperFilter = None,
    profile: Annotated[str | None, Query(description="pin a profile; else the best", examples=["quick"])] = None,
    metric: Annotated[
        str | None, Query(description="else what the kind of data is compared by", examples=["accuracy"])
    ] = None,
    format: Annotated[Literal["json", "csv"] | None, Query(description="else by Accept")] = None,  # noqa: A002
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
) -> ComparisonOut | Response:
    """Per experiment and arm: ours with its interval, the paper's value, the difference, order, fidelity and cost.

    Shows the best evidence there is: real data before stand-ins, then the stronger profile.  All arms of an experiment
    were trained under the same protocol on the same data.
    """
    wanted = format or preferred(accept, {"json": "application/json", "csv": "text/csv"})
    found = compare(session, dataset=dataset, paper=paper, profile=profile, metric=metric)
    if wanted == "csv":
        headers = {"content-disposition": 'inline; filename="compare.csv"', "vary": "Accept"}
        return Response(as_csv(found), media_type="text/csv", headers=headers)
    response.headers["vary"] = "Accept"
    return ComparisonOut(comparisons=[ExperimentComparisonOut.model_validate(comparison) for comparison in found])
