"""What handlers ask for by name; `create_app` puts it on the application, so a test brings its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.templating import Jinja2Templates
from sqlalchemy.orm import Session

from service.predictors import PredictorCache
from service.scripts import ChartScripts
from service.settings import Settings
from stages.results import Sessions


def _session(request: Request) -> Iterator[Session]:
    sessions: Sessions = request.app.state.sessions
    with sessions() as session:
        yield session


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _predictors(request: Request) -> PredictorCache:
    predictors: PredictorCache = request.app.state.predictors
    return predictors


def _templates(request: Request) -> Jinja2Templates:
    templates: Jinja2Templates = request.app.state.templates
    return templates


def _scripts(request: Request) -> ChartScripts:
    scripts: ChartScripts = request.app.state.scripts
    return scripts


ResultsSession = Annotated[Session, Depends(_session)]
ServiceSettings = Annotated[Settings, Depends(_settings)]
Predictors = Annotated[PredictorCache, Depends(_predictors)]
Scripts = Annotated[ChartScripts, Depends(_scripts)]
Templates = Annotated[Jinja2Templates, Depends(_templates)]
