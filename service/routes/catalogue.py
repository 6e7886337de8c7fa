"""Routes of papers, data sets, experiments and claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response

from service.database import claim_schemas, curves, queries
from service.database.comparing import Provenance, compare_one
from service.database.samples import PNG, Samples
from service.database.schemas import CurvePointOut, DatasetOut, ExperimentOut, PaperOut, SampleOut
from service.dependencies import Compare, ResultsSession, app_state_of
from service.http.errors import declared
from service.http.strict import StrictRoute
from service.http.tabular import Paging, list_responses
from service.pages.formats import unit_of
from service.pages.wording import name_claims
from stages.results import ClaimFilter, Standing, Status, Word, find_judged, list_families

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)
PaperFilter = Annotated[str | None, Query(description="name of a paper", examples=["ninformer"])]
DatasetFilter = Annotated[str | None, Query(description="name of a data set", examples=["cifar100"])]
ProvenanceFilter = Annotated[
    Provenance | None, Query(description="embedded (placeholder data), subset or full", examples=["full"])
]
ExperimentFilter = Annotated[str | None, Query(description="name of an experiment", examples=["ninformer-cifar100"])]
ProfileFilter = Annotated[
    str | None, Query(description="profile; default: the strongest with results", examples=["quick"])
]
VerdictFilter = Annotated[Status | None, Query(description="a verdict", examples=["reproduced"])]
Route = TypeVar("Route", bound=Callable[..., Any])


def listing(
    router: APIRouter, tag: str, path: str, operation: str, items: Any, *errors: int
) -> Callable[[Route], Route]:
    """Register a paged list, as JSON or CSV."""
    return router.get(path, tags=[tag], operation_id=operation, response_model=items, responses=list_responses(*errors))


@listing(router, "catalogue", "/papers", "listPapers", list[PaperOut])
def list_papers(session: ResultsSession, page: Paging) -> Sequence[PaperOut] | Response:
    """The papers whose claims are tested."""
    return page.answer_with(PaperOut, queries.list_papers(session))


@router.get("/papers/{name}", tags=["catalogue"], operation_id="getPaper", responses=declared(404))
def read_paper(name: str, session: ResultsSession) -> PaperOut:
    """One paper."""
    return PaperOut.model_validate(queries.find_paper(session, name))


@listing(router, "catalogue", "/datasets", "listDatasets", list[DatasetOut])
def list_datasets(session: ResultsSession, page: Paging) -> Sequence[DatasetOut] | Response:
    """The data sets that models are trained and tested on."""
    return page.answer_with(DatasetOut, queries.list_datasets(session))


@router.get("/datasets/{name}", tags=["catalogue"], operation_id="getDataset", responses=declared(404))
def read_dataset(name: str, session: ResultsSession) -> DatasetOut:
    """One data set."""
    return DatasetOut.model_validate(queries.find_dataset(session, name))


@listing(router, "catalogue", "/datasets/{name}/samples", "listSamples", list[SampleOut], 404)
def list_samples(name: str, request: Request, session: ResultsSession, page: Paging) -> Sequence[SampleOut] | Response:
    """Test images to try a model on: a few classes, one image each."""
    settings = app_state_of(request).settings
    samples = Samples(settings.root, queries.find_dataset(session, name).name, settings.root_path)
    return page.answer_with(SampleOut, samples.chosen())


@router.get(
    "/datasets/{name}/samples/{position}",
    tags=["catalogue"],
    operation_id="getSample",
    response_class=Response,
    responses=PNG | declared(404, 422),
)
def read_sample(
    name: str,
    position: Annotated[int, Path(ge=0, lt=1 << 40, description="position in the packed test set")],
    request: Request,
    session: ResultsSession,
) -> Response:
    """One test image."""
    settings = app_state_of(request).settings
    samples = Samples(settings.root, queries.find_dataset(session, name).name, settings.root_path)
    return Response(samples.png(position), media_type="image/png")


@listing(router, "catalogue", "/experiments", "listExperiments", list[ExperimentOut], 404)
def list_experiments(
    session: ResultsSession, page: Paging, paper: PaperFilter = None, dataset: DatasetFilter = None
) -> Sequence[ExperimentOut] | Response:
    """Experiments: one table or figure of one paper on one data set."""
    return page.answer_with(ExperimentOut, queries.list_experiments(session, paper=paper, dataset=dataset))


@router.get("/experiments/{name}", tags=["catalogue"], operation_id="getExperiment", responses=declared(404))
def read_experiment(name: str, session: ResultsSession) -> ExperimentOut:
    """One experiment: its protocol as printed, and its arms."""
    return ExperimentOut.model_validate(queries.find_experiment(session, name))


@listing(router, "catalogue", "/experiments/{name}/curves", "listCurves", list[CurvePointOut], 404)
def list_experiment_curves(
    name: str,
    session: ResultsSession,
    compare: Compare,
    page: Paging,
    curve: Annotated[curves.Curve, Query(description="quantity to plot over epochs")] = "test_accuracy",
    profile: ProfileFilter = None,
    arm: Annotated[list[str], Query(max_length=64, description="only these arms", examples=[["vit"]])] = [],  # noqa: B006
) -> Sequence[CurvePointOut] | Response:
    """Learning curves: mean, minimum and maximum over the compared replicates, by arm and epoch."""
    experiment = queries.find_experiment(session, name)
    for wanted in arm:
        queries.find_arm(experiment, wanted)
    comparison = compare_one(compare, experiment, profile=profile)
    arms = [item.arm for item in comparison.arms if not arm or item.arm in arm]
    return page.answer_with(CurvePointOut, curves.list_curves(session, comparison, curve, arms))


@listing(
    router, "catalogue", "/experiments/{name}/observations", "listObservations", list[curves.ObservedPointOut], 404
)
def list_experiment_observations(
    name: str,
    session: ResultsSession,
    compare: Compare,
    page: Paging,
    profile: ProfileFilter = None,
    quantity: Annotated[str | None, Query(description="only this quantity", examples=["attention_sigma"])] = None,
) -> Sequence[curves.ObservedPointOut] | Response:
    """Quantities measured inside the compared networks, before and after training, by block."""
    comparison = compare_one(compare, queries.find_experiment(session, name), profile=profile)
    known = curves.known_quantities(session, comparison)
    if quantity is not None and known and quantity not in known:
        raise curves.UnknownQuantity(quantity[:80], known)
    wanted = [item for item in known if quantity in (None, item)]
    arms = [item.arm for item in comparison.arms]
    points = curves.list_observed(session, comparison, quantities=wanted, arms=arms)
    return page.answer_with(curves.ObservedPointOut, points)


@listing(router, "claims", "/claims", "listClaims", list[claim_schemas.ClaimOut], 404)
def list_claims(
    session: ResultsSession,
    page: Paging,
    paper: PaperFilter = None,
    dataset: DatasetFilter = None,
    experiment: ExperimentFilter = None,
    kind: Annotated[str | None, Query(examples=["value"])] = None,
    verdict: VerdictFilter = None,
    word: Annotated[Word | None, Query(description="a verdict in one of four words", examples=["fails"])] = None,
    standing: Annotated[
        Standing | None, Query(description="decided, open, waiting, untestable or setting", examples=["waiting"])
    ] = None,
    family: Annotated[
        str | None, Query(description="name of a table's family of claims", examples=["ninformer.table2"])
    ] = None,
) -> Sequence[claim_schemas.ClaimOut] | Response:
    """The papers' claims, each with its verdict."""
    names = {"paper": paper, "dataset": dataset, "experiment": experiment, "kind": kind, "family": family}
    wanted = ClaimFilter(**names, verdict=verdict, word=word, standing=standing)
    found = page.cut(queries.list_claims(session, wanted, limit=page.limit + 1, offset=page.offset))
    titles = name_claims(session, found)
    described = [claim_schemas.describe_claim(row, titles[row.claim.id], unit_of(row.claim)) for row in found]
    return page.answer(claim_schemas.ClaimOut, described)


