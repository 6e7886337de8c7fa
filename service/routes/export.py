"""`/api/v1/export`: the whole database, for pandas, DuckDB or R."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from service.database.export import find_table, write_table, write_zip
from service.dependencies import app_state_of
from service.http.caching import NotModified, known_tags
from service.http.downloads import Download, Write
from service.http.errors import declared
from service.http.strict import StrictRoute

router = APIRouter(prefix="/api/v1/export", route_class=StrictRoute, tags=["export"])
PARQUET = "application/vnd.apache.parquet"
ZIP = "application/zip"
TableName = Annotated[str, Path(description="a table of the database", examples=["metrics"])]


def _bytes(media_type: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


@router.get(
    "/{table}.parquet",
    operation_id="exportTable",
    response_class=Response,
    responses=_bytes(PARQUET) | declared(404, 422),
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


@router.get(".zip", operation_id="exportDatabase", response_class=Response, responses=_bytes(ZIP) | declared())
async def export_database(request: Request) -> Response:
    """All tables as Parquet files in one zip archive, from one state of the database."""
    return await _download(request, "claimcheck.zip", ZIP, write_zip)


async def _download(request: Request, filename: str, media_type: str, write: Write) -> Response:
    exports = app_state_of(request).exports
    export = await exports.get(filename, await exports.content(), write)
    if export.etag in known_tags(request.headers):
        raise NotModified(export.etag)
    request.scope["state"]["etag"] = export.etag
    return Download(export, exports.sending, media_type=media_type, filename=filename)
