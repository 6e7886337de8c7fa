"""Lists: as CSV whole, as JSON in pages by a cursor that holds only as long as the database does, with Link headers.

A cursor names the database's content, the request's filters and a position in the list.  The content never changes
under a cursor, so the pages of one walk hold every row once; after a rebuild the cursor is refused rather than
silently wrong.  Link headers are those of RFC 8288.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel

from service.http.errors import Problem, declared
from service.http.tabular import CSV_TOO, ListFormat, Table, rows_as_csv

Row = TypeVar("Row")
Item = TypeVar("Item", bound=BaseModel)
Limit = Annotated[int | None, Query(ge=1, le=1000, description="page size; default: 100, or everything as CSV")]
USUAL, WHOLE = 100, 1 << 40
Cursor = Annotated[str | None, Query(max_length=200, description="cursor of the next page, from a Link header")]


class Page:
    """The part of a list that one request asks for: query `limit + 1` rows from `offset`, `cut` and `answer` them."""

    def __init__(
        self, request: Request, response: Response, form: ListFormat, limit: Limit = None, cursor: Cursor = None
    ) -> None:
        self.limit = limit or (WHOLE if form == "csv" else USUAL)  # who reads a table asks for no second page
        self._response, self._path, self._form = response, request.url.path, form
        self._query = [(name, value) for name, value in parse_qsl(request.url.query) if name != "cursor"]
        filters = urlencode(sorted(pair for pair in self._query if pair[0] != "limit"))
        self._content: str = request.scope["state"]["content"]
        self._list = hashlib.sha256(f"{self._path}?{filters}".encode()).hexdigest()[:12]
        self.offset = 0 if cursor is None else self._read(cursor)

    def cut(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Keep at most `limit` of `rows`; a Link header says where the rest and the beginning are."""
        links = [f'<{self._address(None)}>; rel="first"']
        if len(rows) > self.limit:
            links.append(f'<{self._address(self._write(self.offset + self.limit))}>; rel="next"')
        self._response.headers["link"] = ", ".join(links)
        return rows[: self.limit]

    def answer_with(self, kind: type[Item], rows: Sequence[object]) -> Sequence[Item] | Response:
        """As `answer`, for a whole list."""
        return self.answer(kind, self.cut(rows[self.offset : self.offset + self.limit + 1]))

    def answer(self, kind: type[Item], rows: Sequence[object]) -> Sequence[Item] | Response:
        """Answer with the rows left by `cut`, with the fields of `kind`, in the form that the client wants."""
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

    def _write(self, offset: int) -> str:
        text = f"{self._content[:12]}.{self._list}.{offset}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _read(self, cursor: str) -> int:
        try:
            text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
            content, listed, position = text.split(".")
            offset = int(position)
        except (binascii.Error, ValueError):
            raise Problem(422, "query.cursor: expected one out of a Link header") from None
        if listed != self._list or not 0 <= offset < 1 << 40:
            raise Problem(422, "query.cursor: it belongs to another list or to other filters")
        if content != self._content[:12]:
            raise Problem(410, "the results were rebuilt since this list was begun; begin again without a cursor")
        return offset


Paging = Annotated[Page, Depends(Page)]


def list_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses common to all lists, for OpenAPI: the two forms, the problems and those of `statuses`."""
    return CSV_TOO | declared(*sorted({406, 410, 422, *statuses}))
