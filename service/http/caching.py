"""Conditional requests: tags of answers, and 304 if the client already has the answer.

The ETag depends on the database's content and on the files and settings that answers are made from. It is weak, because
equal answers may differ in bytes when they are compressed. This module also has the headers of every answer: pages run
no inline scripts, use no inline style except their sheet, and load nothing from other hosts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

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
        super().__init__(304, headers={"etag": etag, "cache-control": "no-cache", "vary": "Accept"})


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
