"""Papers, data sets, experiments and claims: what there is to be tested."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service import queries
from service.dependencies import ResultsSession
from service.errors import declared
from service.routes.limits import Limit, Offset
from service.schemas import ClaimOut, DatasetOut, ExperimentOut, PaperOut

router = APIRouter(prefix="/api/v1")
PaperFilter = Annotated[str | None, Query(description="name of a paper", examples=["ninformer"])]
DatasetFilter = Annotated[str | None, Query(description="name of a data set", examples=["cifar100"])]
ExperimentFilter = Annotated[str | None, Query(description="name of an experiment", examples=["ninformer-cifar100"])]


@router.get("/papers", tags=["catalogue"], operation_id="listPapers", responses=declared())
def list_papers(session: ResultsSession) -> list[PaperOut]:
    """The papers whose claims are tested."""
    return [PaperOut.model_validate(row) for row in queries.list_papers(session)]


@router.get("/papers/{name}", tags=["catalogue"], operation_id="getPaper", responses=declared(404))
def read_paper(name: str, session: ResultsSession) -> PaperOut:
    """One paper."""
    return PaperOut.model_validate(queries.find_paper(session, name))


@router.get("/datasets", tags=["catalogue"], operation_id="listDatasets", responses=declared())
def list_datasets(session: ResultsSession) -> list[DatasetOut]:
    """The data sets that models are trained and tested on."""
    return [DatasetOut.model_validate(row) for row in queries.list_datasets(session)]


@router.get("/datasets/{name}", tags=["catalogue"], operation_id="getDataset", responses=declared(404))
def read_dataset(name: str, session: ResultsSession) -> DatasetOut:
    """One data set."""
    return DatasetOut.model_validate(queries.find_dataset(session, name))


@router.get("/experiments", tags=["catalogue"], operation_id="listExperiments", responses=declared(404))
def list_experiments(
    session: ResultsSession, paper: PaperFilter = None, dataset: DatasetFilter = None
) -> list[ExperimentOut]:
    """Experiments: one table or figure of one paper on one data set."""
    return [
        ExperimentOut.model_validate(row) for row in queries.list_experiments(session, paper=paper, dataset=dataset)
    ]


@router.get("/experiments/{name}", tags=["catalogue"], operation_id="getExperiment", responses=declared(404))
def read_experiment(name: str, session: ResultsSession) -> ExperimentOut:
    """One experiment: its protocol as printed, and its arms."""
    return ExperimentOut.model_validate(queries.find_experiment(session, name))


@router.get("/claims", tags=["catalogue"], operation_id="listClaims", responses=declared(404, 422))
def list_claims(
    session: ResultsSession,
    paper: PaperFilter = None,
    experiment: ExperimentFilter = None,
    kind: Annotated[str | None, Query(examples=["value"])] = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> list[ClaimOut]:
    """What the papers state, in their order."""
    found = queries.list_claims(session, paper=paper, experiment=experiment, kind=kind, limit=limit, offset=offset)
    return [ClaimOut.model_validate(row) for row in found]


@router.get("/claims/{claim_id}", tags=["catalogue"], operation_id="getClaim", responses=declared(404))
def read_claim(claim_id: str, session: ResultsSession) -> ClaimOut:
    """One claim."""
    return ClaimOut.model_validate(queries.find_claim(session, claim_id))
