"""What handlers ask for by name; `create_app` puts it on the application, so a test brings its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.templating import Jinja2Templates
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.choices import Choices
from service.inference import Engine
from service.metrics import Metrics
from service.readiness import Readiness
from service.scripts import ChartScripts
from service.settings import Settings
from stages.results import Sessions


async def _session(request: Request) -> AsyncIterator[Session]:
    """Connects with its first use, which is never on the event loop."""
    sessions: Sessions = request.app.state.sessions
    session = sessions()
    try:
        yield session
    finally:
        if session.in_transaction():
            await run_in_threadpool(session.close)


def _state(name: str) -> Callable[[Request], Awaitable[Any]]:
    """What `create_app` has put on the application under this name; async, as a plain one costs a turn of a thread."""

    async def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return read


ResultsSession = Annotated[Session, Depends(_session)]
ServiceSettings = Annotated[Settings, Depends(_state("settings"))]
CheckpointChoices = Annotated[Choices, Depends(_state("choices"))]
InferenceEngine = Annotated[Engine, Depends(_state("engine"))]
ServiceMetrics = Annotated[Metrics, Depends(_state("metrics"))]
ServiceReadiness = Annotated[Readiness, Depends(_state("readiness"))]
Scripts = Annotated[ChartScripts, Depends(_state("scripts"))]
Templates = Annotated[Jinja2Templates, Depends(_state("templates"))]
