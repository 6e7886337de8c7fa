"""Lists as CSV (RFC 4180): one row per item, one column per leaf of its schema, under the names of the JSON.

A cursor identifies the database's content, the request's filters and a position in the list. Content never changes
under a cursor, so the pages have every row once; after a rebuild, the cursor is refused. Link headers follow RFC 8288.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import json
import os
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from service.database.schemas import MetricOut
from service.http.caching import raw_query
from service.http.errors import Problem, declared, preferred, weight
from stages.results import METRICS, no_formula

Cell = str | int | float | None
FORMS = {"json": "application/json", "csv": "text/csv"}


def choose_format(
    format: Annotated[  # noqa: A002
        Literal["json", "csv"] | None, Query(description="json or csv; default: from the Accept header")
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
) -> str:
    """Choose the format of a list: json or csv.

    Raises:
        Problem: neither is acceptable (406).
    """
    return format or preferred(accept, FORMS)


class PageRoute(APIRoute):
    """A page at a list's address: matches only clients that prefer HTML to all formats of the list."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        accept = Headers(scope=scope).get("accept", "*/*")
        is_asked = b"format=" not in scope["query_string"]
        if is_asked and weight(accept, "text/html") > max(weight(accept, media) for media in FORMS.values()):
            return super().matches(scope)
        return Match.NONE, {}


ListFormat = Annotated[str, Depends(choose_format)]
CSV_TOO: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}, "example": "name,title,…"}}},
}
"""The second format of a list, for OpenAPI."""


def binary(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Return the response of a route that answers with bytes, for OpenAPI."""
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


class Table(Response):
    """A table as CSV, or ranges of it."""

    media_type = "text/csv"

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.headers["content-disposition"] = f'inline; filename="{name}.csv"'
        self.headers["vary"] = "Accept"
        self.headers["accept-ranges"] = "bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "range" not in Headers(scope=scope):
            await super().__call__(scope, receive, send)
            return
        with os.fdopen(os.memfd_create("table"), "wb") as file:
            file.write(self.body)
            file.flush()
            headers = {**self.headers, "etag": scope["state"]["etag"].removeprefix("W/")}
            part = FileResponse(f"/dev/fd/{file.fileno()}", headers=headers, stat_result=os.fstat(file.fileno()))
            await part(scope, receive, send)


def rows_as_csv(kind: type[BaseModel], rows: Sequence[BaseModel]) -> str:
    """Return `rows` of one schema as CSV.

    A nested object's leaves are `outer.inner`, names in a list are separated by spaces, metrics have a column each,
    deeper nesting is JSON, and null is empty.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns_of(kind), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(_cells(kind, row) for row in rows)
    return buffer.getvalue()


def columns_of(kind: type[BaseModel], prefix: str = "") -> list[str]:
    columns = []
    for name, field in kind.model_fields.items():
        if get_args(field.annotation) == (MetricOut,):
            columns += [info.name for info in METRICS.values() if info.split is not None and not info.of_arm]
        elif inner := _object(field.annotation):
            columns += columns_of(inner, f"{prefix}{name}.")
        else:
            columns.append(prefix + name)
    return columns


def _object(annotation: Any) -> type[BaseModel] | None:
    """Return the schema of the object in a field, or None if it contains no object."""
    kinds = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _cells(kind: type[BaseModel], row: BaseModel, prefix: str = "") -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name, field in kind.model_fields.items():
        value = getattr(row, name)
        if get_args(field.annotation) == (MetricOut,):
            own = (item for item in value if item.metric in METRICS and METRICS[item.metric].split == item.split)
            cells |= {item.metric: item.value for item in own}
        elif inner := _object(field.annotation):
            cells |= _cells(inner, value, f"{prefix}{name}.") if value is not None else {}
        else:
            cells[prefix + name] = _cell(value)
    return cells


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return no_formula(value)
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return _cell(" ".join(str(item) for item in value))
    plain = [item.model_dump(mode="json") for item in value] if isinstance(value, list) else value
    return json.dumps(plain, ensure_ascii=False)


Row = TypeVar("Row")
Item = TypeVar("Item", bound=BaseModel)
Limit = Annotated[int | None, Query(ge=1, le=1000, description="page size; default: 100, or everything as CSV")]
USUAL, WHOLE = 100, 1 << 40
Cursor = Annotated[str | None, Query(max_length=200, description="cursor of the next page, from a Link header")]


class Page:
    """One page of a list: query `limit + 1` rows from `offset`, then call `cut` and `answer`."""

    def __init__(
        self, request: Request, response: Response, form: ListFormat, limit: Limit = None, cursor: Cursor = None
    ) -> None:
        self.limit = limit or (WHOLE if form == "csv" else USUAL)  # readers of a table don't follow pages
        self._response, self._path, self._form = response, request.url.path, form
        self._query = [(name, value) for name, value in parse_qsl(raw_query(request.scope)) if name != "cursor"]
        filters = urlencode(sorted(pair for pair in self._query if pair[0] != "limit"))
        self._content: str = request.scope["state"]["content"]
        self._list = hashlib.sha256(f"{self._path}?{filters}".encode()).hexdigest()[:12]
        self.offset = 0 if cursor is None else self._read(cursor)

    def cut(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Keep at most `limit` of `rows`; a Link header has the addresses of the next and the first page."""
        links = [f'<{self._address(None)}>; rel="first"']
        if len(rows) > self.limit:
            text = f"{self._content[:12]}.{self._list}.{self.offset + self.limit}"
            cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
            links.append(f'<{self._address(cursor)}>; rel="next"')
        self._response.headers["link"] = ", ".join(links)
        return rows[: self.limit]

    def answer_with(self, kind: type[Item], rows: Sequence[object]) -> Sequence[Item] | Response:
        """Answer like `answer`, with a whole list."""
        return self.answer(kind, self.cut(rows[self.offset : self.offset + self.limit + 1]))

    def answer(self, kind: type[Item], rows: Sequence[object]) -> Sequence[Item] | Response:
        """Answer with the rows left by `cut` and the fields of `kind`, in the client's format."""
        items = [kind.model_validate(row) for row in rows]
        self._response.headers["vary"] = "Accept"
        if self._form == "json":
            return items
        csv = Table(rows_as_csv(kind, items), self._path.rpartition("/")[2])
        csv.headers["link"] = self._response.headers["link"]
        return csv

    def _address(self, cursor: str | None) -> str:
        query = urlencode([*self._query, *([("cursor", cursor)] if cursor else [])])
        return f"{self._path}?{query}" if query else self._path

    def _read(self, cursor: str) -> int:
        try:
            text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
            content, listed, position = text.split(".")
            offset = int(position)
        except (binascii.Error, ValueError):
            raise Problem(422, "query.cursor: expected a cursor from a Link header") from None
        if listed != self._list or not 0 <= offset < 1 << 40:
            raise Problem(422, "query.cursor: it belongs to another list or other filters")
        if content != self._content[:12]:
            raise Problem(410, "the results were rebuilt since the first page; start again without a cursor")
        return offset


Paging = Annotated[Page, Depends(Page)]


def list_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses of all lists for OpenAPI: both formats, the problems and those of `statuses`."""
    return CSV_TOO | declared(*sorted({406, 410, 422, *statuses}))
