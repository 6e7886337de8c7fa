"""Exports as files: made once for each content of the database, sent from there to all who ask.

The files have no name, so nothing of them is left behind; the last one to send an export closes it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from sqlalchemy.orm import Session
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from service.database import queries
from service.slots import SessionPool, Slots

CHUNK_BYTES = 256 * 1024
Write = Callable[[Session, IO[bytes]], None]


@dataclass(frozen=True, eq=False)
class Export:
    """An open file without a name, made of the database's `content`; `etag` is that of its bytes."""

    descriptor: int
    etag: str
    content: str

    def __del__(self) -> None:
        os.close(self.descriptor)


class Exports:
    """Remembers the exports of one content; those of the next one replace them.  One is made at a time."""

    def __init__(self, reading: SessionPool, asking: SessionPool, *, making: Slots, sending: Slots) -> None:
        self._reading, self._asking, self._making, self.sending = reading, asking, making, sending
        self._made: dict[str, Export] = {}

    async def content(self) -> str:
        """Return the content of which an export would be made now.  Raises `Busy` as `SessionPool.ask` does."""
        return await self._asking.ask(queries.content_digest)

    async def get(self, name: str, content: str, write: Write) -> Export:
        """The export `name` of this content, or of a newer one; `write` makes it where there is none yet.

        Raises:
            Busy: others are being made, or too many read the database.
            OSError: there is no room for it.
        """
        if found := self._known(name, content):
            return found
        async with self._making.turn():
            if found := self._known(name, content):
                return found
            made = await self._reading.ask(lambda session: _make(session, write))
            self._made = {key: other for key, other in self._made.items() if other.content == made.content}
            self._made[name] = made
            return made

    def _known(self, name: str, content: str) -> Export | None:
        found = self._made.get(name)
        return found if found is not None and found.content == content else None


def _make(session: Session, write: Write) -> Export:
    content = queries.content_digest(session)
    with tempfile.TemporaryFile(prefix="claimcheck-export-") as file:
        write(session, file)
        file.flush()
        file.seek(0)
        etag = f'"{hashlib.file_digest(file, "sha256").hexdigest()[:32]}"'
        return Export(os.dup(file.fileno()), etag, content)


class Download(FileResponse):
    """Sends an export or the ranges of it that are asked for; raises `Busy` if as many as may are being sent."""

    chunk_size = CHUNK_BYTES

    def __init__(self, export: Export, sending: Slots, *, media_type: str, filename: str) -> None:
        self._export, self._sending = export, sending  # its file stays open until it is sent
        super().__init__(
            f"/dev/fd/{export.descriptor}",
            headers={"etag": export.etag},
            media_type=media_type,
            filename=filename,
            stat_result=os.fstat(export.descriptor),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._sending.turn():
            await super().__call__(scope, receive, send)
