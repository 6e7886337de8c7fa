"""The inputs of `record`: result lines, evidence, claims and weights, each checked against the params files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from stages.claims import (
    ClaimLine,
    Facts,
    PaperDeviations,
    gather,
    place_claims,
    read_claims,
    read_deviations,
)
from stages.claims.lines import FAULT
from stages.faults import Mistake
from stages.papers.finding import Finding
from stages.params.experiment import Params, plan_runs
from stages.params.schema import nearest
from stages.params.stage_inputs import origin_of
from stages.run import STRICT, ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, canonical_json
from stages.runs.consistency import (
    compare_canaries,
    find_contradictions,
    find_cost_contradictions,
    find_release_contradictions,
)
from stages.runs.equivalence import Equivalences, read_equivalences
from stages.runs.evidence import (
    LABS,
    CostLine,
    EvidenceError,
    EvidenceLine,
    Measurement,
    ResultLine,
    Trial,
    evidence_files,
    read_lines,
)
from stages.runs.fingerprint import changed_modules

PLAN_CHANGED = "PLAN CHANGED: "
"""Begins each note on published results that the params files no longer plan."""


class RecordError(Mistake, ValueError):
    """Inputs that contradict each other; the message names the file and what was expected."""


@dataclass(frozen=True, kw_only=True)
class FindingLine(Finding):
    """A line of `data/findings.jsonl`: what `analyse` computed for a claim."""

    __pydantic_config__: ClassVar = STRICT
    paper: str


def read_findings(path: Path, claims: Sequence[ClaimLine], *, are_all: bool = True) -> dict[str, FindingLine]:
    """Read the findings by claim; none if `analyse` has not run.  `are_all`: no claim was left out."""
    known = {claim.id for claim in claims}
    try:
        findings = read_lines(path, FindingLine)
    except EvidenceError as error:
        raise RecordError(f"{error}; run `claimcheck stage analyse`") from None
    for number, finding in enumerate(findings, start=1):
        if are_all and finding.claim not in known:
            raise RecordError(f"{path}, line {number}: no claim {finding.claim} in data/claims.csv")
    return {finding.claim: finding for finding in findings}


def read_hours(path: Path) -> dict[str, dict[str, float]]:
    """Read the hours of one training of each `<experiment>.<arm>`, by device; none if `analyse` has not run."""
    if not path.is_file():
        return {}
    try:
        return TypeAdapter(dict[str, dict[str, float]]).validate_json(path.read_bytes())
    except ValidationError as error:
        raise RecordError(f"{path}: {error.errors()[0]['msg']}; run `claimcheck stage analyse`") from None


def find_results(
    root: Path, params: Params, *, evidence_only: bool = False, offered: Path | None = None, rivals_only: bool = False
) -> tuple[list[Trial], list[str]]:
    """Find every result below `data/evidence` and `data/results`, in the order of the params files, evidence first.

    `offered` is a lab's file that is read instead of the one with the same name that was accepted earlier.
    A local result that was published appears once, as evidence, with the numbers of the user's own metrics that were
    measured again since.  Results of an experiment, an arm or a profile that the params files don't have are left out,
    and so are numbers that another version of a metric gave.  The notes, also returned, say how many.
    `rivals_only`: compare code only if results of one replicate compete in `select`.  That is all that judging needs,
    and much faster; no note is made on equivalences.
    """
    left_out: Counter[tuple[Path, str, str]] = Counter()
    found: dict[tuple[str, str, str, str, int], Trial] = {}
    local = [] if evidence_only else _local(root / "data" / "results")
    for item in [*_evidence(root / "data" / "evidence", offered), *local]:
        if unknown := _unknown_name(item, params):
            if item.file == offered:
                raise RecordError(f"{item.file}: {unknown[0]} is not in the params files{unknown[1]}")
            left_out[item.file, *unknown] += 1
            continue
        if lacking := sorted({"model", "protocol", "code"} - item.result.spec.keys()):
            raise RecordError(f"{item.file}: the spec of run {item.result.run_key[:12]} has no {lacking[0]}")
        _refuse_contradictions(item)
        today, published = _measured_today(item, params), found.get(item.identity)
        if published and published.source == item.source:
            raise RecordError(
                f"{item.file}: {item.name}, run {item.result.run_key[:12]}, occurs twice: it is also in "
                f"{published.file}, line {published.line}"
            )
        found[item.identity] = _add_newer(published, today.result.metrics) if published else today
    equivalences = read_equivalences(root)
    marked = _mark([*found.values()], params, equivalences, rivals_only)
    positions = {name: position for position, name in enumerate(params.experiments)}
    arms = {name: list(experiment.arms) for name, experiment in params.experiments.items()}

    def order(item: Trial) -> tuple[int, int, int, str, str, str]:
        line = item.result
        arm = arms[line.experiment].index(line.arm)
        return positions[line.experiment], arm, line.replicate, item.source, line.run_key, line.environment_digest

    departed = Counter(item.file for item in marked if item.source == "evidence" and not item.follows_plan)
    notes = [
        f"{PLAN_CHANGED}{file}: params/ plans another protocol or other seeds than {count} of its results have; take "
        "params/ from git again, or retract them with the reason (claimcheck audit --retract)"
        for file, count in departed.items()
    ]
    notes += [
        f"{'' if file.parent.name == 'results' else PLAN_CHANGED}{file}: {count} results of {what} left out, "
        f"because the params files don't have it{known}"
        for (file, what, known), count in left_out.items()
    ]
    outdated = Counter(
        (item.file, item.result.experiment, *changed) for item in marked for changed in item.outdated.items()
    )
    notes += [
        f"{file}: {count} numbers of {metric} left out, because {what} changed after they were measured; "
        f"`dvc repro evaluate@{experiment}` measures again what was trained here"
        for (file, experiment, metric, what), count in outdated.items()
    ]
    canaries = compare_canaries(item.result for item in marked)
    return sorted(marked, key=order), [*canaries, *notes, *(() if rivals_only else equivalences.loose_ends())]


def _measured_today(item: Trial, params: Params) -> Trial:
    """Leave out numbers of the user's own metrics that today's params files and code don't give."""
    own = params.experiments[item.result.experiment].metrics
    kept, outdated = [], {}
    for row in item.result.metrics:
        today = origin_of(own[row.metric]) if row.metric in own else None
        if row.by == today:
            kept.append(row)
        elif row.by is not None and today is not None:
            then, now = ({**by, **by.get("code", {}), "code": None} for by in (row.by, today))
            names = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
            outdated[row.metric] = ", ".join(names)
    if len(kept) == len(item.result.metrics):
        return item
    return dataclasses.replace(item, result=dataclasses.replace(item.result, metrics=tuple(kept)), outdated=outdated)


