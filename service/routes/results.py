"""Routes of results: comparisons, papers, data sets, experiments, claims, runs and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse

from service.database import claim_schemas, comparing, queries, schemas
from service.database.samples import Samples
from service.dependencies import Compare, ResultsSession, app_state_of
from service.http.errors import declared
from service.http.strict import StrictRoute
from service.http.tabular import CSV_TOO, ListFormat, Paging, Table, binary, list_responses
from service.pages.formats import unit_of
from service.pages.opening import answer_versus
from service.pages.wording import name_claims
from stages.results import (
    ClaimFilter,
    ExperimentComparison,
    Provenance,
    Question,
    Standing,
    Status,
    Word,
    as_csv,
    fidelity_of,
    find_judged,
    list_families,
    versus,
)

router = APIRouter(route_class=StrictRoute)
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
ModelName = Annotated[
    str,
    Query(min_length=1, max_length=120, description="an arm, <experiment>.<arm>, or a title", examples=["ninformer"]),
]
RunKey = Annotated[str, Path(description="64 hexadecimal digits, or a unique prefix of at least 7")]
Route = TypeVar("Route", bound=Callable[..., Any])


def listing(tag: str, path: str, operation: str, items: Any, *errors: int) -> Callable[[Route], Route]:
    """Register a paged list below `/api/v1`, as JSON or CSV."""
    responses = list_responses(*errors)
    return router.get(f"/api/v1{path}", tags=[tag], operation_id=operation, response_model=items, responses=responses)


class ComparisonOut(schemas.Out):
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
) -> claim_schemas.VersusOut:
    """Does `a` beat `b` on this data set?  The answer in one sentence, with interval, power, cost and a test by image.

    It is judged like a printed order: by full-length runs of the experiment that trains both.
    """
    found = versus(session, queries.find_dataset(session, dataset), a, b)
    return claim_schemas.describe_versus(found, answer_versus(found))


@listing("catalogue", "/papers", "listPapers", list[schemas.PaperOut])
def list_papers(session: ResultsSession, page: Paging) -> Sequence[schemas.PaperOut] | Response:
    """The papers whose claims are tested."""
    return page.answer_with(schemas.PaperOut, queries.list_papers(session))


@router.get("/api/v1/papers/{name}", tags=["catalogue"], operation_id="getPaper", responses=declared(404))
def read_paper(name: str, session: ResultsSession) -> schemas.PaperOut:
    """One paper."""
    return schemas.PaperOut.model_validate(queries.find_paper(session, name))


@listing("catalogue", "/datasets", "listDatasets", list[schemas.DatasetOut])
def list_datasets(session: ResultsSession, page: Paging) -> Sequence[schemas.DatasetOut] | Response:
    """The data sets that models are trained and tested on."""
    return page.answer_with(schemas.DatasetOut, queries.list_datasets(session))


@router.get("/api/v1/datasets/{name}", tags=["catalogue"], operation_id="getDataset", responses=declared(404))
def read_dataset(name: str, session: ResultsSession) -> schemas.DatasetOut:
    """One data set."""
    return schemas.DatasetOut.model_validate(queries.find_dataset(session, name))


@listing("catalogue", "/datasets/{name}/samples", "listSamples", list[schemas.SampleOut], 404)
def list_samples(
    name: str, request: Request, session: ResultsSession, page: Paging
) -> Sequence[schemas.SampleOut] | Response:
    """Test images to try a model on: a few classes, one image each."""
    settings = app_state_of(request).settings
    samples = Samples(settings.root, queries.find_dataset(session, name).name, settings.root_path)
    return page.answer_with(schemas.SampleOut, samples.chosen())


@router.get(
    "/api/v1/datasets/{name}/samples/{position}",
    tags=["catalogue"],
    operation_id="getSample",
    response_class=Response,
    responses=binary("image/png") | declared(404, 422),
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


@listing("catalogue", "/experiments", "listExperiments", list[schemas.ExperimentOut], 404)
def list_experiments(
    session: ResultsSession, page: Paging, paper: PaperFilter = None, dataset: DatasetFilter = None
) -> Sequence[schemas.ExperimentOut] | Response:
    """Experiments: one table or figure of one paper on one data set."""
    return page.answer_with(schemas.ExperimentOut, queries.list_experiments(session, paper=paper, dataset=dataset))


@router.get("/api/v1/experiments/{name}", tags=["catalogue"], operation_id="getExperiment", responses=declared(404))
def read_experiment(name: str, session: ResultsSession) -> schemas.ExperimentOut:
    """One experiment: its protocol as printed, and its arms."""
    return schemas.ExperimentOut.model_validate(queries.find_experiment(session, name))


@listing("catalogue", "/experiments/{name}/curves", "listCurves", list[schemas.CurvePointOut], 404)
def list_experiment_curves(
    name: str,
    session: ResultsSession,
    compare: Compare,
    page: Paging,
    curve: Annotated[comparing.Curve, Query(description="quantity to plot over epochs")] = "test_accuracy",
    profile: ProfileFilter = None,
    arm: Annotated[list[str], Query(max_length=64, description="only these arms", examples=[["vit"]])] = [],  # noqa: B006
) -> Sequence[schemas.CurvePointOut] | Response:
    """Learning curves: mean, minimum and maximum over the compared replicates, by arm and epoch."""
    experiment = queries.find_experiment(session, name)
    for wanted in arm:
        queries.find_arm(experiment, wanted)
    (comparison,) = compare(Question(experiment=name, profile=profile))
    arms = [item.arm for item in comparison.arms if not arm or item.arm in arm]
    points = (
        comparing.list_curves(session, comparison, curve, arms)
        if curve in comparing.known_curves(session, comparison)
        else []
    )
    return page.answer_with(schemas.CurvePointOut, points)


@listing("catalogue", "/experiments/{name}/observations", "listObservations", list[comparing.ObservedPointOut], 404)
def list_experiment_observations(
    name: str,
    session: ResultsSession,
    compare: Compare,
    page: Paging,
    profile: ProfileFilter = None,
    quantity: Annotated[str | None, Query(description="only this quantity", examples=["attention_sigma"])] = None,
) -> Sequence[comparing.ObservedPointOut] | Response:
    """Quantities measured inside the compared networks, before and after training, by block."""
    (comparison,) = compare(Question(experiment=name, profile=profile))
    known = comparing.known_quantities(session, comparison)
    if quantity is not None and known and quantity not in known:
        raise comparing.UnknownQuantity(quantity[:80], known)
    wanted = [item for item in known if quantity in (None, item)]
    arms = [item.arm for item in comparison.arms]
    points = comparing.list_observed(session, comparison, quantities=wanted, arms=arms)
    return page.answer_with(comparing.ObservedPointOut, points)


@listing("claims", "/claims", "listClaims", list[claim_schemas.ClaimOut], 404)
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


@router.get("/api/v1/claims/{claim_id:name}", tags=["claims"], operation_id="getClaim", responses=declared(404))
def read_claim(claim_id: str, session: ResultsSession, compare: Compare) -> claim_schemas.ClaimDetailOut:
    """One claim: its verdict, the runs behind it, its deviations and its cost."""
    record = find_judged(session, claim_id)
    observed = comparing.list_behind(session, record, queries.arms_of(session, record.experiments), compare)
    title = name_claims(session, [record])[claim_id]
    return claim_schemas.describe_record(record, observed, title, unit_of(record.claim))


@router.get("/api/v1/verdicts", tags=["claims"], operation_id="listVerdicts", responses=declared(404, 422))
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


@listing("runs", "/runs", "listRuns", list[schemas.RunOut], 404)
def list_runs(
    session: ResultsSession,
    page: Paging,
    experiment: ExperimentFilter = None,
    arm: Annotated[str | None, Query(examples=["ninformer"])] = None,
    profile: Annotated[str | None, Query(examples=["quick"])] = None,
    provenance: ProvenanceFilter = None,
    source: Literal["evidence", "local"] | None = None,
    selected: Annotated[bool | None, Query(description="only results used in comparisons")] = None,
    sort: Annotated[
        queries.RunOrder, Query(description="field to sort by; a leading minus reverses it", examples=["-accuracy"])
    ] = "position",
) -> Sequence[schemas.RunOut] | Response:
    """Results, ordered by experiment, arm and replicate, or by `sort`."""
    wanted = queries.RunFilter(
        experiment=experiment, arm=arm, profile=profile, provenance=provenance, source=source, is_selected=selected
    )
    found = queries.list_results(session, wanted, order=sort, limit=page.limit + 1, offset=page.offset)
    shown = page.cut(found)
    metrics = queries.metrics_of(session, shown)
    names = schemas.RunOut.model_fields.keys() - {"label", "metrics"}
    described = [
        {name: getattr(row, name) for name in names} | {"label": fidelity_of(row), "metrics": metrics[row.id]}
        for row in shown
    ]
    return page.answer(schemas.RunOut, described)


@router.get("/api/v1/runs/{run_key}", tags=["runs"], operation_id="getRun", responses=declared(404))
def read_run(run_key: RunKey, session: ResultsSession) -> schemas.RunDetailOut:
    """One run: its spec, and curves, cost and environment of each result."""
    results = queries.find_run(session, run_key)
    ids = queries.checkpoint_ids(session, results)
    names = schemas.ArmResultOut.model_fields.keys() - {"label", "curves", "checkpoint"}
    described = [
        {name: getattr(result, name) for name in names}
        | {"label": fidelity_of(result), "curves": result.epochs, "checkpoint": ids.get(result.id)}
        for result in results
    ]
    return schemas.RunDetailOut.model_validate(
        {"run_key": results[0].run_key, "spec": results[0].spec, "results": described}
    )


@router.get("/api/v1/runs/{run_key}/trail", tags=["runs"], operation_id="getTrail", responses=declared(404, 422))
def read_trail(run_key: RunKey, session: ResultsSession) -> queries.TrailsOut:
    """Provenance of a run's numbers: checkpoint, run, params, code, data and environment, each with its digest.

    `claimcheck verify` recomputes these digests and reports the first mismatch.
    """
    return queries.describe_trails(queries.find_run(session, run_key), session)


@listing("runs", "/checkpoints", "listCheckpoints", list[schemas.CheckpointOut], 404)
def list_checkpoints(
    session: ResultsSession, page: Paging, dataset: DatasetFilter = None, experiment: ExperimentFilter = None
) -> Sequence[schemas.CheckpointOut] | Response:
    """Trained models available for predictions."""
    found = queries.list_checkpoints(
        session, dataset=dataset, experiment=experiment, limit=page.limit + 1, offset=page.offset
    )
    return page.answer(schemas.CheckpointOut, page.cut(found))


@router.get(
    "/api/v1/checkpoints/{checkpoint_id:name}/weights",
    tags=["runs"],
    operation_id="getWeights",
    response_class=Response,
    responses=binary("application/octet-stream") | declared(404),
)
def read_weights(checkpoint_id: str, request: Request, session: ResultsSession) -> FileResponse:
    """Weights of one trained model as a safetensors file; its header holds the model and how to prepare images."""
    (found,) = queries.find_checkpoints(session, [checkpoint_id])
    model = app_state_of(request).engine.models.get(found.path, found.sha256)
    return FileResponse(model.path, media_type="application/octet-stream", filename=f"{found.id}.safetensors")


@router.get(
    "/api/v1/checkpoints/{checkpoint_id:name}", tags=["runs"], operation_id="getCheckpoint", responses=declared(404)
)
def read_checkpoint(checkpoint_id: str, session: ResultsSession) -> schemas.CheckpointOut:
    """One trained model."""
    return schemas.CheckpointOut.model_validate(queries.find_checkpoints(session, [checkpoint_id])[0])
