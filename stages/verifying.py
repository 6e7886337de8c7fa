"""Recomputes the trail behind a served model, offline: checkpoint, run, params, code, data, environment, record.

Each link is a digest that is taken again from the files.  A link holds, is broken, or can't be checked here because
what it needs is not on this machine; that is said and is no error.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager

from stages.budget import plan_runs
from stages.checkpoint.contract import CheckpointError, read_contract
from stages.datasets.packed import PackedDataError, digest_packed, read_info
from stages.evidence import EvidenceError
from stages.experiment import Params, load_params
from stages.publishing import digest_at
from stages.recording import LedgerError, RecordError, record
from stages.results import Base, Checkpoint, Experiment, Result, UnknownCheckpoint, open_results
from stages.run import canonical_json

Status = Literal["holds", "broken", "not here"]


@dataclass(frozen=True)
class Link:
    """One step of a trail."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Trail:
    """What a checkpoint rests on; `broken` is the first link that doesn't hold."""

    checkpoint: str
    links: tuple[Link, ...]

    @property
    def broken(self) -> Link | None:
        return next((link for link in self.links if link.status == "broken"), None)


def verify(root: Path, place: str, names: Sequence[str] = ()) -> tuple[Link, list[Trail]]:
    """The link from the files to the database at `place`, and the trail of each named checkpoint (of all).

    Raises:
        ParamsError: the params files can't be read.
        ResultsUnavailable: there is no database that could be checked.
        UnknownCheckpoint: it has no such checkpoint.
    """
    params = load_params(root)
    with open_results(place)() as session:
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
        trails = [_trail(root, params, *found[name]) for name in (names or found)]
        return _check_record(root, session), trails


def _trail(root: Path, params: Params, checkpoint: Checkpoint, dataset: str) -> Trail:
    result = checkpoint.result
    links = (
        check_checkpoint(root, checkpoint),
        check_run(result),
        check_params(params, result),
        check_code(root, result),
        check_data(root / "data" / "processed" / dataset, result.data_digest, result.spec["data_digest"]),
        check_environment(result),
    )
    return Trail(checkpoint.id, links)


def _check_record(root: Path, session: Session) -> Link:
    """Everything in the database is what `record` makes of the files."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/results.db"
        try:
            record(root, place)
        except (EvidenceError, RecordError, LedgerError) as error:
            return Link("record", "broken", str(error))
        with open_results(place)() as rebuilt:
            for table in Base.metadata.sorted_tables:
                query = select(table).order_by(*table.primary_key.columns)
                pair = [[tuple(row) for row in side.execute(query)] for side in (session, rebuilt)]
                if pair[0] != pair[1]:
                    what = f"table {table.name} is not what the files give; `python -m stages.record` builds it anew"
                    return Link("record", "broken", what)
    return Link("record", "holds", "every row is what result lines, evidence, claims and params give")


def check_checkpoint(root: Path, checkpoint: Checkpoint) -> Link:
    """The file has the recorded digest, and its header names the run and the data."""
    result = checkpoint.result
    path = root / checkpoint.path
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != checkpoint.sha256:
            return Link(
                "checkpoint", "broken", f"{checkpoint.path}: sha256 {digest[:12]}…, recorded {checkpoint.sha256[:12]}…"
            )
        contract = read_contract(content, path.name)
    except OSError as error:
        return Link("checkpoint", "broken", f"{checkpoint.path}: {error.strerror}")
    except CheckpointError as error:
        return Link("checkpoint", "broken", str(error))
    for what, found, recorded in (
        ("run", contract.run_key, result.run_key),
        ("data digest", contract.data_digest, result.data_digest),
    ):
        if found != recorded:
            return Link("checkpoint", "broken", f"{checkpoint.path}: its {what} is {found[:12]}…, not {recorded[:12]}…")
    return Link("checkpoint", "holds", f"sha256 {digest[:12]}…")


def check_run(result: Result) -> Link:
    """The run key is the digest of the spec."""
    digest = hashlib.sha256(canonical_json(result.spec).encode()).hexdigest()
    if digest != result.run_key:
        return Link("run", "broken", f"the spec's sha256 is {digest[:12]}…, the run key {result.run_key[:12]}…")
    return Link("run", "holds", f"run key {digest[:12]}…")


def check_params(params: Params, result: Result) -> Link:
    """Model, protocol and seed of the spec are what the params files give this arm under this profile today."""
    experiment = params.experiments[result.experiment]
    source, profile = params.datasets[experiment.dataset], params.profiles[result.profile]
    for planned in plan_runs(experiment, profile, source, every_role=True):
        if (planned.arm, planned.replicate_index) == (result.arm, result.replicate):
            spec = planned.spec().to_dict()
            differing = [name for name in ("model", "protocol", "replicate") if spec[name] != result.spec[name]]
            if differing:
                what = f"params/{experiment.name}.yaml gives another {' and '.join(differing)} now"
                return Link("params", "broken", what)
            return Link("params", "holds", f"params/{experiment.name}.yaml under profile {result.profile}")
    return Link(
        "params", "broken", f"params/{experiment.name}.yaml plans no replicate {result.replicate} of {result.arm}"
    )


def check_code(root: Path, result: Result) -> Link:
    """Each module of the spec's fingerprint has its digest, at the evidence's revision or in this tree."""
    origin = result.origin
    revision = None if origin is None else str(origin["revision"])
    if revision is not None and not _has_revision(root, revision):
        if _git(root, "rev-parse", "--is-shallow-repository") != "false\n":
            return Link("code", "not here", f"revision {revision[:12]} is not in this clone; a full clone has it")
        return Link("code", "broken", f"there is no revision {revision[:12]} in this repository")
    where = "in this tree" if revision is None else f"at revision {revision[:12]}"
    wrong = [name for name, digest in result.spec["code"].items() if digest_at(root, revision, name) != digest]
    if wrong:
        return Link("code", "broken", f"{', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} another one {where}")
    dirty = ", which had uncommitted changes" if origin is not None and origin["dirty"] else ""
    return Link("code", "holds", f"{len(result.spec['code'])} modules {where}{dirty}")


@cache
def _has_revision(root: Path, revision: str) -> bool:
    return _git(root, "cat-file", "-t", revision) == "commit\n"


def _git(root: Path, *arguments: str) -> str | None:
    """What git says, or None where it refuses or isn't here."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def check_data(folder: Path, recorded: str, in_spec: str) -> Link:
    """The packed data have the recorded digest, where they are here."""
    if recorded != in_spec:
        return Link("data", "broken", f"the result names data {recorded[:12]}…, its spec {in_spec[:12]}…")
    if not (folder / "dataset.json").is_file():
        return Link("data", "not here", f"{folder.name} is not packed here; `dvc repro preprocess@{folder.name}` does")
    try:
        info = read_info(folder)
        digest = digest_packed(folder, info)
    except PackedDataError as error:
        return Link("data", "broken", str(error))
    if digest == recorded == info.digest:
        return Link("data", "holds", f"digest {digest[:12]}…")
    if digest == info.digest:
        return Link(
            "data", "not here", f"{folder.name} is packed from {info.provenance} data here, digest {digest[:12]}…"
        )
    return Link("data", "broken", f"{folder.name}: digest {digest[:12]}…, recorded {recorded[:12]}…")


def check_environment(result: Result) -> Link:
    """The environment's digest is that of its facts."""
    digest = hashlib.sha256(canonical_json(result.environment).encode()).hexdigest()[:12]
    if digest != result.environment_digest:
        return Link("environment", "broken", f"its facts give {digest}, recorded {result.environment_digest}")
    return Link("environment", "holds", digest)
