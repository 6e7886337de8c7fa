"""`/api/v1/export`: the whole database as Parquet for pandas, DuckDB or R, one file per table or all of them in a zip.

Columns have the database's names and types; JSON columns are text.  The metadata of each file names the database's
content, so that users can see whether files from two requests belong together.
"""

from __future__ import annotations

import json
import zipfile
from functools import partial
from typing import IO, Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Path, Request, Response
from pyarrow import parquet
from sqlalchemy import BigInteger, Boolean, Double, Integer, Table, select
from sqlalchemy.orm import Session

from service.database import queries
from service.dependencies import app_state_of
from service.http.caching import Download, NotModified, Write, known_tags
from service.http.errors import declared
from service.http.strict import StrictRoute
from service.http.tabular import binary
from stages.results import SCHEMA_VERSION, Base, JSONOf, UnknownName

ROWS_AT_ONCE = 10_000
TABLES: tuple[Table, ...] = tuple(Base.metadata.sorted_tables)


class UnknownTable(UnknownName): ...


def find_table(name: str) -> Table:
    """Find the table of this name.

    Raises:
        UnknownTable: the database has no such table.
    """
    for table in TABLES:
        if table.name == name:
            return table
    raise UnknownTable(name[:80], [table.name for table in TABLES])


def write_table(session: Session, file: IO[bytes], table: Table) -> None:
    """Write a table as a Parquet file, a row group at a time; at most `ROWS_AT_ONCE` rows are in memory."""
    fields = [pa.field(column.name, _type(column.type), nullable=bool(column.nullable)) for column in table.columns]
    about = {"claimcheck.content": queries.content_digest(session), "claimcheck.schema_version": str(SCHEMA_VERSION)}
    about["claimcheck.record"] = queries.read_meta(session, "record") or ""
    schema = pa.schema(fields, metadata=about)
    has_json = [isinstance(column.type, JSONOf) for column in table.columns]
    query = (
        select(table)
        .order_by(
            *[*(table.c[name] for name in ("result_id", "position", "rank") if name in table.c), *table.primary_key]
        )
        .execution_options(yield_per=ROWS_AT_ONCE)
    )
    with parquet.ParquetWriter(pa.PythonFile(file, mode="w"), schema, compression="zstd") as writer:
        for rows in session.execute(query).partitions():
            columns = [
                pa.array([dump(value) for value in values] if is_json else values, field.type)
                for is_json, values, field in zip(has_json, zip(*rows, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def write_zip(session: Session, file: IO[bytes]) -> None:
    """Write all tables as `<table>.parquet` into a zip, of one state of the database."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # Parquet is compressed already
        for table in TABLES:
            with archive.open(f"{table.name}.parquet", "w", force_zip64=True) as member:
                write_table(session, member, table)


def _type(kind: Any) -> pa.DataType:
    if isinstance(kind, Boolean):
        return pa.bool_()
    if isinstance(kind, Double):
        return pa.float64()
    return pa.int64() if isinstance(kind, BigInteger | Integer) else pa.string()


def dump(value: Any) -> str | None:
    """Return a value of a JSON column as text."""
    return None if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False)


router = APIRouter(prefix="/api/v1/export", route_class=StrictRoute, tags=["export"])
PARQUET = "application/vnd.apache.parquet"
ZIP = "application/zip"
TableName = Annotated[str, Path(description="a table of the database", examples=["metrics"])]


@router.get(
    "/{table}.parquet",
    operation_id="exportTable",
    response_class=Response,
    responses=binary(PARQUET) | declared(404, 422),
)
async def export_table(table: TableName, request: Request) -> Response:
    """One table of the database as a Parquet file, for `pandas.read_parquet` or DuckDB.

    The tables: meta, papers, profiles, datasets, experiments, arms, results, metrics, arm_metrics (of all folds
    together), epochs (the learning curves), observations (inside networks), costs, arrays, checkpoints, claims,
    claim_changes, verdicts, verdict_runs, verdict_arms, families, deviations, claim_deviations, claim_experiments.
    Fractions are in [0, 1], times in seconds, memory in bytes; JSON columns are text.
    """
    wanted = find_table(table)
    return await _download(request, f"{wanted.name}.parquet", PARQUET, partial(write_table, table=wanted))


@router.get(".zip", operation_id="exportDatabase", response_class=Response, responses=binary(ZIP) | declared())
async def export_database(request: Request) -> Response:
    """All tables as Parquet files in one zip archive, from one state of the database."""
    return await _download(request, "claimcheck.zip", ZIP, write_zip)


async def _download(request: Request, filename: str, media_type: str, write: Write) -> Response:
    exports = app_state_of(request).exports
    export = await exports.get(filename, write)
    if export.etag in known_tags(request.headers):
        raise NotModified(export.etag)
    request.scope["state"]["etag"] = export.etag
    return Download(export, exports.sending, media_type=media_type, filename=filename)
