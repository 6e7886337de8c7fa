"""Conditional requests: an ETag computed from the database's content and from what makes answers of it, and 304 if the
client already has it.  Answers that another client already got are kept for a minute (`AnswerCache`).

The tag is weak: answers of equal meaning may differ in their bytes when they are compressed.  The headers of every
answer are here as well: a page runs no inline script, uses no inline style but its sheet and loads nothing from
another host.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

PARTS = frozenset({".py", ".html", ".js", ".css", ".csv", ".json"})
"""Endings of the files that answers are made by."""


def edition_of(folders: Iterable[Path], shown: str) -> str:
    """A digest that changes with any file below these folders, and with the settings that pages show."""
    digest = hashlib.sha256(shown.encode())
    for file in sorted(file for folder in folders for file in folder.rglob("*") if file.suffix in PARTS):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class NotModified(HTTPException):
    """The client already has the answer that it would get: 304, which has no body; like a 200 it carries the tag."""

    def __init__(self, etag: str) -> None:
        super().__init__(304, headers={"etag": etag, "cache-control": "no-cache", "vary": "Accept"})


class Kept(Exception):
    """The answer is known: the same request was answered a moment ago."""

    def __init__(self, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__()
        self.response = Response(body)
        self.response.raw_headers = [*headers]  # a copy, because middleware adds to it


def tag_answer(request: Request, content: str) -> None:
    """Tag an answer made of this content by this edition of the service.

    Raises:
        NotModified: If-None-Match names the tag.  `*` is read once there is an answer, by the middleware.
        Kept: the answer of this tag is known.
    """
    state = request.scope["state"]
    state["content"] = content
    asked = (request.app.state.edition, content, request.url.path, request.url.query, request.headers.get("accept", ""))
    etag = f'W/"{hashlib.sha256(chr(0).join(asked).encode("utf-8", "surrogateescape")).hexdigest()[:32]}"'
    if etag.removeprefix("W/") in known_tags(request.headers):
        raise NotModified(etag)
    state["etag"] = etag
    if found := state["kept"](etag):
        raise Kept(*found)


MAX_REQUEST_HEADER_BYTES = 32 * 1024
SHEET = (Path(__file__).parents[1] / "static" / "style.css").read_text(encoding="utf-8")
"""The style sheet, part of every page: a browser that asked for it would draw the page a tenth of a second later."""
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
    """The entity tags of If-None-Match, without the W/ of weak ones: a weak comparison (RFC 9110, section 13.1.2)."""
    tags = ",".join(headers.getlist("if-none-match")).split(",")
    return [tag.strip().removeprefix("W/") for tag in tags]
