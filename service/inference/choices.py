"""Resolves which checkpoints a request means: asked for every image, answered by the database once per content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cachetools import LRUCache
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service.database import queries
from service.database.queries import ServedCheckpoint
from service.inference.models import state_of
from service.slots import Turns
from stages.results import database_url

CacheKey = tuple[object, ...]
MAX_REMEMBERED = 1024


class Choices:
    """Remembers answers until the database changes: another file in its place, or other content behind a URL."""

    def __init__(self, database: str, asking: Turns) -> None:
        url = make_url(database_url(database))
        self._file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self._asking = asking
        self._found: LRUCache[CacheKey, list[ServedCheckpoint]] = LRUCache(MAX_REMEMBERED)

    async def named(self, names: Sequence[str], dataset: str | None, arms: Sequence[str]) -> list[ServedCheckpoint]:
        """The checkpoints of these names or, without a name, those of the data set, of these arms or of all."""

        def find(session: Session) -> list[ServedCheckpoint]:
            return (
                queries.choose_checkpoints(session, dataset, arms)
                if dataset
                else queries.find_checkpoints(session, names)
            )

        return await self.get((tuple(names), dataset, tuple(arms)), find)

    async def get(
        self, question: CacheKey, find: Callable[[Session], list[ServedCheckpoint]]
    ) -> list[ServedCheckpoint]:
        """The answer of `find` to `question`; errors are not remembered.  Raises `Busy` as `Turns.ask`."""
        key = await self._current(), question
        if (found := self._found.get(key)) is None:
            found = self._found[key] = await self._asking.ask(find)
        return found

    async def _current(self) -> object:
        """A value that changes with the content.  Taken before `find`, so an answer is never older than its version."""
        if self._file is None:
            return await self._asking.ask(queries.content_digest)
        return state_of(self._file)
