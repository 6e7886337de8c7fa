"""The trail of a run's results: checkpoint, parameters, code, data and environment, each with its digest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field
from sqlalchemy.orm import Session

from service.database import queries
from service.database.schemas import Out
from stages.results import Result


class CheckpointLinkOut(Out):
    id: str
    sha256: str
    size_bytes: int
    dtype: str | None = Field(description="type of weights rounded after training; null for weights as trained")


class CodeLinkOut(Out):
    revision: str | None = Field(description="git revision of published evidence; null for the tree that recorded it")
    dirty: bool | None = Field(description="true if the revision had uncommitted changes")
    modules: dict[str, str] = Field(description="digest of the source of each module that the run executed")
    changed_code: list[str] = Field(description="modules that differ in the recorded tree")
    equivalences: list[int] = Field(
        description="lines of data/evidence/equivalences.jsonl that prove its code equivalent"
    )


class DataLinkOut(Out):
    dataset: str
    digest: str = Field(description="digest of the packed training and test images")
    provenance: str = Field(description="embedded (placeholder data), subset or full")


class EnvironmentLinkOut(Out):
    digest: str
    facts: dict[str, Any]


class TrailOut(Out):
    """Trail of one result of the run: one arm in one environment."""

    experiment: str
    arm: str
    replicate: int
    source: str
    checkpoint: CheckpointLinkOut | None = Field(description="null if the weights are not available")
    trained_weights_sha256: str | None
    params: dict[str, Any] = Field(description="model, resolved protocol and replicate")
    code: CodeLinkOut
    data: DataLinkOut
    environment: EnvironmentLinkOut


class TrailsOut(Out):
    """`run_key` is the sha256 of params, data digest and code of each trail."""

    run_key: str
    trails: list[TrailOut]


def describe_trails(results: Sequence[Result], session: Session) -> TrailsOut:
    """Return the trail of each result of one run."""
    ids = queries.checkpoint_ids(session, results)
    found = {served.id: served for served in queries.list_checkpoints(session, ids=list(ids.values()))}
    names = {result.experiment for result in results}
    datasets = {name: queries.find_experiment(session, name).dataset for name in names}
    trails = []
    for result in results:
        checkpoint, origin = found.get(ids.get(result.id, "")), result.origin or {}
        trail = TrailOut(
            experiment=result.experiment,
            arm=result.arm,
            replicate=result.replicate,
            source=result.source,
            checkpoint=CheckpointLinkOut.model_validate(checkpoint) if checkpoint else None,
            trained_weights_sha256=result.weights_sha256,
            params={name: result.spec[name] for name in result.spec if name in ("model", "protocol", "replicate")},
            code=CodeLinkOut(
                revision=origin.get("revision"),
                dirty=origin.get("dirty"),
                modules=result.spec["code"],
                changed_code=result.changed_code,
                equivalences=result.equivalences,
            ),
            data=DataLinkOut(
                dataset=datasets[result.experiment], digest=result.data_digest, provenance=result.provenance
            ),
            environment=EnvironmentLinkOut(digest=result.environment_digest, facts=result.environment),
        )
        trails.append(trail)
    return TrailsOut(run_key=results[0].run_key, trails=trails)
