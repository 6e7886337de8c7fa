"""Routes of runs and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse

from service.database import queries
from service.database.schemas import ArmResultOut, CheckpointOut, RunDetailOut, RunOut, TrailsOut, describe_trails
from service.dependencies import ResultsSession, app_state_of
from service.http.errors import declared
from service.http.strict import StrictRoute
from service.http.tabular import Paging
from service.routes.catalogue import DatasetFilter, ExperimentFilter, ProvenanceFilter, listing
from stages.results import fidelity_of

RunKey = Annotated[str, Path(description="64 hexadecimal digits, or a unique prefix of at least 7")]
WEIGHTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
router = APIRouter(prefix="/api/v1", route_class=StrictRoute)


@listing(router, "runs", "/runs", "listRuns", list[RunOut], 404)
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
) -> Sequence[RunOut] | Response:
    """Results, ordered by experiment, arm and replicate, or by `sort`."""
    wanted = queries.RunFilter(
        experiment=experiment, arm=arm, profile=profile, provenance=provenance, source=source, is_selected=selected
    )
    found = queries.list_results(session, wanted, order=sort, limit=page.limit + 1, offset=page.offset)
    shown = page.cut(found)
    metrics = queries.metrics_of(session, shown)
    names = RunOut.model_fields.keys() - {"label", "metrics"}
    described = [
        {name: getattr(row, name) for name in names} | {"label": fidelity_of(row), "metrics": metrics[row.id]}
        for row in shown
    ]
    return page.answer(RunOut, described)


@router.get("/runs/{run_key}", tags=["runs"], operation_id="getRun", responses=declared(404))
def read_run(run_key: RunKey, session: ResultsSession) -> RunDetailOut:
    """One run: its spec, and curves, cost and environment of each result."""
    results = queries.find_run(session, run_key)
    ids = queries.checkpoint_ids(session, results)
    names = ArmResultOut.model_fields.keys() - {"label", "curves", "checkpoint"}
    described = [
        {name: getattr(result, name) for name in names}
        | {"label": fidelity_of(result), "curves": result.epochs, "checkpoint": ids.get(result.id)}
        for result in results
    ]
    return RunDetailOut.model_validate({"run_key": results[0].run_key, "spec": results[0].spec, "results": described})


@router.get("/runs/{run_key}/trail", tags=["runs"], operation_id="getTrail", responses=declared(404, 422))
def read_trail(run_key: RunKey, session: ResultsSession) -> TrailsOut:
    """Provenance of a run's numbers: checkpoint, run, params, code, data and environment, each with its digest.

    `claimcheck verify` recomputes these digests and reports the first mismatch.
    """
    return describe_trails(queries.find_run(session, run_key), session)


@listing(router, "runs", "/checkpoints", "listCheckpoints", list[CheckpointOut], 404)
def list_checkpoints(
    session: ResultsSession, page: Paging, dataset: DatasetFilter = None, experiment: ExperimentFilter = None
) -> Sequence[CheckpointOut] | Response:
    """Trained models available for predictions."""
    found = queries.list_checkpoints(
        session, dataset=dataset, experiment=experiment, limit=page.limit + 1, offset=page.offset
    )
    return page.answer(CheckpointOut, page.cut(found))


@router.get("/checkpoints/{checkpoint_id}", tags=["runs"], operation_id="getCheckpoint", responses=declared(404))
def read_checkpoint(checkpoint_id: str, session: ResultsSession) -> CheckpointOut:
    """One trained model."""
    return CheckpointOut.model_validate(queries.find_checkpoints(session, [checkpoint_id])[0])


@router.get(
    "/checkpoints/{checkpoint_id}/weights",
    tags=["runs"],
    operation_id="getWeights",
    response_class=Response,
    responses=WEIGHTS | declared(404),
)
def read_weights(checkpoint_id: str, request: Request, session: ResultsSession) -> FileResponse:
    """Weights of one trained model as a safetensors file; its header holds the model and how to prepare images."""
    (found,) = queries.find_checkpoints(session, [checkpoint_id])
    model = app_state_of(request).engine.models.get(found.path, found.sha256)
    return FileResponse(model.path, media_type="application/octet-stream", filename=f"{found.id}.safetensors")
