"""The next planned look of each claim that trained models decide, and the trainings that it lacks.

A claim is judged only where a look is complete: replicates 0 … n − 1 of all its arms (`stages.verdicts.looks`).  Only
real, complete data trained as printed decide, so only the profile `paper` counts.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stages.claims import ClaimLine, Judgement
from stages.claims.lines import CROSSOVERS
from stages.claims.sides import arms_of
from stages.claims.trained import JUDGES
from stages.claims.trials import ResultGroup
from stages.params.experiment import Experiment, Params
from stages.recording.judged import judge_today
from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER
from stages.verdicts import EvidenceLevel, Status, Verdict
from stages.verdicts.looks import Looks, looks_from, looks_of_plan

PROFILE = "paper"
"""The profile whose results decide."""


class RunName(NamedTuple):
    """A cell of an experiment's grid."""

    experiment: str
    arm: str
    replicate: int

    @property
    def label(self) -> str:
        return f"{self.experiment}.{self.arm}.{self.replicate}"


@dataclass(frozen=True, kw_only=True)
class NextLook:
    """The look at `at` replicates of a plan that ends at `planned`.

    `runs`: all that it needs, of which `lacking` have neither a result that decides nor an outcome in the store; where
    none lacks, the look is complete and waits for `record`.
    """

    claim: ClaimLine
    at: int
    planned: int
    runs: frozenset[RunName]
    lacking: frozenset[RunName]

    @property
    def is_last(self) -> bool:
        return self.at == self.planned


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What results below the root say today: a judgement for each claim, and the runs that have results that decide."""

    judgements: Sequence[Judgement]
    decided_by: frozenset[RunName]


def standing_today(root: Path, params: Params) -> Standing:
    """What evidence and local results say as they are now, judged as `record` does.

    Raises:
        ClaimsError, EvidenceError, RecordError: a file can't be read or contradicts another.
    """
    judged = judge_today(root, params)
    return Standing(judgements=judged.judgements, decided_by=_deciding(judged.groups))


def _deciding(groups: Mapping[str, Sequence[ResultGroup]]) -> frozenset[RunName]:
    """The runs of each experiment's strongest group of results, where these decide."""
    strongest = [(name, next(iter(of_it), None)) for name, of_it in groups.items()]
    return frozenset(
        RunName(name, arm, trial.result.replicate)
        for name, group in strongest
        if group is not None and group.evidence_level is EvidenceLevel.DECIDES
        for arm, trials in group.arms.items()
        for trial in trials
    )


def next_looks(standing: Standing, params: Params, trained: Collection[RunName]) -> list[NextLook]:
    """The next look of each claim that isn't decided yet, in the order of the claims; `trained` have an outcome."""
    first: dict[str, NextLook] = {}
    for look in looks_left(standing, params, trained):
        first.setdefault(look.claim.id, look)
    return list(first.values())


def looks_left(standing: Standing, params: Params, trained: Collection[RunName]) -> list[NextLook]:
    """All looks still to come of the same claims."""
    there = standing.decided_by | frozenset(trained)
    return [
        look for judgement in standing.judgements for look in _looks_left(judgement, params, standing.decided_by, there)
    ]


def _looks_left(
    judgement: Judgement, params: Params, judged: Collection[RunName], there: Collection[RunName]
) -> Iterator[NextLook]:
    claim = judgement.claim
    if not judgement.is_decidable or claim.kind not in JUDGES or is_settled(judgement.verdict):
        return
    names = fnmatch.filter(params.experiments, claim.experiment or "")
    if len(names) != 1:
        return
    experiment = params.experiments[names[0]]
    arms, looks = arms_behind(claim, experiment), looks_of(claim, experiment, params)
    for at in looks:
        runs = frozenset(RunName(experiment.name, arm, replicate) for arm in arms for replicate in range(at))
        if not runs <= set(judged):
            yield NextLook(
                claim=claim,
                at=at,
                planned=max(looks),
                runs=runs,
                lacking=runs - set(there),
            )


def is_settled(verdict: Verdict) -> bool:
    """True if the verdict, and that of the size where there is one, is for or against the paper."""
    parts = [verdict.status, *([verdict.size.status] if verdict.size else [])]
    return all(is_decided(status) for status in parts)


def is_decided(status: Status) -> bool:
    return status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER)


def arms_behind(claim: ClaimLine, experiment: Experiment) -> tuple[str, ...]:
    """The arms of an experiment that a claim of trained models needs."""
    if claim.kind not in CROSSOVERS:
        return arms_of(claim, experiment).arms
    patterns = [pattern for pattern in (claim.arm, claim.baseline_arm) if pattern]  # pairs are of equal size
    return tuple(arm for arm in experiment.arms if any(fnmatch.fnmatchcase(arm, pattern) for pattern in patterns))


def looks_of(claim: ClaimLine, experiment: Experiment, params: Params) -> Looks:
    """The looks at which a claim of trained models is judged, ending with the plan; none where the plan is too short.

    As the judges have them: a number needs its minimum of replicates, a share of failed trainings the whole grid.
    """
    rules, planned = params.verdicts, experiment.replicates
    if claim.kind == "failures":
        return {planned: 1.0}
    is_number = claim.kind in ("value", "ratio", "gap", "uniform", "noise") or (
        claim.kind == "observed" and not claim.better
    )
    if not is_number:
        return looks_of_plan(rules.looks, planned)
    has_error = claim.kind == "observed" or (claim.kind in ("value", "gap") and claim.stderr is not None)
    return looks_of_plan(looks_from(rules.looks, rules.minimum_with_error if has_error else rules.minimum), planned)


def judgements_about(run: RunName, judgements: Iterable[Judgement], params: Params) -> list[Judgement]:
    """Those of claims of trained models that are about the run's arm and look at its replicate, now or later."""
    found = []
    for one in judgements:
        if one.claim.kind not in JUDGES or run.experiment not in fnmatch.filter(
            [run.experiment], one.claim.experiment or ""
        ):
            continue
        experiment = params.experiments[run.experiment]
        is_looked_at = run.replicate < max(looks_of(one.claim, experiment, params), default=0)
        if is_looked_at and run.arm in arms_behind(one.claim, experiment):
            found.append(one)
    return found
