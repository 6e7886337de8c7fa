"""Lists as CSV (RFC 4180): one row per item, one column per leaf of its schema, under the names of the JSON."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from fastapi import Depends, Header, Query, Response
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from service.database.schemas import MetricOut
from service.http.negotiation import preferred
from stages.results import METRICS, no_formula

Cell = str | int | float | None


def choose_format(
    format: Annotated[  # noqa: A002
        Literal["json", "csv"] | None, Query(description="json or csv; default: from the Accept header")
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
) -> str:
    """Choose the form in which a list is sent: json or csv.

    Raises:
        Problem: neither is acceptable (406).
    """
    return format or preferred(accept, {"json": "application/json", "csv": "text/csv"})


ListFormat = Annotated[str, Depends(choose_format)]
CSV_TOO: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}, "example": "name,title,…"}}},
}
"""The second form of a list, for OpenAPI."""


class Table(Response):
    """A table as CSV, or the ranges of it that are asked for."""

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
    """`rows` of one schema.  A nested object's leaves are `outer.inner`, names in a list are separated by blanks,
    metrics have a column each, deeper nesting is JSON; null is empty.
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
    """The schema of the object in a field, or None if it holds no object."""
    kinds = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _cells(kind: type[BaseModel], row: BaseModel, prefix: str = "") -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name, field in kind.model_fields.items():
        value = getattr(row, name)
        if get_args(field.annotation) == (MetricOut,):
            cells |= {item.metric: item.value for item in value if _is_column(item)}
        elif inner := _object(field.annotation):
            cells |= _cells(inner, value, f"{prefix}{name}.") if value is not None else {}
        else:
            cells[prefix + name] = _cell(value)
    return cells


def _is_column(item: MetricOut) -> bool:
    return item.metric in METRICS and METRICS[item.metric].split == item.split


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
