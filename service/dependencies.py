"""Dependencies that handlers ask for by name; `create_app` puts them on the application, so a test brings its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.templating import Jinja2Templates
from sqlalchemy.orm import Session

from service.choices import Choices
from service.downloads import Exports
from service.inference import Engine
from service.metrics import Metrics
from service.readiness import Readiness
from service.scripts import ChartScripts
from service.settings import Settings
from service.slots import Turns

if TYPE_CHECKING:
    from service.comparing import Comparisons


@dataclass(frozen=True)
class AppState:
    """The parts of one application, each made once.

    `reading` is for answers made of the database; `asking` for short questions, which wait for none of those.
    """

    settings: Settings
    reading: Turns
    asking: Turns
    choices: Choices
    comparisons: Comparisons
    exports: Exports
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
    async with app_state_of(request).reading.session() as session:
        yield session


ResultsSession = Annotated[Session, Depends(_session, scope="function")]
"""Given back when the answer is made, before it is sent: a client that doesn't read it holds no connection."""
