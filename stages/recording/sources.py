"""The inputs of `record`: result lines, evidence, claims and weights, each checked against the params files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from stages.claims import (
    ClaimLine,
    JudgedTable,
    Judgement,
    PaperDeviations,
    gather,
    judge_claims,
    judge_labs,
    place_claims,
    read_claims,
    read_deviations,
)
from stages.claims.kinds import Facts
from stages.claims.schema import FAULT
from stages.claims.trials import ResultGroup
from stages.faults import Mistake
from stages.papers.finding import Finding
from stages.params.experiment import Params, plan_runs
from stages.results import WORD_OF, Word
from stages.run import STRICT, ModelSpec, OptimizerSpec, Protocol, Replicate, RunSpec, canonical_json
from stages.runs.consistency import (
    compare_canaries,
    find_contradictions,
    find_cost_contradictions,
    find_release_contradictions,
)
from stages.runs.equivalence import Equivalences, read_equivalences
from stages.runs.evidence import LABS, CostLine, EvidenceLine, ResultLine, Trial, evidence_files, read_lines
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
    """Findings by claim; none if `analyse` has not run.  `are_all`: no row of a claim was left out."""
    adapter, known = TypeAdapter(FindingLine), {claim.id for claim in claims}
    findings: dict[str, FindingLine] = {}
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            finding = adapter.validate_json(line)
        except ValidationError as error:
            raise RecordError(
                f"{path}, line {number}: {error.errors()[0]['msg']}; run `python -m stages.analyse`"
            ) from None
        if finding.claim not in known and are_all:
            raise RecordError(f"{path}, line {number}: no claim {finding.claim} in data/claims.csv")
        findings[finding.claim] = finding
    return findings


def read_hours(path: Path) -> dict[str, dict[str, float]]:
    """The hours of one training of each `<experiment>.<arm>`, by device; none if `analyse` has not run."""
    if not path.is_file():
        return {}
    try:
        return TypeAdapter(dict[str, dict[str, float]]).validate_json(path.read_bytes())
    except ValidationError as error:
        raise RecordError(f"{path}: {error.errors()[0]['msg']}; run `python -m stages.analyse`") from None


def find_results(
    root: Path, params: Params, *, evidence_only: bool = False, offered: Path | None = None
) -> tuple[list[Trial], list[str]]:
    """Every result below `data/evidence` and `data/results`, in the order of the params files, evidence first.

    `offered`: a lab's file, read instead of the one with the same name that was accepted earlier.
    A local result that was published appears once, as evidence.  Results of a profile that params.yaml doesn't have
    are left out, since their strength is unknown.  The notes, also returned, say how many.
    """
    left_out: Counter[tuple[Path, str]] = Counter()
    found: dict[tuple[str, str, str, str, int], Trial] = {}
    local = [] if evidence_only else _local(root / "data" / "results")
    for item in [*_evidence(root / "data" / "evidence", offered), *local]:
        _check_names(item, params)
        if item.result.profile not in params.profiles:
            left_out[item.file, item.result.profile] += 1
            continue
        _refuse_contradictions(item)
        if item.identity in found:
            if found[item.identity].source == item.source:
                raise RecordError(
                    f"{item.file}: {item.name}, run {item.result.run_key[:12]}, occurs twice: it is also in "
                    f"{found[item.identity].file}, line {found[item.identity].line}"
                )
            continue
        found[item.identity] = item
    equivalences = read_equivalences(root)
    marked = _mark(found.values(), params, equivalences)
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
    ] + [
        f"{'' if file.parent.name == 'results' else PLAN_CHANGED}{file}: {count} results of the profile {profile!r} "
        f"left out: params.yaml has no such profile; known: {', '.join(params.profiles)}"
        for (file, profile), count in left_out.items()
    ]
    canaries = compare_canaries(item.result for item in marked)
    return sorted(marked, key=order), [*canaries, *notes, *equivalences.loose_ends()]


def _mark(found: Iterable[Trial], params: Params, equivalences: Equivalences) -> list[Trial]:
    """The results, each marked with what has changed since: its arm's model or own protocol fields, its code."""
    changes: dict[str, tuple[str, ...]] = {}
    planned: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    marked = []
    for item in found:
        spec, experiment = item.result.spec, params.experiments[item.result.experiment]
        code = canonical_json([spec["code"], spec["model"], spec["protocol"]])
        if code not in changes:
            changes[code] = tuple(changed_modules(spec))
        changed = changes[code]
        lines = equivalences.today(spec, item.result.environment) if changed else ()
        asked = experiment.name, item.result.profile
        if asked not in planned:  # model, protocol and replicates that the params currently give each arm
            planned[asked] = {}
            source, profile = params.datasets[experiment.dataset], params.profiles[item.result.profile]
            for run in plan_runs(experiment, profile, source, every_role=True):
                plan = run.spec.to_dict()
                held = planned[asked].setdefault(run.name.arm, {**plan, "replicates": {}})
                held["replicates"][run.name.replicate] = plan["replicate"]
        today = planned[asked][item.result.arm]
        seeded = [today["replicates"].get(item.result.replicate, {})]
        if item.lab and seeded[0]:
            seeded.append({**seeded[0], "seed": lab_seeds(item.lab, [seeded[0]["seed"]])[0]})
        is_planned = spec["model"] == today["model"] and all(
            spec["protocol"].get(field) == today["protocol"].get(field) for field in experiment.varied
        )
        marked.append(
            dataclasses.replace(
                item,
                is_planned=is_planned,
                follows_plan=is_planned
                and _DEFAULTS | spec["protocol"] == _DEFAULTS | today["protocol"]
                and spec.get("replicate") in seeded,
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
"""The default values of a protocol: an older spec lacks fields that were added since."""


def lab_seeds(lab: str, seeds: Iterable[int]) -> list[int]:
    """Seeds with which a lab repeats the planned `seeds`: its name fixes them, so that it can't choose among many."""
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


def _check_names(item: Trial, params: Params) -> None:
    line = item.result
    experiment = params.experiments.get(line.experiment)
    arms = experiment.arms if experiment else {}
    for kind, name, known in (("experiment", line.experiment, params.experiments), ("arm", line.arm, arms)):
        if name not in known:
            raise RecordError(f"{item.file}: {kind} {name!r} is not in the params files; known: {', '.join(known)}")
    for part in ("model", "protocol", "code"):
        if part not in line.spec:
            raise RecordError(f"{item.file}: the spec of run {line.run_key[:12]} has no {part}")


def _refuse_contradictions(item: Trial) -> None:
    line = item.result
    found = find_contradictions(line)
    found += find_cost_contradictions(line, item.cost) if item.cost else []
    found += find_release_contradictions(line, item.release) if item.release else []
    if found:
        remedy = f"`dvc repro -s -f evaluate@{line.experiment}` rewrites it"
        raise RecordError(
            f"{item.file}, line {item.line}: {line.experiment}.{line.arm}.{line.replicate}: {'; '.join(found)}; "
            + (remedy if item.origin is None else "evidence is never edited: take the line from git again")
        )


@dataclass(frozen=True)
class Weights:
    path: str
    size_bytes: int


def find_weights(root: Path, found: Sequence[Trial]) -> tuple[dict[str, Weights], list[str]]:
    """Weights files by sha256, committed models first, and those that belong to no result.

    Weights trained here have their digest stored with them; loading checks it.
    """
    wanted = {item.result.weights_sha256 for item in found if item.result.weights_sha256}
    wanted |= {item.release.sha256 for item in found if item.release}
    committed = sorted((root / "data" / "models").glob("*.safetensors"))
    runs = {f"{item.result.experiment}/{item.result.run_key}" for item in found}
    local = sorted(root / "data" / "runs" / run / "weights.safetensors" for run in runs)
    weights: dict[str, Weights] = {}
    notes = []
    digests: list[tuple[Path, str | None]] = [
        (path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in committed
    ]
    held = {digest for _, digest in digests}
    for item in found:
        if item.release and item.release.sha256 not in held:
            raise RecordError(
                f"{item.file}, line {item.line}: no file in data/models has the released weights "
                f"(sha256 {item.release.sha256[:12]}…); restore data/models from git"
            )
    digests += [(path, _trained_digest(path.with_name("result.json"))) for path in local if path.is_file()]
    for path, digest in digests:
        relative = path.relative_to(root).as_posix()
        if digest in wanted:
            weights.setdefault(digest, Weights(relative, path.stat().st_size))
        elif digest is not None:
            notes.append(f"{relative}: no result has these weights (sha256 {digest[:12]}…); left out")
    return weights, notes


def _trained_digest(outcome: Path) -> str | None:
    """The recorded digest; None if the run's folder isn't complete."""
    try:
        return str(json.loads(outcome.read_bytes())["weights_sha256"]) if outcome.is_file() else None
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{outcome}: damaged; `dvc repro train@{outcome.parts[-3]}` recreates it") from None


@dataclass(frozen=True, kw_only=True)
class JudgedResults:
    """The results that speak, the same in groups by experiment with the strongest first, and what follows from them.

    `by_lab`: by claim, what each lab's results say alone; only of claims for which another lab has results.  `pooled`:
    what the labs' means say together.
    """

    speaking: Sequence[Trial]
    groups: Mapping[str, Sequence[ResultGroup]]
    judgements: Sequence[Judgement]
    sentences: Sequence[JudgedTable]
    by_lab: Mapping[str, Sequence[Mapping[str, Any]]]
    pooled: Mapping[str, Mapping[str, Any]]


def judge(
    claims: Sequence[ClaimLine],
    params: Params,
    found: Sequence[Trial],
    *,
    findings: Mapping[str, FindingLine],
    deviations: Sequence[PaperDeviations],
    with_power: bool = True,
) -> JudgedResults:
    """Judge all claims by those of the results found that speak (`select`)."""
    speaking = select(found)
    groups = gather(params, speaking)
    devices = {paper.paper: paper.device for paper in deviations if paper.device}
    judgements, sentences = judge_claims(
        claims, params, findings=findings, groups=groups, devices=devices, with_power=with_power
    )
    facts = Facts(
        claims=claims, params=params, findings=findings, groups=groups, devices=devices, with_power=with_power
    )
    by_lab = defaultdict[str, list[Mapping[str, Any]]](list)
    labs = sorted({group.lab for of_it in groups.values() for group in of_it})
    for lab in labs if any(labs) else ():
        alone = {name: [group for group in of_it if group.lab == lab] for name, of_it in groups.items()}
        for one in judge_claims(claims, params, findings={}, groups=alone, devices=devices, with_power=False)[0]:
            if one.is_by_training and one.entries:
                by_lab[one.claim.id].append({"lab": lab} | _row_of(one))
    others = {claim: rows for claim, rows in by_lab.items() if any(row["lab"] for row in rows)}
    pooled = {claim.id: judge_labs(claim, facts) for claim in claims if len(others.get(claim.id, ())) > 1}
    return JudgedResults(
        speaking=speaking,
        groups=groups,
        judgements=judgements,
        sentences=sentences,
        by_lab=others,
        pooled={claim: _row_of(judgement) for claim, judgement in pooled.items() if judgement is not None},
    )


def _row_of(judgement: Judgement) -> dict[str, Any]:
    verdict = judgement.verdict
    numbers = {name: getattr(verdict, name) for name in ("estimate", "low", "high", "confidence", "n")}
    holds = WORD_OF[verdict.status] is Word.HOLDS
    return {"status": str(verdict.status), "holds": holds, "ours": judgement.ours} | numbers


def judge_today(root: Path, params: Params) -> JudgedResults:
    """Judge by evidence and local results as they are now, recorded or not, without the plans' power."""
    claims, deviations = read_placed_claims(root, params), read_paper_deviations(params)
    found, _ = find_results(root, params)
    findings = read_findings(root / "data" / "findings.jsonl", claims)
    return judge(claims, params, found, findings=findings, deviations=deviations, with_power=False)


def read_placed_claims(root: Path, params: Params, faults: list[str] | None = None) -> list[ClaimLine]:
    """The rows of `data/claims.csv`, each with its place in the params; add what is wrong with some to `faults`."""
    faults = [] if faults is None else faults
    listed = root / "data" / "claims.csv"
    placed = place_claims(read_claims(listed, faults), params)
    faults += [f"{listed}: {claim.id}: {claim.reason}" for claim in placed if (claim.reason or "").startswith(FAULT)]
    return placed


def read_paper_deviations(params: Params) -> list[PaperDeviations]:
    return read_deviations({experiment.paper for experiment in params.experiments.values()})


def select(found: Sequence[Trial]) -> list[Trial]:
    """One result per replicate and conditions, of the arm's current model: unchanged code first, then evidence.

    A result of another model (the arm's arguments were edited since) stays in the database but enters no comparison.
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
    """Properties that results judged together have in common."""
    return item.result.experiment, item.result.profile, item.conditions


def precedence(item: Trial) -> tuple[bool, bool, str]:
    """Sort key of results of one replicate under equal conditions: current code, then evidence, then the newest."""
    return not item.changed_code, item.origin is not None, item.origin.published if item.origin else ""
