"""Which results speak for the claims, and the judgements that follow: for the database and for what is asked today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.claims import (
    ClaimLine,
    Judgement,
    PaperDeviations,
    Table,
    gather,
    judge_claims,
    place_claims,
    read_claims,
    read_deviations,
)
from stages.claims.trials import ResultGroup
from stages.params.experiment import Params
from stages.recording.sources import FindingLine, find_results, read_findings
from stages.runs.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The results that speak, the same in groups by experiment with the strongest first, and what follows from them."""

    speaking: Sequence[Trial]
    groups: Mapping[str, Sequence[ResultGroup]]
    judgements: Sequence[Judgement]
    sentences: Sequence[Table]


def judge(
    claims: Sequence[ClaimLine],
    params: Params,
    found: Sequence[Trial],
    *,
    findings: Mapping[str, FindingLine],
    deviations: Sequence[PaperDeviations],
) -> Judged:
    """Judge all claims by those of the results found that speak (`select`)."""
    speaking = select(found)
    groups = gather(params, speaking)
    judgements, sentences = judge_claims(
        claims,
        params,
        findings=findings,
        groups=groups,
        devices={paper.paper: paper.device for paper in deviations if paper.device},
    )
    return Judged(speaking=speaking, groups=groups, judgements=judgements, sentences=sentences)


def judge_today(root: Path, params: Params) -> Judged:
    """Judge by evidence and local results as they are now, recorded or not.

    Raises:
        ClaimsError, EvidenceError, RecordError: a file can't be read or contradicts another.
    """
    claims, deviations = read_placed_claims(root, params), read_paper_deviations(params)
    found, _ = find_results(root, params)
    findings = read_findings(root / "data" / "findings.jsonl", claims)
    return judge(claims, params, found, findings=findings, deviations=deviations)


def read_placed_claims(root: Path, params: Params) -> list[ClaimLine]:
    """The rows of `data/claims.csv`, each with its place in the params.

    Raises:
        ClaimsError: a row can't be read, or contradicts the params.
    """
    listed = root / "data" / "claims.csv"
    return place_claims(listed, read_claims(listed), params)


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
    """What results that are judged together have in common."""
    return item.result.experiment, item.result.profile, item.conditions


def precedence(item: Trial) -> tuple[bool, bool, str]:
    """Sort key of results of one replicate under equal conditions: current code, then evidence, then the newest."""
    return not item.changed_code, item.origin is not None, item.origin.published if item.origin else ""
