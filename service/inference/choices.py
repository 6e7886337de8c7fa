"""Find the checkpoints that a request refers to, with one database query per content and question."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from cachetools import LRUCache
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service.database import queries
from service.database.queries import MAX_NAMES, ServedCheckpoint, list_checkpoints
from service.inference.workers import state_of
from service.slots import SessionPool
from stages.results import UnknownName, database_url

CacheKey = tuple[object, ...]
MAX_REMEMBERED = 1024


class Choices:
    """Caches answers until the database changes: a replaced file, or new content behind a URL."""

    def __init__(self, database: str, asking: SessionPool) -> None:
        url = make_url(database_url(database))
        self._file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self._asking = asking
        self._found: LRUCache[CacheKey, list[ServedCheckpoint]] = LRUCache(MAX_REMEMBERED)

    async def named(self, names: Sequence[str], dataset: str | None, arms: Sequence[str]) -> list[ServedCheckpoint]:
        """Return the checkpoints with these names or, without names, those of the data set, for these or all arms."""

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
        """Return the answer of `find` to `question`; errors aren't cached. Raises `Busy` like `SessionPool.ask`."""
        # Read first, so that an answer is never older than the content.
        content = state_of(self._file) if self._file else await self._asking.ask(queries.content_digest)
        key = content, question
        if (found := self._found.get(key)) is None:
            found = self._found[key] = await self._asking.ask(find)
        return found


class UnknownModel(UnknownName):
    """`known` lists the most similar models, or all if there are few."""

    kind = "model"


class UnknownVersion(UnknownName):
    kind = "version"


def find_versions(session: Session, model: str) -> list[ServedCheckpoint]:
    """Return the checkpoints of the model `<experiment>.<arm>` by replicate.

    Raises:
        UnknownModel: no weights of such a model are available; for a checkpoint's id, the message names its model.
    """
    experiment, _, arm = model.partition(".")
    found = list_checkpoints(session, arm_of=(experiment, arm))
    if not found:
        every = list_checkpoints(session)
        known = list(dict.fromkeys(row.model_name for row in every))
        if len(known) > MAX_NAMES:
            known = difflib.get_close_matches(model[:120], known, n=3, cutoff=0.0)
        own = (f"{row.model_name} (of which this is version {row.model_version})" for row in every if row.id == model)
        raise UnknownModel(model[:120], [*own] or known)
    return sorted(found, key=lambda served_checkpoint: served_checkpoint.replicate)


def find_version(versions: Sequence[ServedCheckpoint], version: str) -> ServedCheckpoint:
    """Return the version with this name.

    Raises:
        UnknownVersion: the model has no such version.
    """
    for served_checkpoint in versions:
        if served_checkpoint.model_version == version:
            return served_checkpoint
    raise UnknownVersion(version[:40], [served_checkpoint.model_version for served_checkpoint in versions[:MAX_NAMES]])
