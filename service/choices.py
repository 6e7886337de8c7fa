"""Resolves which checkpoints a request means: asked for every image, answered by the database once per content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service import queries
from service.queries import ServedCheckpoint
from service.slots import Turns
from stages.results import database_url

CacheKey = tuple[object, ...]
MAX_REMEMBERED = 1024


class Choices:
    """Remembers answers until the database changes: another file in its place, or other content behind a URL."""

    def __init__(self, place: str, asking: Turns) -> None:
        url = make_url(database_url(place))
        self._file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self._asking = asking
        self._version: object = None
        self._found: OrderedDict[CacheKey, list[ServedCheckpoint]] = OrderedDict()

    async def get(
        self, question: CacheKey, find: Callable[[Session], list[ServedCheckpoint]]
    ) -> list[ServedCheckpoint]:
        """The answer of `find` to `question`; errors are not remembered.  Raises `Busy` as `Turns.ask`."""
        version = await self._current()
        if version != self._version:
            self._version, self._found = version, OrderedDict()
        remembered = self._found
        if question in remembered:
            remembered.move_to_end(question)
            return remembered[question]
        answer = await self._asking.ask(find)
        remembered[question] = answer
        if len(remembered) > MAX_REMEMBERED:
            remembered.popitem(last=False)
        return answer

    async def _current(self) -> object:
        """A value that changes with the content.  Taken before `find`, so an answer is never older than its version."""
        if self._file is None:
            return await self._asking.ask(queries.content_digest)
        try:
            status = self._file.stat()
        except OSError:
            return object()  # no file: nothing to remember
        return status.st_ino, status.st_mtime_ns, status.st_size
