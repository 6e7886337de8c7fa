"""`/api/v1/export`: everything, for those who go on with pandas, DuckDB or R."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from service.dependencies import ResultsSession
from service.errors import declared
from service.export import find_table, stream_parquet, stream_zip
from service.strict import StrictRoute

router = APIRouter(prefix="/api/v1/export", route_class=StrictRoute, tags=["export"])
PARQUET = "application/vnd.apache.parquet"
ZIP = "application/zip"
TableName = Annotated[str, Path(description="a table of the database", examples=["metrics"])]


def _bytes(media_type: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


@router.get(
    "/{table}.parquet",
    operation_id="exportTable",
    response_class=StreamingResponse,
    responses=_bytes(PARQUET) | declared(404, 422),
)
def export_table(table: TableName, session: ResultsSession) -> StreamingResponse:
    """One table of the database as a Parquet file, for `pandas.read_parquet` or DuckDB.

    The tables: meta, papers, profiles, datasets, experiments, arms, results, metrics, arm_metrics (of all folds
    together), epochs (the learning curves), observations (inside networks), costs, arrays, checkpoints, claims,
    claim_changes, verdicts, verdict_runs, verdict_arms, families, deviations, claim_deviations, claim_experiments.
    Fractions are in [0, 1], times in seconds, memory in bytes; JSON columns are text.
    """
    wanted = find_table(table)
    headers = {"content-disposition": f'attachment; filename="{wanted.name}.parquet"'}
    return StreamingResponse(stream_parquet(session, wanted), media_type=PARQUET, headers=headers)


@router.get(
    ".zip",
    operation_id="exportDatabase",
    response_class=StreamingResponse,
    responses=_bytes(ZIP) | declared(),
)
def export_database(session: ResultsSession) -> StreamingResponse:
    """The whole database: every table as a Parquet file, in one zip, of one state of the results."""
    headers = {"content-disposition": 'attachment; filename="claimcheck.zip"'}
    return StreamingResponse(stream_zip(session), media_type=ZIP, headers=headers)
