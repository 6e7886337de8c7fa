"""Exports as files: made once for each content of the database, sent from there to all who ask.

The files have no name, so nothing of them is left behind; the last one to send an export closes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from fastapi import Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from service.database import queries
from service.slots import Slots, Turns

CHUNK_BYTES = 256 * 1024
Write = Callable[[Session, IO[bytes]], None]


@dataclass(frozen=True, eq=False)
class Export:
    """An open file without a name, `size` bytes made of the database's `content`."""

    descriptor: int
    size: int
    content: str

    def __del__(self) -> None:
        os.close(self.descriptor)


class Exports:
    """Remembers the exports of one content; those of the next one replace them.  One is made at a time."""

    def __init__(self, reading: Turns, asking: Turns, *, making: Slots, sending: Slots) -> None:
        self._reading, self._asking, self._making, self.sending = reading, asking, making, sending
        self._made: dict[str, Export] = {}

    async def content(self) -> str:
        """The content that an export would be made of now.  Raises `Busy` as `Turns.ask`."""
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
        return Export(os.dup(file.fileno()), os.fstat(file.fileno()).st_size, content)


class Download(Response):
    """Sends an export in pieces; raises `Busy` where as many as may are being sent."""

    def __init__(self, export: Export, sending: Slots, *, media_type: str, filename: str) -> None:
        self._export, self._sending = export, sending
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers(
            {"content-length": str(export.size), "content-disposition": f'attachment; filename="{filename}"'}
        )

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with self._sending.turn():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            sent = 0
            while sent < self._export.size:
                chunk = await run_in_threadpool(os.pread, self._export.descriptor, CHUNK_BYTES, sent)
                sent += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": sent < self._export.size})
