"""Writes result lines, evidence, claims, findings and params to the database, in a fixed order, all or nothing.

The same files give the same rows.  A SQLite file is built beside the old one and swapped in by one rename; another
database is rebuilt in one transaction.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from stages.claims import ClaimsError, read_history
from stages.claims.history import PATH as HISTORY
from stages.claims.history import Registered
from stages.params.experiment import load_params
from stages.recording.append_only import describe_lost, digest_history, find_lost, read_versions
from stages.recording.rows import Rows
from stages.recording.sources import (
    RecordError,
    find_results,
    find_weights,
    read_findings,
    read_hours,
    read_paper_deviations,
    read_placed_claims,
)
from stages.results import create_results, database_url
from stages.runs.revisions import is_full_clone
from stages.runs.store import put_in_place

__all__ = ["ClaimsError", "RecordError", "Summary", "record"]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `record` wrote; `notes` are findings that a person should see but that don't stop anything."""

    results: int
    selected: int
    checkpoints: int
    claims: int
    findings: int
    notes: tuple[str, ...]


def record(root: Path, database: str, *, evidence_only: bool = False) -> Summary:
    """Build `database` (a path below `root`, or a URL) from the files below `root`.

    `evidence_only` leaves out the results of this working tree.

    Raises:
        EvidenceError: a result line can't be read.
        ParamsError: a params file is wrong.
        ClaimsError: claims contradict params.
        RecordError: lines contradict params, or git has published lines or models that are missing here.
        ResultsUnavailable: the database can't be written.
    """
    params = load_params(root)
    claims = read_placed_claims(root, params)
    findings = read_findings(root / "data" / "findings.jsonl", claims) if not evidence_only else {}
    hours = read_hours(root / "data" / "hours.json") if not evidence_only else {}
    found, left_out = find_results(root, params, evidence_only=evidence_only)
    versions = read_versions(root)
    if lost := find_lost(root, versions):
        raise RecordError(describe_lost(lost))
    weights, notes = find_weights(root, found)
    deviations = read_paper_deviations(params)
    history = read_history(root / HISTORY)
    registered = Registered(root, params.verdicts, history)
    digest = digest_history(versions) if is_full_clone(root) else ""
    rows = Rows(params, found, weights, claims, findings, deviations, history, registered, digest, hours)
    url = make_url(database_url(database))
    if url.get_backend_name() != "sqlite":
        create_results(url.render_as_string(hide_password=False), rows.fill)
    else:
        target = root / (url.database or "")
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            create_results(f"sqlite:///{partial}", rows.fill)
            put_in_place(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return Summary(
        results=len(found),
        selected=len(rows.speaking),
        checkpoints=len(rows.checkpoints()),
        claims=len(claims),
        findings=len(findings),
        notes=(*left_out, *notes),
    )
