"""Why a run was trained or would be: what its key is made of, what changed, which claims want it, who tried."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from stages.commands.command import Answer, in_words
from stages.datasets.packed import PackedDataError, read_info
from stages.params.experiment import Params, ParamsError, PlannedRun, RunName, load_params
from stages.params.schema import nearest
from stages.priorities.proposal import (
    all_trainings,
    as_printed,
    judgements_about,
    next_looks,
    standing_today,
    trained_runs,
)
from stages.run import RunSpec, changed_parts
from stages.runs.equivalence import PATH as EQUIVALENCES
from stages.runs.equivalence import Equivalences, read_equivalences
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines
from stages.runs.object_store import open_store
from stages.runs.store import Store
from stages.scheduling.engine.leases import Attempt, Leases, is_gone, owner_in_words
from stages.scheduling.runner import Way, find_outcome, keyed_runs, previous_specs, ways_to

_SHORTEST = 6
"""Fewest digits of a run key that identify it."""
_SHOWN = 6
"""Most changes or claims in text output."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A training that happened, and where it is told of: a line of evidence, or the outcome that a folder has."""

    run_key: str
    spec: Mapping[str, Any]
    where: str
    name: RunName | None = None
    made: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


def why(options: argparse.Namespace) -> Answer:
    """The reasons of one run, by its label or the beginning of its key."""
    params, root = load_params(), Path()
    published = _published(root)
    if re.fullmatch(rf"[0-9a-f]{{{_SHORTEST},64}}", options.run):
        asked, known = _by_key(options.run, params, root, published)
    else:
        asked, known = _by_label(options.run, params, root), None
    document = _explain(asked, known, params, root, published)
    return Answer(document=document, shown=list(_show(document)))


def _by_label(label: str, params: Params, root: Path) -> PlannedRun:
    """What the params ask for in the cell of this label.

    Raises:
        ParamsError: there is no such cell.
    """
    name, _, cell = label.partition(".")
    if name in params.experiments:
        cells = {asked.name.label: asked for asked in _grid(name, params, root)}
        if label in cells:
            return cells[label]
        known = nearest(label, cells)
    else:
        known = f"{nearest(name, params.experiments)} " if not cell else nearest(name, params.experiments)
    raise ParamsError(
        f"no run {label!r}{known} (a run is <experiment>.<arm>.<replicate>, or at least {_SHORTEST} digits of its key)"
    )


def _grid(name: str, params: Params, root: Path) -> list[PlannedRun]:
    """Every run of an experiment under the current profile, also of replicates and roles that it leaves out.

    A run lacks its data's digest if these aren't packed.
    """
    experiment = params.experiments[name]
    try:
        digest = read_info(root / "data" / "processed" / experiment.dataset).digest
    except PackedDataError:
        digest = ""
    whole = dataclasses.replace(params.profile, replicates=None)
    params = dataclasses.replace(params, profiles={params.profile_name: whole})
    return keyed_runs(experiment, params, digest, every_role=True)


def _published(root: Path) -> list[Known]:
    """The trainings that evidence tells of, in its order."""
    return [
        Known(
            run_key=line.result.run_key,
            spec=line.result.spec,
            where=f"{path.relative_to(root)}, line {number}",
            name=RunName(line.result.experiment, line.result.arm, line.result.replicate),
            environment=line.result.environment,
            made=f"{line.origin.published} by revision {line.origin.revision[:12]}",
        )
        for path in evidence_files(root / "data" / "evidence")
        for number, line in enumerate(read_lines(path, EvidenceLine), start=1)
    ]


