"""Routes that refuse unknown or repeated query parameters: those of `/api/v1`, `/compare` and `/predict`.

Otherwise a program's misspelt filter would be ignored, and the last of two data sets would win.  Pages, probes,
`/metrics` and `/v2` ignore unknown parameters, because other sites, Prometheus and clients of the protocol add some.

The fast path reads simple forms and queries like the framework's parser (`tests/service/test_forms.py`), and leaves
everything else to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, get_origin

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette import formparsers
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from service.http.errors import Problem, declared

MAX_LINES, MAX_OPTIONS = 1000, 64


def _read_options(value: str | bytes | None) -> tuple[bytes, dict[bytes, bytes]]:
    """Read a form's or part's header up to each semicolon, like the parser."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value or ""
    if text.count(";") > MAX_OPTIONS:
        raise HTTPException(400, f"a header of the form has more than {MAX_OPTIONS} semicolons")
    return parse_options_header(text)


formparsers.parse_options_header = _read_options  # type: ignore[attr-defined]


class StrictRoute(APIRoute):
    """A route that answers 422 to an unknown query parameter, listing the known ones, or to a repeated one."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["responses"] = declared(422) | (options.get("responses") or {})
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        fields = [field for field in get_flat_params(self.dependant) if isinstance(field.field_info, Query)]
        known = {field.alias for field in fields}
        repeatable = {field.alias for field in fields if get_origin(field.field_info.annotation) is list}
        names = f"known: {', '.join(sorted(known))}" if known else "it takes none"

        async def checked(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    raise Problem(422, f"unknown query parameter {name[:80]!r}; {names}")
                times = len(request.query_params.getlist(name))
                if times > 1 and name not in repeatable:
                    raise Problem(422, f"query parameter {name!r} is given {times} times; expected once")
            return await handler(request)

        return checked


class FormRoute(StrictRoute):
    """A strict route for multipart forms: 415 for other bodies, before they are read.

    A form that ends before its last boundary is 400, because the parser would accept it as a shorter form.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read names and values as UTF-8 in any form: other charsets may give text that can't be written."""
        kind, parameters = _read_options(Headers(scope=scope).get("content-type", ""))
        if kind == b"multipart/form-data" and (boundary := parameters.get(b"boundary")):
            others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
            quoted = boundary.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            scope = {**scope, "headers": [*others, (b"content-type", b'multipart/form-data; boundary="%s"' % quoted)]}
            receive = _whole(receive, b"--" + boundary + b"--")
        elif kind != b"multipart/form-data" and scope["method"] == "POST":
            raise Problem(415, "images come as multipart/form-data, each in a part named file")
        await super().handle(scope, receive, send)


def _whole(receive: Receive, end: bytes) -> Receive:
    """Receive a body and raise if it lacks `end`; a form parser passes no other error on.

    Each line that looks like a boundary takes the parser about 1 µs of the event loop.
    """
    tail, is_there, lines = b"", False, 0

    async def received() -> Message:
        nonlocal tail, is_there, lines
        message = await receive()
        if message["type"] == "http.request":
            tail += message.get("body", b"")
            lines += tail.count(end[:-2])
            if lines > MAX_LINES:
                raise HTTPException(413, f"Too many fields: more than {MAX_LINES:,} lines begin with the boundary")
            is_there = is_there or end in tail
            tail = tail[-len(end) :]
            if not is_there and not message.get("more_body", False):
                named = end.decode("latin-1")[:80]
                raise HTTPException(400, f"the form was cut short: it lacks its last line, {named}")
        return message

    return received


_KIND = re.compile(rb"multipart/form-data; boundary=([0-9A-Za-z'()+_./:=?-]{1,70})")
_HEAD = re.compile(
    rb'(?i:Content-Disposition): form-data; name="([a-z_]{1,32})"; filename="([0-9A-Za-z._ -]{1,120})"'
    rb"(?:\r\n(?i:Content-Type): [0-9A-Za-z.+/-]{1,80})?\r\n\r\n"
)


def only_file(content_type: bytes, body: bytes) -> tuple[str, str, bytes] | None:
    """Return field, file name and content of a form with exactly one file, or None for other bodies."""
    kind = _KIND.fullmatch(content_type)
    if kind is None:
        return None
    line = b"--" + kind[1]
    begin, end = line + b"\r\n", b"\r\n" + line + b"--\r\n"
    if not (body.startswith(begin) and body.endswith(end)):
        return None
    head, last = _HEAD.match(body, len(begin)), len(body) - len(end)
    if head is None or body.find(b"\r\n" + line, head.end()) != last:
        return None
    return head[1].decode("ascii"), head[2].decode("ascii"), body[head.end() : last]
