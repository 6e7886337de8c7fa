"""Turns the result and cost lines of `data/results/` into committed evidence, and small checkpoints into releases."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from stages.faults import Mistake
from stages.runs.consistency import find_contradictions, find_cost_contradictions
from stages.runs.curves import EpochRow
from stages.runs.equivalence import Equivalences, paths_of, read_equivalences
from stages.runs.evidence import CostLine, EvidenceLine, Origin, ResultLine, read_lines, write_lines
from stages.runs.fingerprint import changed_modules, module_digest, source_digest, source_path
from stages.runs.revisions import GitError, read_objects, run_git
from stages.runs.store import find_fault, write_atomically

# Changes in these don't touch what a run computes, so they don't make its evidence dirty.
_UNCOUNTED = ("dvc.lock", "docs/", "README.md", "CHANGELOG.md", "data/evidence/", "data/models/")

COSTS = "train_seconds", "samples_per_second", "peak_memory_bytes", "energy_joules"


class PublishError(Mistake, ValueError):
    """Nothing may be published; the message says why."""


@dataclass(frozen=True)
class Published:
    """The result of `publish`: the lines now in the file, and how many of them are new."""

    path: Path
    lines: int
    new: int


def publish(experiment: str, root: Path) -> Published:
    """Add the experiment's results to `data/evidence/<experiment>.jsonl`.

    A published line of the same run, environment, arm and replicate stays, with the cost that was measured first; only
    another result replaces it.

    Raises:
        EvidenceError: a line can't be read, has changed since it was published, or names what its revisions don't have.
        PublishError: no results, placeholder data, results that contradict themselves, or results of code that
            differs from the code in the tree.
    """
    data = root / "data"
    results = read_lines(data / "results" / f"{experiment}.jsonl", ResultLine)
    costs = {_cell(line): line for line in read_lines(data / "results" / f"{experiment}.cost.jsonl", CostLine)}
    if not results:
        raise PublishError(f"data/results/{experiment}.jsonl has no lines; run `dvc repro evaluate@{experiment}` first")
    here, equivalences = describe_origin(root), read_equivalences(root)
    origins = {}
    for line in results:
        origins[_cell(line)] = origin = _origin_of(line, here, equivalences)
        _refuse_unfit(line, is_covered=origin != here)
        _refuse_uncommitted(root, origin.revision, line)
    path = data / "evidence" / f"{experiment}.jsonl"
    kept = {_cell(line.result): line for line in read_lines(path, EvidenceLine)}
    before = len(kept)
    for line in results:
        cost = costs.get(_cell(line))
        if cost is None:
            raise PublishError(
                f"data/results/{experiment}.cost.jsonl has no line of {line.arm}.{line.replicate}; "
                f"run `dvc repro evaluate@{experiment}` again"
            )
        spent = {name: getattr(cost, name) for name in COSTS}
        of_run = compare_with_run(root, line, spent)
        if found := [*find_contradictions(line), *find_cost_contradictions(line, cost), *of_run]:
            raise PublishError(
                f"{line.experiment} {line.arm}.{line.replicate} contradicts itself: {'; '.join(found)}; "
                f"`dvc repro -s -f evaluate@{experiment}` rewrites it"
            )
        older = kept.get(_cell(line))
        if older is None or older.result != line:
            kept[_cell(line)] = EvidenceLine(
                result=line, cost=cost, origin=origins[_cell(line)], release=older.release if older else None
            )
    write_atomically(path, write_lines(kept.values()))
    return Published(path, len(kept), len(kept) - before)


def _cell(line: ResultLine | CostLine) -> tuple[str, int, str, str]:
    return line.arm, line.replicate, line.run_key, line.environment_digest


def _origin_of(line: ResultLine, here: Origin, equivalences: Equivalences) -> Origin:
    """This tree; for a run of older code with the same results, the revision before the first line showing it."""
    if not changed_modules(line.spec) or not (lines := equivalences.today(line.spec, line.environment)):
        return here
    return dataclasses.replace(here, revision=equivalences.lines[lines[0] - 1].before)


def _refuse_unfit(line: ResultLine, *, is_covered: bool) -> None:
    if line.data.provenance == "embedded":
        raise PublishError(
            f"{line.experiment} {line.arm}.{line.replicate} was trained on placeholder data, which are no evidence; "
            "train on real data first: claimcheck profile quick, then dvc repro"
        )
    changed = changed_modules(line.spec)
    if changed and not is_covered:
        raise PublishError(
            f"{line.experiment} {line.arm}.{line.replicate} was trained by other code than the tree holds now "
            f"(changed: {', '.join(changed)}); run dvc repro, publish from the revision that trained it, or show that "
            "the change changes no number (claimcheck equivalent <that revision>)"
        )


def _refuse_uncommitted(root: Path, revision: str, line: ResultLine) -> None:
    """Refuse uncommitted code: evidence names a revision, and whoever checks it out has to find the code that ran."""
    code = line.spec["code"]
    lacking = [module for module, digest in code.items() if digest_at(root, revision, module) != digest]
    if lacking:
        name = "HEAD" if _git(root, "rev-parse", "HEAD").strip() == revision else f"revision {revision[:12]}"
        raise PublishError(
            f"{line.experiment} {line.arm}.{line.replicate} ran code that {name} doesn't hold "
            f"({', '.join(lacking)}); "
            "commit it first, then publish: evidence names the revision where its code is found"
        )


def compare_with_run(root: Path, line: ResultLine, cost: Mapping[str, Any] | None) -> list[str]:
    """The faults of the outcome that was trained here, and what of a line is not its own.

    A published line, which has no `cost` to compare (`COSTS`), may be of a training in another environment.
    """
    folder = root / "data" / "runs" / line.experiment / line.run_key
    if not (folder / "history.jsonl").is_file():
        return []
    if fault := find_fault(folder, line.run_key):
        return [f"{folder.relative_to(root)}: {fault}"]
    result = json.loads((folder / "result.json").read_bytes())
    if result["environment_digest"] != line.environment_digest:
        return [f"its environment is not that of {folder.relative_to(root)}"] if cost is not None else []
    rows = [json.loads(text) for text in (folder / "history.jsonl").read_bytes().splitlines()]
    differing = [
        f"{field.name} of epoch {row.epoch}"
        for row, trained in zip(line.curves, rows, strict=False)
        for field in fields(EpochRow)
        if not _is_near(getattr(row, field.name), trained.get(field.name))
    ]
    if len(rows) != len(line.curves):
        differing.append(f"the number of epochs, {len(line.curves)} and {len(rows)}")
    history = (folder / "history.jsonl").relative_to(root)
    found = [f"its curves are not those of {history}: {', '.join(differing[:3])}"] if differing else []
    other = [name for name, value in (cost or {}).items() if not _is_near(value, result.get(name))]
    return found + ([f"its {', '.join(other)} not those of {history.with_name('result.json')}"] if other else [])


def _is_near(stored: float | None, trained: float | None) -> bool:
    return stored == trained if stored is None or trained is None else isclose(stored, trained, rel_tol=1e-7)


@cache
def digest_at(root: Path, revision: str | None, module: str) -> str | None:
    """Digest of a module's source at a revision (None: the working tree), or None if there is no such source."""
    paths = paths_of(module)
    if revision is None:
        found = next((path.read_bytes() for path in map(root.joinpath, paths) if path.is_file()), None)
    else:
        try:
            sources = read_objects(root, [f"{revision}:{path}" for path in paths])
            found = next((source for source in sources if source is not None), None)
        except GitError:
            found = None
    if found is not None:
        return source_digest(found.decode())
    outside = source_path(module) if revision is None else None
    return None if outside is None else module_digest(outside)


