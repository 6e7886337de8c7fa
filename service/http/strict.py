"""Routes that refuse unknown or repeated query parameters rather than answer something else.

Otherwise a misspelt filter would be ignored, and of two data sets the last would count.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Coroutine
from typing import Any, get_origin

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from service.http.errors import Problem, declared

CHARSETS = frozenset({"utf-8", "ascii", "iso8859-1"})
"""The encodings that names and values of a form may have.  Other codecs make text that nothing else can write."""


class StrictRoute(APIRoute):
    """A route that answers 422 to an unknown query parameter, naming those it knows, or to one given too often."""

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
    """A strict route that takes multipart forms: 415 for anything else, before the body is read; 400 for one that ends
    before its last boundary, which the parser reads as a shorter form.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, parameters = parse_options_header(Headers(scope=scope).get("content-type", ""))
        charset = parameters.get(b"charset", b"utf-8").decode("latin-1")
        if kind == b"multipart/form-data" and _is_read(charset):
            await super().handle(scope, _whole(receive, b"--" + parameters.get(b"boundary", b"") + b"--"), send)
        elif scope["method"] == "POST":
            what = f"a form is read as UTF-8, not as {charset[:40]!r}"
            if kind != b"multipart/form-data":
                what = "images come as multipart/form-data, each in a part named file"
            raise Problem(415, what)
        else:
            await super().handle(scope, receive, send)


def _whole(receive: Receive, end: bytes) -> Receive:
    """Receives a body, and raises if it lacks `end`; a form parser lets no other error through."""
    tail, is_there = b"", False

    async def received() -> Message:
        nonlocal tail, is_there
        message = await receive()
        if message["type"] == "http.request":
            tail += message.get("body", b"")
            is_there = is_there or end in tail
            tail = tail[-len(end) :]
            if not is_there and not message.get("more_body", False):
                named = end.decode("latin-1")[:80]
                raise HTTPException(400, f"the form was cut short: it lacks its last line, {named}")
        return message

    return received


def _is_read(charset: str) -> bool:
    """True where the form parser reads it as one of `CHARSETS`: Latin-1 is its choice for what it doesn't know."""
    try:
        return codecs.lookup(charset).name in CHARSETS
    except LookupError:
        return True
    except ValueError:
        return False
