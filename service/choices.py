"""Resolves which checkpoints a request means: asked for every image, answered by the database once per content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service import queries
from service.queries import ServedCheckpoint
from stages.results import Sessions, database_url

CacheKey = tuple[object, ...]
Found = TypeVar("Found")
MAX_REMEMBERED = 1024


class Choices:
    """Remembers answers until the database changes: another file in its place, or other content behind a URL."""

    def __init__(self, place: str, sessions: Sessions) -> None:
        url = make_url(database_url(place))
        self._file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self._sessions = sessions
        self._version: object = None
        self._found: OrderedDict[CacheKey, list[ServedCheckpoint]] = OrderedDict()

    async def get(
        self, question: CacheKey, find: Callable[[Session], list[ServedCheckpoint]]
    ) -> list[ServedCheckpoint]:
        """The answer of `find` to `question`; errors are not remembered."""
        version = await self._current()
        if version != self._version:
            self._version, self._found = version, OrderedDict()
        remembered = self._found
        if question in remembered:
            remembered.move_to_end(question)
            return remembered[question]
        answer = await run_in_threadpool(self._ask, find)
        remembered[question] = answer
        if len(remembered) > MAX_REMEMBERED:
            remembered.popitem(last=False)
        return answer

    def _ask(self, find: Callable[[Session], Found]) -> Found:
        with self._sessions() as session:
            return find(session)

    async def _current(self) -> object:
        """A value that changes with the content.  Taken before `find`, so an answer is never older than its version."""
        if self._file is None:
            return await run_in_threadpool(self._ask, queries.content_digest)
        try:
            status = self._file.stat()
        except OSError:
            return object()  # no file: nothing to remember
        return status.st_ino, status.st_mtime_ns, status.st_size