def _add_newer(published: Trial, metrics: Iterable[Measurement]) -> Trial:
    """Add the numbers of the user's own metrics that the published line of the same run lacks."""
    known = {row.metric for row in published.result.metrics}
    newer = {row.metric: row for row in metrics if row.by is not None and row.metric not in known}
    if not newer:
        return published
    result = dataclasses.replace(published.result, metrics=(*published.result.metrics, *newer.values()))
    outdated = {name: what for name, what in published.outdated.items() if name not in newer}
    return dataclasses.replace(published, result=result, outdated=outdated)


def _mark(found: Sequence[Trial], params: Params, equivalences: Equivalences, rivals_only: bool) -> list[Trial]:
    """Mark each result with what has changed since: its arm's model or own protocol fields, and its code."""

    @cache
    def plans_of(name: str, profile: str) -> dict[str, dict[str, Any]]:
        """Return the model, protocol and replicates that the params currently give each arm."""
        plans: dict[str, dict[str, Any]] = {}
        experiment = params.experiments[name]
        source = params.datasets[experiment.dataset]
        for run in plan_runs(experiment, params.profiles[profile], source, every_role=True):
            spec = run.spec.to_dict()
            arm = plans.setdefault(run.name.arm, {**spec, "replicates": {}})
            arm["replicates"][run.name.replicate] = spec["replicate"]
        return plans

    cells = [(line.experiment, line.profile, line.arm, line.replicate) for line in (item.result for item in found)]
    rivals = Counter(cells)
    changes: dict[str, tuple[str, ...]] = {}
    marked = []
    for item, cell in zip(found, cells, strict=True):
        line, spec, experiment = item.result, item.result.spec, params.experiments[item.result.experiment]
        code = canonical_json([spec["code"], spec["model"], spec["protocol"]])
        changed: tuple[str, ...] = ()
        if rivals[cell] > 1 or not rivals_only:
            if code not in changes:
                changes[code] = tuple(changed_modules(spec))
            changed = changes[code]
        lines = equivalences.today(spec, line.environment) if changed else ()
        plan = plans_of(line.experiment, line.profile)[line.arm]
        replicate = plan["replicates"].get(line.replicate, {})
        replicates = [replicate]
        if item.lab and replicate:
            replicates.append({**replicate, "seed": lab_seeds(item.lab, [replicate["seed"]])[0]})
        own = [spec["protocol"].get(field) == plan["protocol"].get(field) for field in experiment.varied]
        is_planned = spec["model"] == plan["model"] and all(own)
        has_protocol = _DEFAULTS | spec["protocol"] == _DEFAULTS | plan["protocol"]
        marked.append(
            dataclasses.replace(
                item,
                is_planned=is_planned,
                follows_plan=is_planned and has_protocol and spec.get("replicate") in replicates,
                varied=experiment.varied,
                changed_code=() if lines else changed,
                equivalences=lines or (),
            )
        )
    return marked


