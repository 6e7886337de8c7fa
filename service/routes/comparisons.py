"""`GET /compare`: our results next to the paper's; `GET /api/v1/versus`: two models compared."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.database import queries
from service.database.claim_schemas import VersusOut, describe_versus
from service.database.comparing import Question
from service.database.schemas import Out
from service.dependencies import Compare, ResultsSession
from service.http.errors import declared
from service.http.strict import StrictRoute
from service.http.tabular import CSV_TOO, ListFormat, Table
from service.pages.versus import answer_versus
from service.routes.catalogue import DatasetFilter, PaperFilter, ProfileFilter, ProvenanceFilter
from stages.results import ExperimentComparison, as_csv, versus

router = APIRouter(route_class=StrictRoute)
ModelName = Annotated[
    str,
    Query(min_length=1, max_length=120, description="an arm, <experiment>.<arm>, or a title", examples=["ninformer"]),
]


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
    profile: ProfileFilter = None,
    metric: Annotated[
        str | None, Query(description="metric; default: the one that each paper prints", examples=["loss"])
    ] = None,
    provenance: ProvenanceFilter = None,
) -> ComparisonOut | Response:
    """Compare our results with the paper's, by experiment and arm: numbers with errors, difference, order and cost.

    The metric is the one that the paper prints, unless you ask for another.  Shows the best available evidence: real
    data before placeholder data, then the stronger profile.  All arms of an experiment were trained under the same
    protocol on the same data.  Placeholder results are never reported as ours: `ours` is null, and `reason` says so.
    """
    question = Question(dataset=dataset, paper=paper, profile=profile, metric=metric, provenance=provenance)
    found = compare(question)
    if form == "csv":
        return Table(as_csv(found), "compare")
    response.headers["vary"] = "Accept"
    return ComparisonOut(comparisons=tuple(found))


@router.get("/api/v1/versus", tags=["comparison"], operation_id="versus", responses=declared(404, 422))
def read_versus(
    session: ResultsSession,
    dataset: Annotated[str, Query(description="name of a data set", examples=["cifar10"])],
    a: ModelName,
    b: ModelName,
) -> VersusOut:
    """Does `a` beat `b` on this data set?  The answer in one sentence, with interval, power, cost and a test by image.

    It is judged like a printed order: by full-length runs of the experiment that trains both.
    """
    found = versus(session, queries.find_dataset(session, dataset), a, b)
    return describe_versus(found, answer_versus(found))
