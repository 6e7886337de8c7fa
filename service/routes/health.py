"""Health checks and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.database import queries
from service.database.schemas import HealthOut
from service.dependencies import AppState, app_state_of
from service.http.errors import Problem, declared

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


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses=EXPOSITION | declared(),
)
async def read_metrics(request: Request) -> Response:
    """Prometheus metrics: requests, forward passes, queue and memory."""
    return Response(app_state_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
