"""Dependencies that handlers ask for by name; `create_app` puts them on the application, so a test brings its own.

`unless_gone` cancels a handler's work if its client has disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.templating import Jinja2Templates
from sqlalchemy.orm import Session
from starlette.types import Receive

from service.database import queries
from service.database.comparing import Comparisons
from service.http.caching import KnownAnswer, tag_answer
from service.http.downloads import Exports
from service.http.errors import Problem
from service.http.middleware import Readiness
from service.http.monitoring import Metrics
from service.inference.choices import Choices
from service.inference.engine import Engine
from service.pages.citing import Project
from service.pages.searching import ClaimIndex
from service.settings import Settings
from service.slots import SessionPool
from stages.results import ExperimentComparison, Question

LOOK_SECONDS = 0.05
"""Most answers are faster, and watching a client costs as much as reading its form."""
Done = TypeVar("Done")


@dataclass(frozen=True)
class AppState:
    """The parts of one application, each made once.

    `reading` is for answers made of the database; `asking` for short questions, which wait for none of those.  `files`
    of the repository may be shown.  `indexes`: the words of claims by the content of the database.  `answers` of models
    to the test images of their pages, by the digests of both.
    """

    settings: Settings
    reading: SessionPool
    asking: SessionPool
    choices: Choices
    comparisons: Comparisons
    indexes: MutableMapping[str, ClaimIndex]
    answers: MutableMapping[tuple[str, str], tuple[str, ...]]
    exports: Exports
    metrics: Metrics
    readiness: Readiness
    engine: Engine
    templates: Jinja2Templates
    files: Mapping[str, Path]
    project: Project


def app_state_of(request: Request) -> AppState:
    """A call and not a dependency: resolving one takes FastAPI as long as reading a small form."""
    parts: AppState = request.app.state.claimcheck
    return parts


def render_page(request: Request, template: str, /, **context: Any) -> Response:
    """Answer with the page that this template makes of `context`."""
    return app_state_of(request).templates.TemplateResponse(request, template, context)


def site_of(request: Request) -> str:
    """The permanent address of this service, else the one that answered."""
    return (app_state_of(request).settings.address or str(request.base_url)).rstrip("/")


class ClientGone(Problem):
    """The client has disconnected, so no answer is needed."""

    def __init__(self) -> None:
        super().__init__(503, "the client went away before the answer")


async def unless_gone(receive: Receive, work: Awaitable[Done]) -> Done:
    """Return the result of `work`, or cancel it if the client disconnects after its body was received."""

    async def watch(limit: asyncio.Timeout) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        while (await receive())["type"] != "http.disconnect":
            pass
        limit.reschedule(0)

    limit = asyncio.timeout(None)
    watching = asyncio.create_task(watch(limit))
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise ClientGone from None
        raise
    finally:
        watching.cancel()


async def _session(request: Request) -> AsyncIterator[Session]:
    async with app_state_of(request).reading.session() as session:
        if await request.is_disconnected():  # while it waited, as everybody in front of others may
            raise ClientGone
        is_known = request.scope["state"].get("is_known")
        if is_known and await is_known():
            raise KnownAnswer
        yield session


ResultsSession = Annotated[Session, Depends(_session, scope="function")]
"""Given back when the answer is made, before it is sent: a client that doesn't read it holds no connection."""


async def _turn(request: Request) -> AsyncIterator[None]:
    async with app_state_of(request).reading.slots.turn():
        yield


TURN = Depends(_turn, scope="function")
"""Admits a request to the queue of database readers; for routes that take as long without reading the database."""


def conditional(request: Request, session: ResultsSession) -> None:
    """Tag the answer of this route, which depends only on the database, the address and Accept.

    Raises:
        NotModified: as `tag_answer`.
    """
    request.scope["state"]["content"] = content = queries.content_digest(session)
    tag_answer(request, content)


def dated(request: Request, session: ResultsSession) -> None:
    """The day of the newest result and the digest of the record, which a page's footer shows."""
    request.state.newest_result = queries.read_meta(session, "newest_result")
    request.state.record = queries.read_meta(session, "record")


def _answering(request: Request, session: ResultsSession) -> Callable[[Question], list[ExperimentComparison]]:
    """Answers from the content that the request's ETag is computed from (`conditional`)."""
    comparisons = app_state_of(request).comparisons
    content: str = request.scope["state"]["content"]
    return lambda question: comparisons.get(session, content, question)


Compare = Annotated[Callable[[Question], list[ExperimentComparison]], Depends(_answering)]