def describe_origin(root: Path) -> Origin:
    """The revision of the tree, whether anything relevant is changed on top of it, and the versions in use.

    Raises:
        PublishError: `root` is not a git checkout, so the code couldn't be found later.
    """
    revision = _git(root, "rev-parse", "HEAD")
    return Origin(
        revision=revision.strip(),
        dirty=is_dirty(root),
        published=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        versions={name: importlib.metadata.version(name) for name in ("torch", "numpy", "dvc")},
    )


def is_dirty(root: Path) -> bool:
    """True if anything but `dvc.lock`, docs, evidence and the profile line of `params.yaml` has uncommitted changes."""
    for line in _git(root, "status", "--porcelain", "--untracked-files=all").splitlines():
        path = line[3:].split(" -> ")[-1].strip('"')
        if path == "params.yaml" and _only_profile_line(root):
            continue
        if not path.startswith(_UNCOUNTED):
            return True
    return False


def _only_profile_line(root: Path) -> bool:
    changed = [
        line[1:]
        for line in _git(root, "diff", "HEAD", "--unified=0", "--", "params.yaml").splitlines()
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    return all(line.startswith("profile:") for line in changed)


def _git(root: Path, *arguments: str) -> str:
    try:
        return run_git(root, *arguments).decode()
    except GitError as error:
        raise PublishError(f"evidence needs a git revision, and {error}") from None
