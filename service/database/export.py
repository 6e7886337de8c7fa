"""Export of the whole database as Parquet: one file per table, or all of them in a zip.

Columns have the database's names and types; JSON columns are text.  The metadata of each file names the database's
content, so that users can see if files from two requests belong together.
"""

from __future__ import annotations

import json
import zipfile
from typing import IO, Any

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy import BigInteger, Boolean, Double, Integer, Table, select
from sqlalchemy.orm import Session

from service.database import queries
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