def _by_key(
    start: str, params: Params, root: Path, published: Sequence[Known]
) -> tuple[PlannedRun | None, Known | None]:
    """What the params ask for under a key that begins so, and what is known of such a training.

    Raises:
        ParamsError: none has such a key, or several have.
    """
    store, known = open_store(root), dict[str, Known]()
    for key in store.run_keys():
        if key.startswith(start) and (folder := store.published(key)) is not None:
            known[key] = Known(run_key=key, spec=json.loads((folder / "spec.json").read_bytes()), where=str(folder))
    known |= {one.run_key: one for one in published if one.run_key.startswith(start)}
    asked_for = [asked for name in params.experiments for asked in _grid(name, params, root)]
    wanted = {
        asked.spec.run_key: asked
        for asked in reversed(asked_for)
        if asked.spec.data_digest and asked.spec.run_key.startswith(start)
    }
    keys = sorted({*known, *wanted})
    if len(keys) > 1:
        raise ParamsError(
            f"{len(keys)} runs have a key that begins with {start}: {', '.join(key[:16] for key in keys)}"
        )
    if not keys:
        raise ParamsError(f"no run has a key that begins with {start}: not in the params, the store or the evidence")
    one = known.get(keys[0])
    asked = wanted.get(keys[0])
    if asked is None and one is not None:
        asked = next((asked for asked in asked_for if asked.name == one.name), None)
    return asked, one


