"""What handlers ask for by name; `create_app` puts it on the application, so a test brings its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

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


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _choices(request: Request) -> Choices:
    choices: Choices = request.app.state.choices
    return choices


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


def _readiness(request: Request) -> Readiness:
    readiness: Readiness = request.app.state.readiness
    return readiness


def _templates(request: Request) -> Jinja2Templates:
    templates: Jinja2Templates = request.app.state.templates
    return templates


def _scripts(request: Request) -> ChartScripts:
    scripts: ChartScripts = request.app.state.scripts
    return scripts


ResultsSession = Annotated[Session, Depends(_session)]
ServiceSettings = Annotated[Settings, Depends(_settings)]
CheckpointChoices = Annotated[Choices, Depends(_choices)]
InferenceEngine = Annotated[Engine, Depends(_engine)]
ServiceMetrics = Annotated[Metrics, Depends(_metrics)]
ServiceReadiness = Annotated[Readiness, Depends(_readiness)]
Scripts = Annotated[ChartScripts, Depends(_scripts)]
Templates = Annotated[Jinja2Templates, Depends(_templates)]