_DEFAULTS: dict[str, Any] = RunSpec(
    model=ModelSpec(path="", arguments={}),
    protocol=Protocol(optimizer=OptimizerSpec(name="sgd", lr=0.0), batch_size=1, epochs=1),
    data_digest="",
    replicate=Replicate(seed=0),
    code={},
).to_dict()["protocol"]
"""Default values of a protocol, because an older spec lacks fields that were added later."""


def lab_seeds(lab: str, seeds: Iterable[int]) -> list[int]:
    """Return the seeds with which a lab repeats the planned `seeds`; its name fixes them, so that it can't choose."""
    return [seed + int(hashlib.sha256(lab.encode()).hexdigest()[:7], 16) for seed in seeds]


def _evidence(folder: Path, offered: Path | None) -> Iterable[Trial]:
    paths = [path for path in evidence_files(folder) if offered is None or path != folder / LABS / offered.name]
    for path in [*paths, offered] if offered else paths:
        for number, line in enumerate(read_lines(path, EvidenceLine), start=1):
            yield Trial(
                result=line.result,
                cost=line.cost,
                origin=line.origin,
                release=line.release,
                file=path,
                line=number,
                digest=line.digest or "",
                states=line.states or {},
            )


def _local(folder: Path) -> Iterable[Trial]:
    for path in sorted(folder.glob("*.jsonl")):
        if path.name.endswith(".cost.jsonl"):
            continue
        costs = {
            (cost.run_key, cost.environment_digest, cost.arm, cost.replicate): cost
            for cost in read_lines(path.with_name(f"{path.stem}.cost.jsonl"), CostLine)
        }
        for number, line in enumerate(read_lines(path, ResultLine), start=1):
            cost = costs.get((line.run_key, line.environment_digest, line.arm, line.replicate))
            yield Trial(result=line, cost=cost, origin=None, release=None, file=path, line=number)


def _unknown_name(item: Trial, params: Params) -> tuple[str, str] | None:
    """Return a name in a result that the params files don't have, and the nearest that they have; None if all known."""
    line = item.result
    experiment = params.experiments.get(line.experiment)
    for kind, name, known in (
        ("profile", line.profile, params.profiles),
        ("experiment", line.experiment, params.experiments),
        ("arm", line.arm, experiment.arms if experiment else {}),
    ):
        if name not in known:
            return f"the {kind} {name!r}", nearest(name, known)
    return None


def _refuse_contradictions(item: Trial) -> None:
    line = item.result
    found = find_contradictions(line)
    found += find_cost_contradictions(line, item.cost) if item.cost else []
    found += find_release_contradictions(line, item.release) if item.release else []
    if found:
        remedy = f"`dvc repro -s -f evaluate@{line.experiment}` rewrites it"
        if item.origin is not None:
            remedy = "evidence is never edited: take the line from git again"
        raise RecordError(f"{item.file}, line {item.line}: {line.name}: {'; '.join(found)}; {remedy}")


