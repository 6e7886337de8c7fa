"""Exports as files: made once per content of the database, and sent to all clients.

The files have no name, so they leave nothing behind; the last download closes them.
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
    """An open, unnamed file made from the database's `content`; `etag` is the digest of its bytes."""

    descriptor: int
    etag: str
    content: str

    def __del__(self) -> None:
        os.close(self.descriptor)


class Exports:
    """Keeps the exports of the current content, and makes one at a time."""

    def __init__(self, reading: SessionPool, asking: SessionPool, *, making: Slots, sending: Slots) -> None:
        self._reading, self._asking, self._making, self.sending = reading, asking, making, sending
        self._made: dict[str, Export] = {}

    async def get(self, name: str, write: Write) -> Export:
        """Return the export `name` of the current content or a newer one; `write` makes it if it doesn't exist yet.

        Raises:
            Busy: others are being made, or too many requests read the database.
            OSError: the disk is full.
        """
        content = await self._asking.ask(queries.content_digest)
        if (found := self._made.get(name)) is not None and found.content == content:
            return found
        async with self._making.hold():
            if (found := self._made.get(name)) is not None and found.content == content:
                return found
            made = await self._reading.ask(lambda session: _make(session, write))
            self._made = {key: other for key, other in self._made.items() if other.content == made.content}
            self._made[name] = made
            return made


def _make(session: Session, write: Write) -> Export:
    content = queries.content_digest(session)
    with tempfile.TemporaryFile(prefix="claimcheck-export-") as file:
        write(session, file)
        file.flush()
        file.seek(0)
        etag = f'"{hashlib.file_digest(file, "sha256").hexdigest()[:32]}"'
        return Export(os.dup(file.fileno()), etag, content)


class Download(FileResponse):
    """Sends an export or ranges of it; raises `Busy` if the limit of concurrent downloads is reached."""

    chunk_size = CHUNK_BYTES

    def __init__(self, export: Export, sending: Slots, *, media_type: str, filename: str) -> None:
        self._export, self._sending = export, sending  # its file stays open until the download ends
        super().__init__(
            f"/dev/fd/{export.descriptor}",
            headers={"etag": export.etag},
            media_type=media_type,
            filename=filename,
            stat_result=os.fstat(export.descriptor),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._sending.hold():
            await super().__call__(scope, receive, send)
