"""`/v2`: the Open Inference Protocol.  A model is `<experiment>.<arm>`, its versions are replicates."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request, Response

from service.database import queries, schemas
from service.dependencies import ResultsSession, app_state_of, cancel_on_disconnect
from service.http.errors import declared
from service.inference.engine import find_version, find_versions
from service.inference.tensors import InferRequest, describe_tensors, read_request, write_answer
from service.routes.reference import require_ready

router = APIRouter(prefix="/v2", tags=["open inference protocol"])
ModelName = Annotated[str, Path(description="<experiment>.<arm>", examples=["ninformer-mnist.local-vit"])]
ModelVersion = Annotated[str, Path(description="the replicate", examples=["0"])]
IMAGE_IN: dict[str, Any] = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string", "enum": ["image"]},
        "datatype": {"type": "string", "enum": ["UINT8"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 4, "maxItems": 4},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string", "maxLength": 1024},
                        "inputs": {"type": "array", "items": IMAGE_IN, "minItems": 1, "maxItems": 1},
                        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                        "parameters": {"type": "object"},
                    },
                },
                "example": {
                    "inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 1, 28, 28], "data": [0] * 784}]
                },
            },
        },
    }
}


@router.get("", operation_id="serverMetadata", responses=declared())
async def read_server(request: Request) -> schemas.ServerMetadataOut:
    """Name, version and extensions of the service."""
    return schemas.ServerMetadataOut(name="claimcheck", version=request.app.version, extensions=["binary_tensor_data"])


@router.get("/health/live", operation_id="serverLive", responses=declared())
async def live() -> schemas.ServerLiveOut:
    """Liveness: the process responds."""
    return schemas.ServerLiveOut(live=True)


@router.get("/health/ready", operation_id="serverReady", responses=declared())
async def ready(request: Request) -> schemas.ServerReadyOut:
    """Readiness, as at `/health/ready`: 503 if requests should go elsewhere."""
    require_ready(parts := app_state_of(request))
    await parts.engine.decoder.check()
    await parts.asking.ask(queries.content_digest)
    return schemas.ServerReadyOut(ready=True)


async def all_versions(model: ModelName, request: Request) -> list[queries.ServedCheckpoint]:
    """Find the versions of a model, by replicate."""
    choices = app_state_of(request).choices
    return await choices.get(("versions", model), lambda session: find_versions(session, model))


Versions = Annotated[list[queries.ServedCheckpoint], Depends(all_versions)]


async def lowest_version(versions: Versions) -> queries.ServedCheckpoint:
    """Choose the lowest replicate."""
    return versions[0]


async def named_version(version: ModelVersion, versions: Versions) -> queries.ServedCheckpoint:
    """Choose the named replicate."""
    return find_version(versions, version)


Lowest = Annotated[queries.ServedCheckpoint, Depends(lowest_version)]
Named = Annotated[queries.ServedCheckpoint, Depends(named_version)]


def _metadata(model: str, versions: Versions, session: ResultsSession) -> schemas.ModelMetadataOut:
    dataset = queries.find_dataset(session, versions[0].dataset)
    inputs, outputs = describe_tensors(dataset.shape, dataset.classes, dataset.kind)
    return schemas.ModelMetadataOut(
        name=model,
        versions=[version.model_version for version in versions],
        platform="pytorch",
        inputs=[schemas.TensorMetadataOut.model_validate(tensor) for tensor in inputs],
        outputs=[schemas.TensorMetadataOut.model_validate(tensor) for tensor in outputs],
    )


@router.get("/models/{model}", operation_id="modelMetadata", responses=declared(404, 422))
def read_model(model: ModelName, versions: Versions, session: ResultsSession) -> schemas.ModelMetadataOut:
    """Versions and tensors of a model."""
    return _metadata(model, versions, session)


@router.get(
    "/models/{model}/versions/{version}",
    operation_id="modelVersionMetadata",
    responses=declared(404, 422),
    dependencies=[Depends(named_version)],
)
def read_version(model: ModelName, versions: Versions, session: ResultsSession) -> schemas.ModelMetadataOut:
    """Tensors of one version of a model."""
    return _metadata(model, versions, session)


@router.get("/models/{model}/ready", operation_id="modelReady", responses=declared(404, 422))
async def model_ready(model: ModelName, served_checkpoint: Lowest, request: Request) -> schemas.ModelReadyOut:
    """Readiness of a model: its weights match the record; 503 if they can't be read."""
    await app_state_of(request).engine.model(served_checkpoint)
    return schemas.ModelReadyOut(name=model, ready=True)


@router.get("/models/{model}/versions/{version}/ready", operation_id="modelVersionReady", responses=declared(404, 422))
async def version_ready(model: ModelName, served_checkpoint: Named, request: Request) -> schemas.ModelReadyOut:
    """Readiness of one version."""
    await app_state_of(request).engine.model(served_checkpoint)
    return schemas.ModelReadyOut(name=model, ready=True)


HeaderLength = Annotated[str | None, Header(alias="inference-header-content-length", include_in_schema=False)]


async def _infer(request: Request, served_checkpoint: queries.ServedCheckpoint, header_length: str | None) -> Response:
    parts, body = app_state_of(request), await request.body()

    async def work() -> tuple[InferRequest, Any]:
        with parts.engine.batcher.announce():
            chosen = await parts.engine.model(served_checkpoint)
            contract, most = chosen.contract, int(parts.settings.max_waiting_seconds / chosen.seconds)
            asked = await parts.engine.in_thread(
                lambda: read_request(body, header_length, contract.shape, most, contract.kind)
            )
        return asked, await parts.engine.batcher.predict(chosen, asked.images)

    asked, answer = await cancel_on_disconnect(request.receive, work())
    head = {
        "model_name": served_checkpoint.model_name,
        "model_version": served_checkpoint.model_version,
        "parameters": {"run_key": served_checkpoint.run_key, "weights_sha256": served_checkpoint.sha256},
    }
    content, length = await parts.engine.in_thread(lambda: write_answer(answer, asked, head))
    if length is None:
        return Response(content, media_type="application/json")
    headers = {"inference-header-content-length": str(length)}
    return Response(content, media_type="application/octet-stream", headers=headers)


INFER: dict[str, Any] = {
    "response_model": schemas.InferOut,
    "openapi_extra": BODY,
    "responses": declared(400, 401, 404, 408, 413, 415, 422, 429),
}


@router.post("/models/{model}/infer", operation_id="modelInfer", **INFER)
async def infer(request: Request, served_checkpoint: Lowest, header_length: HeaderLength = None) -> Response:
    """Predict images with a model's lowest replicate; tensors are JSON, or raw bytes after it."""
    return await _infer(request, served_checkpoint, header_length)


@router.post("/models/{model}/versions/{version}/infer", operation_id="modelVersionInfer", **INFER)
async def infer_version(request: Request, served_checkpoint: Named, header_length: HeaderLength = None) -> Response:
    """Predict images with one version of a model."""
    return await _infer(request, served_checkpoint, header_length)