@router.get("/claims/{claim_id}", tags=["claims"], operation_id="getClaim", responses=declared(404))
def read_claim(claim_id: str, session: ResultsSession, compare: Compare) -> claim_schemas.ClaimDetailOut:
    """One claim: its verdict, the runs behind it, its deviations and its cost."""
    record = find_judged(session, claim_id)
    observed = curves.list_behind(session, record, queries.arms_of(session, record.experiments), compare)
    title = name_claims(session, [record])[claim_id]
    return claim_schemas.describe_record(record, observed, title, unit_of(record.claim))


@router.get("/verdicts", tags=["claims"], operation_id="listVerdicts", responses=declared(404, 422))
def count_verdicts(
    session: ResultsSession,
    paper: PaperFilter = None,
    dataset: DatasetFilter = None,
    kind: Annotated[str | None, Query(examples=["value"])] = None,
) -> claim_schemas.VerdictsOut:
    """Number of claims by verdict for each paper, and a summary of each table."""
    counts = queries.tally_claims(session, ClaimFilter(paper=paper, dataset=dataset, kind=kind))
    return claim_schemas.VerdictsOut(
        papers=[claim_schemas.TallyOut.model_validate(row) for row in counts],
        tables=[claim_schemas.FamilyOut.model_validate(row) for row in list_families(session, paper=paper)],
    )
