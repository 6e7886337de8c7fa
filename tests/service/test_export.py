"""The export, read with the tools that users have."""

import io
import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pyarrow import parquet

from service.routes import export
from stages.results import open_results
from tests.service.test_errors import assert_problem

TABLES = [table.name for table in export.TABLES]


def stored(root: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows from SQLite."""
    with sqlite3.connect(root / "data" / "results.db") as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
    connection.close()
    return rows


def plain(table: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return rows without order, with JSON parsed and booleans as numbers."""
    json_columns = {column.name for column in export.find_table(table).columns if "JSON" in str(column.type)}

    def value_of(name: str, value: Any) -> Any:
        if name in json_columns and value is not None:
            return json.loads(value)
        return int(value) if isinstance(value, bool) else value

    return sorted(json.dumps({name: value_of(name, row[name]) for name in row}, sort_keys=True) for row in rows)


@pytest.mark.parametrize("table", TABLES)
def test_parquet_table_has_every_row_of_the_database(client: TestClient, root: Path, table: str) -> None:
    answer = client.get(f"/api/v1/export/{table}.parquet")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/vnd.apache.parquet")
    read = parquet.read_table(io.BytesIO(answer.content))
    assert plain(table, read.to_pylist()) == plain(table, stored(root, table))
    assert read.schema.names == [column.name for column in export.find_table(table).columns]


def test_zip_has_every_table_from_one_state(client: TestClient) -> None:
    answer = client.get("/api/v1/export.zip")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(f"{name}.parquet" for name in TABLES)
        files = {name: parquet.ParquetFile(io.BytesIO(archive.read(name))) for name in archive.namelist()}
    about = {file.schema_arrow.metadata[b"claimcheck.content"].decode()[:12] for file in files.values()}
    assert about == {client.get("/health/ready").json()["detail"].split()[1]}
    assert files["epochs.parquet"].metadata.num_rows > 100


def test_large_table_is_written_in_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 50)
    written = io.BytesIO()
    with open_results(str(root / "data" / "results.db"))() as session:
        export.write_table(session, written, export.find_table("epochs"))
    file = parquet.ParquetFile(written)
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert max(groups) == 50 and sum(groups) == len(stored(root, "epochs"))


def test_export_supports_ranges(client: TestClient) -> None:
    """Data-frame libraries use them when they read from a URL."""
    tables = ("/api/v1/runs?format=csv", "/compare?format=csv")
    for address in ("/api/v1/export/claims.parquet", "/api/v1/export.zip", *tables):
        whole = client.get(address, headers={"accept-encoding": "identity"})
        etag, size = whole.headers["etag"], len(whole.content)
        assert etag.startswith('"') and whole.headers["accept-ranges"] == "bytes"
        for sent, first, last in (("0-9", 0, 9), ("-8", size - 8, size - 1), (f"{size - 5}-", size - 5, size - 1)):
            for condition in ({}, {"if-range": etag}):
                part = client.get(address, headers={"range": f"bytes={sent}", **condition})
                assert (part.status_code, part.content) == (206, whole.content[first : last + 1])
                assert part.headers["content-range"] == f"bytes {first}-{last}/{size}" and part.headers["etag"] == etag
        other = client.get(address, headers={"range": "bytes=0-9", "if-range": '"other"'})
        assert (other.status_code, other.content) == (200, whole.content)
        assert_problem(client.get(address, headers={"range": f"bytes={size}-"}), 416)
        assert client.head(address, headers={"accept-encoding": "identity"}).headers["content-length"] == str(size)


@pytest.mark.parametrize(
    ("accepted", "is_packed"), [("gzip;q=0", False), ("gzip; q=0.0, br", False), ("gzip;q=0.5", True)]
)
def test_gzip_is_not_used_if_refused(client: TestClient, accepted: str, is_packed: bool) -> None:
    answer = client.get("/compare", headers={"accept-encoding": accepted})
    assert ("content-encoding" in answer.headers) == is_packed


@pytest.mark.parametrize("name", ["nothing", "pg_class", "results;drop", "..%2fresults", "results%00", "x" * 5000])
def test_unknown_table_is_404(client: TestClient, name: str) -> None:
    assert_problem(client.get(f"/api/v1/export/{name}.parquet"), 404)


def test_tables_of_the_export_are_documented(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    described = document["paths"]["/api/v1/export/{table}.parquet"]["get"]["description"]
    assert [name for name in TABLES if name not in described] == []
