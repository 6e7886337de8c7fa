"""Turns the result and cost lines in `data/results/` into committed evidence, and small checkpoints into releases."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

from stages import papers_folder
from stages.datasets.packed import ImageSet, read_images
from stages.faults import Mistake
from stages.params.schema import nearest
from stages.runs.consistency import find_contradictions, find_cost_contradictions
from stages.runs.equivalence import paths_of, read_equivalences
from stages.runs.evidence import CostLine, EpochRow, EvidenceLine, Origin, Release, ResultLine, read_lines, write_lines
from stages.runs.fingerprint import changed_modules, module_digest, source_digest, source_path
from stages.runs.revisions import GitError, read_objects, run_git
from stages.runs.store import find_fault, write_atomically

# Changes in these don't change what a run computes, so they don't make its evidence dirty.
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

    A published line of the same run, environment, arm and replicate stays, with the cost that was measured first,
    unless the result differs.
    """
    found = collect(experiment, root)
    path = root / "data" / "evidence" / f"{experiment}.jsonl"
    kept = {cell_of(line.result): line for line in read_lines(path, EvidenceLine)}
    before = len(kept)
    for line in found:
        older = kept.get(cell_of(line.result))
        if older is None or older.result != line.result:
            kept[cell_of(line.result)] = dataclasses.replace(line, release=older.release if older else None)
    write_atomically(path, write_lines(kept.values()))
    return Published(path, len(kept), len(kept) - before)


def collect(experiment: str, root: Path) -> list[EvidenceLine]:
    """Return the experiment's results as evidence lines, with their cost and origin.

    Raises:
        PublishError: there are none, or one can't be published.
    """
    data = root / "data"
    results = read_lines(data / "results" / f"{experiment}.jsonl", ResultLine)
    costs = {cell_of(line): line for line in read_lines(data / "results" / f"{experiment}.cost.jsonl", CostLine)}
    if not results:
        raise PublishError(f"data/results/{experiment}.jsonl has no lines; run `dvc repro evaluate@{experiment}` first")
    here, equivalences = describe_origin(root), read_equivalences(root)
    found = []
    for line in results:
        origin = here
        if changed_modules(line.spec) and (proofs := equivalences.today(line.spec, line.environment)):
            # older code with the same results: the revision before the first line that proves it
            origin = dataclasses.replace(here, revision=equivalences.lines[proofs[0] - 1].before)
        _refuse_unfit(root, line, origin.revision, is_covered=origin != here)
        cost = costs.get(cell_of(line))
        if cost is None:
            raise PublishError(
                f"data/results/{experiment}.cost.jsonl has no line of {line.arm}.{line.replicate}; "
                f"run `dvc repro evaluate@{experiment}` again"
            )
        spent = {name: getattr(cost, name) for name in COSTS}
        of_run = compare_with_run(root, line, spent)
        if faults := [*find_contradictions(line), *find_cost_contradictions(line, cost), *of_run]:
            raise PublishError(
                f"{line.name} contradicts itself: {'; '.join(faults)}; "
                f"`dvc repro -s -f evaluate@{experiment}` rewrites it"
            )
        found.append(EvidenceLine(result=line, cost=cost, origin=origin))
    return found


def cell_of(line: ResultLine | CostLine) -> tuple[str, int, str, str]:
    return line.arm, line.replicate, line.run_key, line.environment_digest


def _refuse_unfit(root: Path, line: ResultLine, revision: str, *, is_covered: bool) -> None:
    """Refuse placeholder data, code that has changed since, and code that the named revision doesn't contain."""
    if line.data.provenance == "embedded":
        raise PublishError(
            f"{line.name} was trained on placeholder data, which isn't evidence; "
            "train on real data first: claimcheck profile quick, then dvc repro"
        )
    if (changed := changed_modules(line.spec)) and not is_covered:
        raise PublishError(
            f"{line.name} was trained by code that has changed since ({', '.join(changed)}); run dvc repro, publish "
            "from the revision that trained it, or prove that the change leaves all numbers the same "
            "(claimcheck equivalent <that revision>)"
        )
    own = {module: digest for module, digest in line.spec["code"].items() if "==" not in digest}
    if lacking := [module for module, digest in own.items() if digest_at(root, revision, module) != digest]:
        name = "HEAD" if _git(root, "rev-parse", "HEAD").strip() == revision else f"revision {revision[:12]}"
        raise PublishError(
            f"{line.name} ran code that {name} doesn't hold ({', '.join(lacking)}); commit it first, then publish: "
            "evidence names the revision where its code is found"
        )


def compare_with_run(root: Path, line: ResultLine, cost: Mapping[str, Any] | None) -> list[str]:
    """Describe the faults of the outcome that was trained here, and its differences from a line.

    A published line may come from a training in another environment; it has no `cost` (`COSTS`) to compare.
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
    """Return the digest of a module's source at a revision (None: the working tree), or None if there is none."""
    paths = [*paths_of(module)] if re.fullmatch(r"[\w.]+", module) else []
    paths += [path.removeprefix("stages/") for path in paths if path.startswith("stages/papers/")]  # a project's own
    if revision is None:
        found = next((path.read_bytes() for path in map(root.joinpath, paths) if path.is_file()), None)
    else:
        try:
            sources = read_objects(root, [f"{revision}:./{path}" for path in paths])
            found = next((source for source in sources if source is not None), None)
        except GitError:
            found = None
    if found is not None:
        return source_digest(found.decode())
    outside = source_path(module)
    is_in_wheel = not (root / "stages").is_dir() and outside is not None and papers_folder() not in outside.parents
    if revision is not None and not is_in_wheel:
        return None
    return None if outside is None else module_digest(outside)


