"""Dependencies of route handlers; `create_app` stores what they need in the application's state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.templating import Jinja2Templates
from sqlalchemy.orm import Session
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.types import Receive

from service.database import queries
from service.database.comparing import Comparisons
from service.http.caching import Exports, KnownAnswer, tag_answer
from service.http.errors import Problem
from service.http.middleware import Readiness
from service.http.monitoring import Metrics
from service.inference.engine import Choices, Engine
from service.pages.citing import Project
from service.pages.searching import ClaimIndex
from service.settings import Settings
from service.slots import SessionPool
from stages.results import ExperimentComparison, Question

WATCH_AFTER_SECONDS = 0.05
"""Delay before a client is watched: most answers are faster, and watching costs as much as reading a form."""
Done = TypeVar("Done")


@dataclass(frozen=True)
class AppState:
    """Parts of one application, each created once.

    `reading`: sessions for answers from the database.  `asking`: sessions for short queries, in a queue of their own.
    `indexes`: search indexes by the content of the database.  `answers`: models' answers to the test images on their
    pages, by the digests of both.  `files`: those of the repository that pages may show.
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
    """Return the application's state; a dependency would take FastAPI as long as reading a small form."""
    parts: AppState = request.app.state.claimcheck
    return parts


def render_page(request: Request, template: str, /, **context: Any) -> Response:
    """Render a template with `context`."""
    return app_state_of(request).templates.TemplateResponse(request, template, context)


def site_of(request: Request) -> str:
    """Return the service's permanent address or, without one, the address of this request."""
    return (app_state_of(request).settings.address or str(request.base_url)).rstrip("/")


class NameConvertor(PathConvertor):
    """The name of a model or claim in a path, `{…:name}`; unlike a part of a path, it may have slashes: `vit-b/16`."""

    regex = "(?s:.+)"


register_url_convertor("name", NameConvertor())


class ClientDisconnected(Problem):
    """The client has disconnected, so no answer is needed."""

    def __init__(self) -> None:
        super().__init__(503, "the client went away before the answer")


async def cancel_on_disconnect(receive: Receive, work: Awaitable[Done]) -> Done:
    """Return the result of `work`, or cancel it if the client disconnects after its body was received."""

    async def watch(limit: asyncio.Timeout) -> None:
        await asyncio.sleep(WATCH_AFTER_SECONDS)
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
            raise ClientDisconnected from None
        raise
    finally:
        watching.cancel()


async def _session(request: Request) -> AsyncIterator[Session]:
    async with app_state_of(request).reading.session() as session:
        if await request.is_disconnected():  # while it waited in the queue
            raise ClientDisconnected
        is_known = request.scope["state"].get("is_known")
        if is_known and await is_known():
            raise KnownAnswer
        yield session


ResultsSession = Annotated[Session, Depends(_session, scope="function")]
"""Database session, closed before the answer is sent, so that slow clients hold no connection."""


async def _hold_slot(request: Request) -> AsyncIterator[None]:
    async with app_state_of(request).reading.slots.hold():
        yield


DATABASE_SLOT = Depends(_hold_slot, scope="function")
"""Admits a request to the queue of database readers; for routes that take as long without reading the database."""


def conditional(request: Request, session: ResultsSession) -> None:
    """Tag the answer of this route, which depends only on the database, the address and Accept.

    Raises:
        NotModified: as `tag_answer`.
    """
    request.scope["state"]["content"] = content = queries.content_digest(session)
    tag_answer(request, content)


def dated(request: Request, session: ResultsSession) -> None:
    """Add the day of the newest result and the digest of the record for the page's footer."""
    request.state.newest_result = queries.read_meta(session, "newest_result")
    request.state.record = queries.read_meta(session, "record")


def _answering(request: Request, session: ResultsSession) -> Callable[[Question], list[ExperimentComparison]]:
    """Return a function that compares results, from the content that the ETag is computed from (`conditional`)."""
    comparisons = app_state_of(request).comparisons
    content: str = request.scope["state"]["content"]
    return lambda question: comparisons.get(session, content, question)


Compare = Annotated[Callable[[Question], list[ExperimentComparison]], Depends(_answering)]