@dataclass(frozen=True)
class Weights:
    path: str
    size_bytes: int


def find_weights(root: Path, found: Sequence[Trial]) -> tuple[dict[str, Weights], list[str]]:
    """Find weights files by sha256, committed models first; also return notes on files that belong to no result.

    Weights trained here have their digest stored next to them; loading checks it.
    """
    committed = sorted((root / "data" / "models").glob("*.safetensors"))
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in committed}
    held, wanted = {*digests.values()}, {item.result.weights_sha256 for item in found}
    for item in found:
        if item.release and item.release.sha256 not in held:
            raise RecordError(
                f"{item.file}, line {item.line}: no file in data/models has the released weights "
                f"(sha256 {item.release.sha256[:12]}…); restore data/models from git"
            )
        wanted |= {item.release.sha256} if item.release else set()
    runs = {f"{item.result.experiment}/{item.result.run_key}" for item in found}
    for path in sorted(root / "data" / "runs" / run / "weights.safetensors" for run in runs):
        outcome = path.with_name("result.json")
        if path.is_file() and outcome.is_file():
            try:
                digests[path] = str(json.loads(outcome.read_bytes())["weights_sha256"])
            except (ValueError, KeyError, TypeError):
                remedy = f"`dvc repro train@{outcome.parts[-3]}` recreates it"
                raise RecordError(f"{outcome}: damaged; {remedy}") from None
    weights: dict[str, Weights] = {}
    notes = []
    for path, digest in digests.items():
        relative = path.relative_to(root).as_posix()
        if digest in wanted:
            weights.setdefault(digest, Weights(relative, path.stat().st_size))
        else:
            notes.append(f"{relative}: no result has these weights (sha256 {digest[:12]}…); left out")
    return weights, notes


def facts_today(root: Path, params: Params) -> Facts:
    """Read all claims, and evidence and local results as they are now, recorded or not."""
    claims = read_placed_claims(root, params)
    found, _ = find_results(root, params, rivals_only=True)
    return Facts(
        claims=claims,
        params=params,
        findings=read_findings(root / "data" / "findings.jsonl", claims),
        groups=gather(params, select(found)),
        devices={paper.paper: paper.device for paper in read_paper_deviations(params) if paper.device},
        with_power=False,
    )


def read_placed_claims(root: Path, params: Params, faults: list[str] | None = None) -> list[ClaimLine]:
    """Read the rows of `data/claims.csv`, each with its place in the params; add faulty ones to `faults`."""
    faults = [] if faults is None else faults
    listed = root / "data" / "claims.csv"
    placed = place_claims(read_claims(listed, faults), params)
    faults += [f"{listed}: {claim.id}: {claim.reason}" for claim in placed if (claim.reason or "").startswith(FAULT)]
    return placed


def read_paper_deviations(params: Params) -> list[PaperDeviations]:
    return read_deviations({experiment.paper for experiment in params.experiments.values()})


def select(found: Sequence[Trial]) -> list[Trial]:
    """Select one result per replicate and conditions, in the order of `precedence`.

    A result of another model than the arm has now stays in the database but enters no comparison.
    """
    best: dict[tuple[Any, ...], Trial] = {}
    for item in found:
        if not item.is_planned:
            continue
        line = item.result
        cell = line.arm, line.replicate, *group_of(item)
        if cell not in best or precedence(best[cell]) < precedence(item):
            best[cell] = item
    chosen = {item.identity for item in best.values()}
    return [item for item in found if item.identity in chosen]


def group_of(item: Trial) -> tuple[str, str, str]:
    """Return the properties that results judged together have in common."""
    return item.result.experiment, item.result.profile, item.conditions


def precedence(item: Trial) -> tuple[bool, int, bool, str]:
    """Rank results of one replicate under equal conditions.

    Current code comes first, then the most metrics of the user's own, then evidence, then the newest.
    """
    own = sum(row.by is not None for row in item.result.metrics)
    return not item.changed_code, own, item.origin is not None, item.origin.published if item.origin else ""