def describe_origin(root: Path) -> Origin:
    """Return the tree's revision, whether anything relevant has uncommitted changes, and the versions in use."""
    revision = _git(root, "rev-parse", "HEAD")
    return Origin(
        revision=revision.strip(),
        dirty=is_dirty(root),
        published=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        versions={name: importlib.metadata.version(name) for name in ("torch", "numpy", "dvc")},
    )


def is_dirty(root: Path) -> bool:
    """Return True if anything has uncommitted changes except `dvc.lock`, docs, evidence and the current profile."""
    tracked = _git(root, "diff", "HEAD", "--name-only", "--relative", "--no-renames", "-z")
    paths = {*filter(None, (tracked + _git(root, "ls-files", "--others", "--exclude-standard", "-z")).split("\0"))}
    changed = _git(root, "diff", "HEAD", "--unified=0", "--", "params.yaml").splitlines()
    changed = [line[1:] for line in changed if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    if all(line.startswith("profile:") for line in changed):
        paths.discard("params.yaml")
    return any(not path.startswith(_UNCOUNTED) for path in paths)


def _git(root: Path, *arguments: str) -> str:
    try:
        return run_git(root, *arguments).decode()
    except GitError as error:
        raise PublishError(f"evidence needs a git revision, and {error}") from None


MAX_FILE_BYTES = 6_000_000
MAX_TOTAL_BYTES = 30_000_000


def release(experiment: str, arms: list[str], root: Path) -> list[Path]:
    """Write the newest published run of each of `arms` to `data/models/`, and its scores into its evidence line.

    A released model whose run is not here stays as it is.
    """
    data = root / "data"
    path = data / "evidence" / f"{experiment}.jsonl"
    lines = read_lines(path, EvidenceLine)
    known = {line.result.arm for line in lines}
    if unknown := [arm for arm in arms if arm not in known]:
        raise PublishError(f"{path} has no evidence of {unknown[0]}{nearest(unknown[0], sorted(known))}")
    newest: dict[tuple[str, int], int] = {}
    for index, line in enumerate(lines):
        cell = line.result.arm, line.result.replicate
        if line.result.arm in arms and line.result.weights_sha256 is not None:
            best = newest.get(cell)
            if best is None or lines[best].origin.published <= line.origin.published:
                newest[cell] = index
    contents = {}
    for index in newest.values():
        content, released = _rounded(lines[index], data)
        contents[_target(lines[index], data)] = content
        lines[index] = dataclasses.replace(lines[index], release=released)
    for target, content in contents.items():
        if len(content) > MAX_FILE_BYTES:
            raise PublishError(f"{target.name} has {len(content):,} bytes; the limit in git is {MAX_FILE_BYTES:,}")
    folder = data / "models"
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors") if path not in contents)
    total += sum(map(len, contents.values()))
    if total > MAX_TOTAL_BYTES:
        raise PublishError(f"{folder} would hold {total:,} bytes of models; the limit in git is {MAX_TOTAL_BYTES:,}")
    for target, content in contents.items():
        write_atomically(target, content)
    for index, line in enumerate(lines):
        if line.release is not None and _target(line, data) in contents and index not in newest.values():
            lines[index] = dataclasses.replace(line, release=None)
    write_atomically(path, write_lines(lines))
    return list(contents)


def _target(line: EvidenceLine, data: Path) -> Path:
    result = line.result
    return data / "models" / f"{result.experiment}.{result.arm}.{result.replicate}.safetensors"


def _rounded(line: EvidenceLine, data: Path) -> tuple[bytes, Release]:
    result = line.result
    weights = data / "runs" / result.experiment / result.run_key / "weights.safetensors"
    target = _target(line, data)
    if not weights.is_file():
        content = target.read_bytes() if target.is_file() else b""
        if line.release is not None and hashlib.sha256(content).hexdigest() == line.release.sha256:
            return content, line.release  # as it was released
        raise PublishError(f"{weights}: no such file; release a model on the machine that has its run")
    import torch

    from stages.checkpoint.predictor import dump_checkpoint, load_predictor
    from stages.evaluation.scores import accuracy, cut_rows

    original = load_predictor(weights, expected_sha256=result.weights_sha256)
    content = dump_checkpoint(original.network, original.contract, dtype=torch.float16)
    staged = data / "models" / f".{result.run_key}.staged"
    write_atomically(staged, content)
    try:
        rounded = load_predictor(staged)
    finally:
        staged.unlink()
    test_set = cut_rows(read_images(data / "processed" / result.data.dataset, "test"), result.data.test_images)
    assert isinstance(test_set, ImageSet), "a part of images is images"
    before, after = original.probabilities(test_set.images), rounded.probabilities(test_set.images)
    return content, Release(
        sha256=hashlib.sha256(content).hexdigest(),
        dtype="float16",
        accuracy=accuracy(after, test_set.labels),
        same_class=float((before.argmax(1) == after.argmax(1)).mean()),
        n=len(test_set),
    )
