"""Recomputes the trail behind a served model, offline, link by link (`links.py`), and the record of all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager

from stages.params.experiment import Params, load_params
from stages.recording import ClaimsError, RecordError, record
from stages.recording.append_only import read_versions, row_faults
from stages.recording.sources import PLAN_CHANGED
from stages.results import Base, Checkpoint, Experiment, Result, UnknownCheckpoint, open_results
from stages.runs.consistency import compare_canaries
from stages.runs.equivalence import read_equivalences
from stages.runs.evidence import EvidenceError
from stages.runs.revisions import refusal
from stages.upkeep.links import (
    Link,
    check_checkpoint,
    check_code,
    check_data,
    check_environment,
    check_metrics,
    check_params,
    check_run,
)


@dataclass(frozen=True)
class Trail:
    """The links behind a checkpoint; `broken` is the first link that doesn't hold."""

    checkpoint: str
    links: tuple[Link, ...]

    @property
    def broken(self) -> Link | None:
        return next((link for link in self.links if link.status == "broken"), None)


def verify(
    root: Path, database: str, names: Sequence[str] = (), *, with_weights: bool = False
) -> tuple[Link, list[Trail]]:
    """The link from the files to `database`, and the trails (see `find_trails`).

    Raises:
        ParamsError: the params files can't be read.
        ResultsUnavailable: there is no database to check.
        UnknownCheckpoint: the database has no such checkpoint.
    """
    with open_results(database)() as session:
        trails = find_trails(root, session, names, with_weights=with_weights)
        return _check_record(root, session), trails


def find_trails(root: Path, session: Session, names: Sequence[str] = (), *, with_weights: bool = False) -> list[Trail]:
    """The trail of each named checkpoint of the database (default: all).

    Released models predict some test images again if these are packed here; `with_weights`: every model predicts all
    test images, and each metric is recomputed from them.

    Raises:
        ParamsError: the params files can't be read.
        UnknownCheckpoint: the database has no such checkpoint.
    """
    params = load_params(root)
    query = (
        select(Checkpoint, Experiment.dataset)
        .join(Checkpoint.result)
        .join(Experiment, Experiment.name == Result.experiment)
        .options(contains_eager(Checkpoint.result))
        .order_by(Checkpoint.position)
    )
    found = {row.Checkpoint.id: (row.Checkpoint, row.dataset) for row in session.execute(query)}
    for name in names:
        if name not in found:
            raise UnknownCheckpoint(name, found)
    return [_trail(root, params, *found[name], with_weights) for name in (names or found)]


def _trail(root: Path, params: Params, checkpoint: Checkpoint, dataset: str, with_weights: bool) -> Trail:
    result, packed = checkpoint.result, root / "data" / "processed" / dataset
    links = (
        check_checkpoint(root, checkpoint),
        check_run(result),
        check_params(params, result),
        check_code(root, result),
        check_data(packed, result.data_digest, result.spec["data_digest"]),
        check_environment(result),
        check_metrics(root, checkpoint, packed, with_weights=with_weights),
    )
    return Trail(checkpoint.id, links)


def _check_record(root: Path, session: Session) -> Link:
    """Check that everything in the database is what `record` makes of the files."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/results.db"
        try:
            equivalences = read_equivalences(root)
            lines = [fault for number in range(1, len(equivalences.lines) + 1) for fault in equivalences.faults(number)]
            ran = select(Result.experiment, Result.arm, Result.replicate, Result.environment)
            if faults := [*compare_canaries(session.execute(ran)), *lines, *row_faults(root, read_versions(root))]:
                return Link("record", "broken", "; ".join(faults))
            notes = record(root, database).notes
            if changed := [note for note in notes if note.startswith(PLAN_CHANGED)]:
                return Link("record", "broken", "; ".join(changed))
        except (EvidenceError, RecordError, ClaimsError) as error:
            return Link("record", "broken", str(error))
        with open_results(database)() as rebuilt:
            for table in Base.metadata.sorted_tables:
                query = select(table).order_by(*table.primary_key.columns)
                pair = (side.execute(query.execution_options(yield_per=1000)) for side in (session, rebuilt))
                if any(one != other for one, other in zip_longest(*pair)):
                    what = f"table {table.name} is not what the files give; `python -m stages.record` rebuilds it"
                    return Link("record", "broken", what)
    unchecked = refusal(root)
    compared = f"; not compared with its history: {unchecked}" if unchecked else ", and git's history has no more"
    return Link("record", "holds", f"every row is what result lines, evidence, claims and params give{compared}")
