"""Routes for operators and developers: health checks, metrics, and the API's reference at `/docs`."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from service.database import queries
from service.database.schemas import HealthOut
from service.dependencies import DATABASE_SLOT, AppState, app_state_of, render_page
from service.http.errors import Problem, declared, root_path
from service.http.strict import StrictRoute

router = APIRouter(tags=["health"])
EXPOSITION: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/health/live", operation_id="live", responses=declared())
async def live() -> HealthOut:
    """Liveness: the event loop responds. Uses no thread, database or model."""
    return HealthOut(status="ok", detail="alive")


@router.get("/health/ready", operation_id="ready", responses=declared())
async def ready(request: Request) -> HealthOut:
    """Readiness: results can be read and models respond; otherwise 503."""
    parts = app_state_of(request)
    require_ready(parts)
    await parts.engine.decoder.check()
    content, record = await parts.asking.ask(
        lambda session: (queries.content_digest(session), queries.read_meta(session, "record"))
    )
    detail = [f"results {content[:12]}", *([f"record {record}"] if record else [])]
    if disabled := parts.engine.batcher.disabled_models:
        detail.append(f"disabled models: runs {', '.join(model.contract.run_key[:12] for model in disabled)}")
    return HealthOut(status="ok", detail="; ".join(detail))


def require_ready(parts: AppState) -> None:
    """Raise a `Problem` (503) if the service is starting or stopping, or no inference worker runs."""
    if parts.readiness.is_draining:
        raise Problem(503, "the service is ending")
    if not parts.engine.batcher.is_alive:
        raise Problem(503, "no inference process is running; they are being replaced")
    if not parts.readiness.is_warm:
        raise Problem(503, "the service is warming up")


@router.get("/metrics", operation_id="metrics", response_class=Response, responses=EXPOSITION | declared())
async def read_metrics(request: Request) -> Response:
    """Prometheus metrics: requests, forward passes, queue and memory."""
    return Response(app_state_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


METHODS = ("get", "post", "put", "patch", "delete")


@router.get("/openapi.json", include_in_schema=False)
async def redirect_schema(request: Request) -> RedirectResponse:
    """Redirect FastAPI's usual address to ours."""
    return RedirectResponse(f"{request.scope['root_path']}/api/v1/openapi.json", 308)


def read_schema(request: Request) -> Response:
    """Return the OpenAPI document, with the path prefix of the proxy."""
    document, root = request.app.openapi(), root_path(request.scope)
    return JSONResponse(document | {"servers": [{"url": root}]} if root else document)


router.add_api_route(
    "/api/v1/openapi.json",
    read_schema,
    include_in_schema=False,
    dependencies=[DATABASE_SLOT],
    route_class_override=StrictRoute,
)


@router.get("/docs", include_in_schema=False, dependencies=[DATABASE_SLOT])
def show_reference(request: Request) -> Response:
    """Show every operation with its parameters, an example answer and its errors."""
    document = request.app.openapi()
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, item in document["paths"].items():
        for method in filter(item.__contains__, METHODS):
            operation = describe(document, method, path, item[method])
            groups.setdefault(item[method]["tags"][0], []).append(operation)
    return render_page(
        request,
        "reference.html",
        document=document,
        groups=groups,
        address=str(request.base_url).rstrip("/"),
    )


def describe(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    """Describe one operation for readers."""
    success = operation["responses"]["200"].get("content", {}).get("application/json", {})
    received = operation.get("requestBody", {}).get("content", {})
    sent = received.get("application/json", {}).get("x-example")
    form = resolve(document, received.get("multipart/form-data", {}).get("schema", {}))
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("description", operation["summary"]),  # `python -OO` drops docstrings
        "parameters": [
            {
                "name": parameter["name"],
                "where": parameter["in"],
                "required": parameter["required"],
                "type": type_of(document, parameter["schema"]),
                "text": parameter.get("description", ""),
            }
            for parameter in operation.get("parameters", [])
        ]
        + [
            {
                "name": name,
                "where": "form",
                "required": name in form.get("required", []),
                "type": "files" if name == "file" else type_of(document, schema),
                "text": schema.get("description", ""),
            }
            for name, schema in form.get("properties", {}).items()
        ],
        "curl": operation.get("x-codeSamples", [{}])[0].get("source"),
        "sent": json.dumps(sent, ensure_ascii=False) if sent else "",
        "answer": json.dumps(success["example"], indent=2, ensure_ascii=False) if "example" in success else "",
        "errors": sorted(status for status in operation["responses"] if status != "200"),
    }


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def type_of(document: dict[str, Any], schema: dict[str, Any]) -> str:
    schema = resolve(document, schema)
    if "anyOf" in schema:
        return " or ".join(kind for item in schema["anyOf"] if (kind := type_of(document, item)) != "null")
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"{type_of(document, schema.get('items', {}))}, repeatable"
    return str(schema.get("type", "any"))