def _explain(
    asked: PlannedRun | None, known: Known | None, params: Params, root: Path, published: Sequence[Known]
) -> dict[str, Any]:
    equivalences, store = read_equivalences(root), open_store(root)
    spec = asked.spec.to_dict() if asked and known is None else known.spec if known else {}
    key = known.run_key if known else asked.spec.run_key if asked and asked.spec.data_digest else None
    ways = ways_to(asked.spec, equivalences) if asked and asked.spec.data_digest else []
    way = find_outcome(store, ways, {*store.run_keys()})
    before = _before(asked, root, published) if asked else None
    changed = _changed(asked, before, equivalences) if asked and before else []
    numbers = sorted({number for way in ways for number in way.lines})
    lines = [(number, equivalences.lines[number - 1]) for number in numbers]
    return {
        "run": asked.name.label if asked else known.name.label if known and known.name else None,
        "run_key": key,
        "profile": params.profile_name,
        "model": spec["model"]["path"],
        "replicate": spec["replicate"],
        "reason": _reason(asked, known, way, before, changed, params),
        "outcome": _outcome(store, key, way),
        "published": [
            {"where": one.where, "published": one.made}
            for one in published
            if one.run_key in {key, *(way.run_key for way in ways)}
        ],
        "against": None if before is None else {"run_key": before.run_key, "where": before.where},
        "changed": changed,
        "equivalences": [
            {"line": number, "before": line.before, "after": line.after, "made": line.made} for number, line in lines
        ],
        "claims": _claims(asked.name, params, root) if asked else [],
        "attempts": [_attempt(one) for one in Leases(store).attempts(key)] if key else [],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    told = dataclasses.asdict(attempt) | {"owner": owner_in_words(attempt.owner)}
    is_lost = attempt.end is None and is_gone(attempt.owner)
    return told | {"end": "lost" if is_lost else attempt.end or "training"}


def _before(asked: PlannedRun, root: Path, published: Sequence[Known]) -> Known | None:
    """The training that this cell had before: in the experiment's folder, else the published one nearest to today's."""
    folder = root / "data" / "runs" / asked.name.experiment
    spec = previous_specs(folder).get(asked.name.cell)
    if spec is not None:
        key = RunSpec.from_dict(spec).run_key
        return Known(run_key=key, spec=spec, where=str(folder / key), name=asked.name)
    own = [one for one in published if one.name == asked.name]
    return min(own, key=lambda one: len(changed_parts(one.spec, _comparable(asked, one))), default=None)


def _comparable(asked: PlannedRun, before: Known) -> dict[str, Any]:
    """What is asked for, with the data of `before` where ours aren't packed."""
    spec = asked.spec.to_dict()
    return spec if asked.spec.data_digest else spec | {"data_digest": before.spec["data_digest"]}


def _changed(asked: PlannedRun, before: Known, equivalences: Equivalences) -> list[str]:
    """Parts of the key that differ; code last, and not where lines show that it gives the same numbers."""
    changed = changed_parts(before.spec, _comparable(asked, before))
    code = [part for part in changed if part.startswith("code of ")]
    if code and equivalences.chain(before.spec, before.environment, asked.spec.code) is not None:
        return [part for part in changed if part not in code]
    return [*(part for part in changed if part not in code), *code]


def _reason(
    asked: PlannedRun | None,
    known: Known | None,
    way: Way | None,
    before: Known | None,
    changed: Sequence[str],
    params: Params,
) -> str:
    if asked is None:
        return f"no experiment asks for it under the profile {params.profile_name}; it is kept and not trained again"
    if way is not None:
        return f"not trained again: its outcome is in the store{way.in_words()}"
    if known is not None and known.run_key != asked.spec.run_key and (changed or asked.spec.data_digest):
        return f"kept: under the profile {params.profile_name} its cell now needs another training"
    unknown = "" if asked.spec.data_digest else " (its key is unknown until its data are packed)"
    if before is None:
        return f"to be trained: nothing was trained for this cell before{unknown}"
    if changed:
        return f"to be trained: {len(changed)} parts of its key have changed{unknown}"
    return f"to be trained: the key is the same, and its outcome is not in this store{unknown}"


def _outcome(store: Store, key: str | None, way: Way | None) -> dict[str, Any] | None:
    found = way.run_key if way else key
    folder = store.published(found) if found else None
    if folder is None:
        return None
    result = json.loads((folder / "result.json").read_bytes())
    told = ("status", "train_seconds", "samples_per_second", "peak_memory_bytes", "environment_digest")
    return {"run_key": found, "folder": str(folder), **{name: result.get(name) for name in told}}


def _claims(name: RunName, params: Params, root: Path) -> list[dict[str, Any]]:
    """List every claim about the run's arm: verdict and, if its next analysis needs the run, the missing trainings."""
    printed = as_printed(params)
    trainings, standing = all_trainings(printed), standing_today(root, printed)
    trained = trainings.with_same(standing.decided_by | trained_runs(printed, root))
    looks = {look.claim.id: look for look in next_looks(standing, printed, trained)}
    needed = {
        claim: {"at": look.at, "planned": look.planned, "runs": len(look.runs), "lacking": len(look.lacking)}
        for claim, look in looks.items()
        if name in look.runs
    }
    return [
        {"claim": one.claim.id, "verdict": str(one.verdict.status), "look": needed.get(one.claim.id)}
        for one in judgements_about(name, standing.judgements, printed)
    ]


def _show(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    name, key = document["run"] or "a run that no experiment plans", document["run_key"]
    replicate = ", ".join(f"{part} {number}" for part, number in document["replicate"].items())
    short = key[:12] if key else "no key yet"
    yield f"{name} ({short}), {document['model']}, {replicate}, profile {document['profile']}"
    yield f"reason     {document['reason']}"
    if document["changed"] and document["against"]:
        yield f"against    run {document['against']['run_key'][:12]}, {document['against']['where']}"
        yield from _some("changed", document["changed"])
    if outcome := document["outcome"]:
        spent = in_words(outcome["train_seconds"] or 0)
        yield f"outcome    {outcome['folder']}: {outcome['status']}, {spent} of training"
    for one in document["published"]:
        yield f"published  {one['where']}, {one['published']}"
    for line in document["equivalences"]:
        revisions = f"{line['before'][:12]} gives the numbers of {line['after'][:12]}"
        yield f"same code  line {line['line']} of {EQUIVALENCES.name}: {revisions}"
    wanted = [f"{one['claim']}: {_says(one)}" for one in document["claims"] if one["look"]]
    others = [f"{one['claim']}: {one['verdict']}" for one in document["claims"] if not one["look"]]
    yield from _some("wanted by", wanted)
    yield from _some("serves", others)
    if not document["claims"]:
        yield "wanted by  no claim"
    yield from _some("attempt", [_in_words(one) for one in document["attempts"]])


def _in_words(attempt: Mapping[str, Any]) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(attempt["began"]))
    reason = f": {attempt['reason']}" if attempt["reason"] else ""
    return f"{began} by {attempt['owner']}, {attempt['end']}{reason}"


def _says(claim: Mapping[str, Any]) -> str:
    look = claim["look"]
    lacking = (
        f"{look['lacking']} of {look['runs']} trainings are missing" if look["lacking"] else "trained, not yet judged"
    )
    return f"{claim['verdict']}; interim analysis at {look['at']} of {look['planned']}: {lacking}"


def _some(heading: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines[:_SHOWN]:
        yield f"{heading:<10} {line}"
    if len(lines) > _SHOWN:
        yield f"{'':<10} and {len(lines) - _SHOWN} more; --json has all"
