"""Is the process alive, and can it answer?"""

from __future__ import annotations

from fastapi import APIRouter

from service import queries
from service.dependencies import ResultsSession
from service.errors import declared
from service.schemas import HealthOut

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", operation_id="live", responses=declared())
def live() -> HealthOut:
    """The process answers."""
    return HealthOut(status="ok", detail="alive")


@router.get("/ready", operation_id="ready", responses=declared())
def ready(session: ResultsSession) -> HealthOut:
    """The results database can be read; 503 where it can't."""
    return HealthOut(status="ok", detail=f"results {queries.content_digest(session)[:12]}")
