"""Writes verdicts and curves as a Trackio logbook: a page per paper, and a project per experiment with its runs.

Trackio reads the folder `.trackio` of the current directory and, for projects, the one that `TRACKIO_DIR` names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from stages.results import (
    ICONS,
    WORD_OF,
    ClaimFilter,
    Epoch,
    ExperimentRow,
    JudgedClaim,
    Paper,
    Result,
    Status,
    Word,
    list_judged,
)
from stages.upkeep.exporting import Exported, require_new, require_package

_CURVES = [column.name for column in Epoch.__table__.columns if column.name not in ("result_id", "epoch")]


def write_logbook(session: Session, folder: Path, experiments: Collection[str]) -> Exported:
    """Write the logbook to `folder/.trackio/logbook`, and these experiments' curves to databases next to it.

    Raises:
        ExportError: the folder exists, or trackio isn't installed.
    """
    require_new(folder)
    target, judged = folder.resolve(), list_judged(session, ClaimFilter())  # a relative database is open from here on
    with tempfile.TemporaryDirectory(prefix="claimcheck-") as scratch:  # so that no parent folder has a logbook
        place = Path(scratch, target.name)
        place.mkdir()
        os.environ["TRACKIO_DIR"] = str(place / ".trackio")  # read when trackio is imported
        book, storage = require_package("trackio.logbook"), require_package("trackio.sqlite_storage").SQLiteStorage
        with contextlib.chdir(place):
            counts = _write(session, judged, book, storage, experiments)
        shutil.copytree(place, target)
    note = f"to read it: cd {folder} && TRACKIO_DIR=.trackio trackio logbook serve"
    return Exported(folder=folder, counts=counts, notes=[note])


def _write(
    session: Session, judged: Sequence[JudgedClaim], book: Any, storage: Any, experiments: Collection[str]
) -> dict[str, int]:
    pages = runs = 0
    project = book.create_logbook("Claimcheck: do the numbers of a paper hold?")
    for paper in session.scalars(select(Paper).order_by(Paper.position)):
        page = book.ensure_page(project, paper.called)
        book.add_markdown_cell(project, page, f"**{paper.title}**\n\n{paper.summary}", title="The paper")
        wanted = ExperimentRow.paper == paper.name, ExperimentRow.name.in_(experiments)
        for experiment in session.scalars(select(ExperimentRow.name).where(*wanted).order_by(ExperimentRow.position)):
            found = list(_runs(session, experiment))
            for run, config, epochs in found:
                steps = [epoch.pop("epoch") for epoch in epochs]
                when = [config["published"] or ""] * len(epochs)
                storage.bulk_log(experiment, run, epochs, steps=steps, timestamps=when, config=config)
            if found:
                book.add_dashboard_cell(project, page, experiment)
            runs += len(found)
        rows = [one for one in judged if one.claim.paper == paper.name]
        book.add_markdown_cell(project, page, _table(rows), title="Verdicts")
        pages += 1
    book.write_site_files(project)
    return {"pages": pages, "runs": runs}


def _table(judged: Sequence[JudgedClaim]) -> str:
    """Return a Markdown table: each claim, its place, our number, n and the verdict."""
    lines = ["| claim | place | ours | n | verdict |", "|---|---|--:|--:|---|"]
    for one in judged:
        verdict, word = one.verdict, WORD_OF[Status(one.verdict.status)]
        ours = "" if verdict.ours is None else f"{verdict.ours:.4g}"
        because = "" if word is Word.NOT_TESTED else f": {verdict.explanation}".replace("|", "\\|").replace("\n", " ")
        lines.append(
            f"| {one.claim.id} | {one.claim.place} | {ours} | {verdict.n or ''} | {ICONS[word]} {word}{because} |"
        )
    return "\n".join(lines)


def _runs(session: Session, experiment: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, float]]]]:
    """Yield the name, settings and curves of each selected run on real data."""
    query = select(Result).where(Result.experiment == experiment, Result.is_selected, Result.provenance != "embedded")
    for result in session.scalars(query.options(selectinload(Result.epochs)).order_by(Result.id)):
        config = {
            "arm": result.arm,
            "replicate": result.replicate,
            "run_key": result.run_key,
            "profile": result.profile,
            "cut": result.cut,
            "published": result.origin and result.origin["published"],
            "model": result.spec["model"],
            "protocol": result.spec["protocol"],
        }
        epochs = [
            {"epoch": row.epoch, **{name: value for name in _CURVES if (value := getattr(row, name)) is not None}}
            for row in result.epochs
        ]
        if epochs:
            yield f"{result.arm}.{result.replicate} {result.profile} {result.run_key[:8]}", config, epochs
