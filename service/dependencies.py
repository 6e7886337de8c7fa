"""Dependencies that handlers ask for by name; `create_app` puts them on the application, so a test brings its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from service.comparing import Comparisons


@dataclass(frozen=True)
class AppState:
    """The parts of one application, each made once."""

    settings: Settings
    sessions: Sessions
    choices: Choices
    comparisons: Comparisons
    metrics: Metrics
    readiness: Readiness
    scripts: ChartScripts
    engine: Engine
    templates: Jinja2Templates


def app_state_of(request: Request) -> AppState:
    """A call and not a dependency: resolving one takes FastAPI as long as reading a small form."""
    parts: AppState = request.app.state.claimcheck
    return parts


async def _session(request: Request) -> AsyncIterator[Session]:
    """Connects at its first use, which is never on the event loop."""
    session = app_state_of(request).sessions()
    try:
        yield session
    finally:
        if session.in_transaction():
            await run_in_threadpool(session.close)


ResultsSession = Annotated[Session, Depends(_session)]
