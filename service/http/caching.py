"""Conditional requests: tags of answers, and 304 if the client already has the answer.

The ETag depends on the database's content and on the files and settings that answers are made from. It is weak, because
equal answers may differ in bytes when they are compressed. This module also has the headers of every answer: pages run
no inline scripts, use no inline style except their sheet, and load nothing from other hosts.

Exports are files that are made once per content of the database and sent to all clients.  They have no name, so they
leave nothing behind; the last download closes them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from service.database import queries
from service.slots import SessionPool, Slots

PARTS = frozenset({".py", ".html", ".js", ".css", ".csv", ".json", ".jinja", ".txt"})
"""File types that answers depend on."""


def edition_of(folders: Iterable[Path], shown: str) -> str:
    """Return a digest that changes with the files below these folders and with the settings that pages show."""
    digest = hashlib.sha256(shown.encode())
    for file in sorted(file for folder in folders for file in folder.rglob("*") if file.suffix in PARTS):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class NotModified(HTTPException):
    """The client already has this answer: 304, without a body but with the tag of the 200."""

    def __init__(self, etag: str) -> None:
        super().__init__(304, headers={"etag": etag, "cache-control": "no-cache", "vary": "Accept, Accept-Encoding"})


class KnownAnswer(Exception):
    """The same request was answered while this one waited; `AnswerCache` sends that answer instead."""


def raw_query(scope: Scope) -> str:
    """Return the query as it was sent; that of `request.url` ends at a raw #."""
    query: bytes = scope["query_string"]
    return query.decode("latin-1")


def tag_of(scope: Scope, headers: Headers, edition: str, content: str) -> str:
    """Return the tag of this request's answer, made from this content by this edition of the service."""
    asked = (edition, content, scope["path"], raw_query(scope), headers.get("accept", ""))
    return f'W/"{hashlib.sha256(chr(0).join(asked).encode("utf-8", "surrogateescape")).hexdigest()[:32]}"'


def tag_answer(request: Request, content: str) -> None:
    """Tag the answer to this request, made from this content.

    Raises:
        NotModified: If-None-Match has the tag. The middleware handles `*`, once there is an answer.
    """
    etag = tag_of(request.scope, request.headers, request.app.state.edition, content)
    if etag.removeprefix("W/") in known_tags(request.headers):
        raise NotModified(etag)
    request.scope["state"]["etag"] = etag


MAX_REQUEST_HEADER_BYTES = 32 * 1024
SHEET = (Path(__file__).parents[1] / "static" / "style.css").read_text(encoding="utf-8")
"""The style sheet is part of every page, because requesting it would delay the first paint by a tenth of a second."""
SECURITY_HEADERS = {
    "content-security-policy": (
        f"style-src 'self' 'sha256-{base64.b64encode(hashlib.sha256(SHEET.encode()).digest()).decode()}'; "
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def known_tags(headers: Headers) -> list[str]:
    """Return the tags of If-None-Match without W/, for a weak comparison (RFC 9110, section 13.1.2)."""
    tags = ",".join(headers.getlist("if-none-match")).split(",")
    return [tag.strip().removeprefix("W/") for tag in tags]


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

        def make(session: Session) -> Export:
            made_from = queries.content_digest(session)
            with tempfile.TemporaryFile(prefix="claimcheck-export-") as file:
                write(session, file)
                file.flush()
                file.seek(0)
                etag = f'"{hashlib.file_digest(file, "sha256").hexdigest()[:32]}"'
                return Export(os.dup(file.fileno()), etag, made_from)

        content = await self._asking.ask(queries.content_digest)
        if (found := self._made.get(name)) is not None and found.content == content:
            return found
        async with self._making.hold():
            if (found := self._made.get(name)) is not None and found.content == content:
                return found
            made = await self._reading.ask(make)
            self._made = {key: other for key, other in self._made.items() if other.content == made.content}
            self._made[name] = made
            return made


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
