"""The next planned look of each claim that trained models decide, the trainings that it lacks and their seconds.

A claim is judged only where a look is complete: replicates 0 … n − 1 of all its arms (`stages.verdicts.looks`).  Only
real, complete data trained as printed decide, so only the profile `paper` counts.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stages.claims import ClaimLine, Judgement
from stages.claims.kinds import TrainedKind, kind_of
from stages.claims.sides import arms_of
from stages.datasets.packed import PackedDataError
from stages.datasets.prepare import count_rows
from stages.evaluation.flops import CountFlops
from stages.params.budget import PlannedRun, plan_runs
from stages.params.experiment import Experiment, Params, ParamsError
from stages.params.schema import nearest
from stages.recording.sources import judge_today
from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER
from stages.run import RunSpec, canonical_json
from stages.runs.equivalence import read_equivalences
from stages.runs.object_store import open_store
from stages.scheduling.engine.groups import MAX_MODELS
from stages.scheduling.planning import cost_of_run, network_of
from stages.scheduling.runner import assignments, find_experiment, find_outcome, read_packed, ways_to
from stages.verdicts import EvidenceLevel, Status, Verdict

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


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What results below the root say today: a judgement for each claim, and the runs that have results that decide."""

    judgements: Sequence[Judgement]
    decided_by: frozenset[RunName]


def standing_today(root: Path, params: Params) -> Standing:
    """What evidence and local results say as they are now, judged as `record` does."""
    judged = judge_today(root, params)
    strongest = [(name, next(iter(of_it), None)) for name, of_it in judged.groups.items()]
    return Standing(
        judgements=judged.judgements,
        decided_by=frozenset(
            RunName(name, arm, trial.result.replicate)
            for name, group in strongest
            if group is not None and group.evidence_level is EvidenceLevel.DECIDES
            for arm, trials in group.arms.items()
            for trial in trials
        ),
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
    kind = kind_of(claim, params.verdicts)
    if not judgement.is_decidable or not isinstance(kind, TrainedKind) or is_settled(judgement.verdict):
        return
    names = fnmatch.filter(params.experiments, claim.experiment or "")
    if len(names) != 1:
        return
    experiment = params.experiments[names[0]]
    arms, looks = arms_behind(claim, experiment), kind.looks(experiment)
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
    if not claim.facts.at_size:
        return arms_of(claim, experiment).arms
    patterns = [pattern for pattern in (claim.arm, claim.baseline_arm) if pattern]  # pairs are of equal size
    return tuple(arm for arm in experiment.arms if any(fnmatch.fnmatchcase(arm, pattern) for pattern in patterns))


def judgements_about(run: RunName, judgements: Iterable[Judgement], params: Params) -> list[Judgement]:
    """Those of claims of trained models that are about the run's arm and look at its replicate, now or later."""
    found = []
    for one in judgements:
        kind = kind_of(one.claim, params.verdicts)
        if not isinstance(kind, TrainedKind) or not fnmatch.fnmatch(run.experiment, one.claim.experiment or ""):
            continue
        experiment = params.experiments[run.experiment]
        is_looked_at = run.replicate < max(kind.looks(experiment), default=0)
        if is_looked_at and run.arm in arms_behind(one.claim, experiment):
            found.append(one)
    return found


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """All runs as printed.  `first`: for each the first run with the same training, itself if none is before it."""

    planned: Mapping[RunName, PlannedRun]
    first: Mapping[RunName, RunName]

    def of(self, runs: Iterable[RunName]) -> frozenset[RunName]:
        """One run for each training among `runs`."""
        return frozenset(self.first[run] for run in runs)

    def with_same(self, runs: Iterable[RunName]) -> frozenset[RunName]:
        """These runs and all that are the same trainings."""
        trainings = self.of(runs)
        return frozenset(run for run, first in self.first.items() if first in trainings)


def as_printed(params: Params) -> Params:
    """The params under the profile whose results decide.

    Raises:
        ParamsError: params.yaml has no such profile.
    """
    if PROFILE not in params.profiles:
        raise ParamsError(f"params.yaml: no profile {PROFILE!r}, whose results alone decide a claim")
    return dataclasses.replace(params, profile_name=PROFILE)


def all_trainings(params: Params) -> Trainings:
    """The grids of all experiments under the profile of `params`."""
    planned, first, known = dict[RunName, PlannedRun](), dict[RunName, RunName](), dict[str, RunName]()
    for name, experiment in params.experiments.items():
        for run in plan_runs(experiment, params.profile, params.datasets[experiment.dataset]):
            place = RunName(name, run.arm, run.replicate_index)
            planned[place] = run
            # The parts of a run key that are known before the data are packed.
            identity = canonical_json([experiment.dataset, run.spec().to_dict()])
            first[place] = known.setdefault(identity, place)
    return Trainings(planned=planned, first=first)


def trained_runs(params: Params, root: Path = Path()) -> frozenset[RunName]:
    """Runs of the profile whose outcome is in the store, those of older code that gives the same included.

    Raises:
        EvidenceError: a line of equivalent codes isn't as it was written.
    """
    store, equivalences = open_store(root), read_equivalences(root)
    stored = {*store.run_keys()}
    return frozenset(
        run
        for run, spec in packed_runs(params, root)
        if find_outcome(store, ways_to(spec, equivalences), stored) is not None
    )


def packed_runs(params: Params, root: Path = Path()) -> Iterator[tuple[RunName, RunSpec]]:
    """Runs of the profile with their specs, of all experiments whose data are packed here as the profile wants them."""
    for name, experiment in params.experiments.items():
        try:
            digest = read_packed(experiment, params, root / "data").digest
        except (PackedDataError, ParamsError):
            continue
        for run in assignments(experiment, params, digest):
            yield RunName(name, run.planned.arm, run.planned.replicate_index), run.spec


def seconds_each(
    trainings: Trainings, runs: Iterable[RunName], params: Params, device: str, count: CountFlops
) -> dict[RunName, float]:
    """Planned seconds of the device for each of `runs`, in the order of the grid; a network's replicates share a stack.

    Raises:
        ParamsError: no rate for such a device.
    """
    if device not in params.rates:
        raise ParamsError(f"params.yaml: rates has no device {device!r}{nearest(device, params.rates)}")
    wanted = frozenset(runs)
    ordered = [run for run in trainings.planned if run in wanted]
    networks = {run: network_of(trainings.planned[run]) for run in ordered}
    alike = Counter(networks.values())
    seconds = {}
    for run in ordered:
        experiment = find_experiment(params, run.experiment)
        source = params.datasets[experiment.dataset]
        rows = count_rows(experiment.dataset, source, is_stand_in=params.profile.data == "embedded")
        together = min(MAX_MODELS, alike[networks[run]])
        rates, scored = {device: params.rates[device]}, params.profile.test_rows or rows.test
        cost = cost_of_run(trainings.planned[run], rows, source, rates, count, scored, together=together)
        seconds[run] = cost.seconds[device]
    return seconds


@dataclass(frozen=True, kw_only=True)
class Brought:
    """A claim that finished runs serve.

    `verdict` is the recorded one if these runs are behind it (`is_judged`), else that of before.  `look`: the next one,
    of which `there` of the `needed` runs are trained; None for a claim that needs no more.
    """

    claim: str
    verdict: str
    is_judged: bool
    runs: tuple[str, ...]
    look: int | None
    planned: int | None
    there: int
    needed: int

    @property
    def is_complete(self) -> bool:
        """True if the look waits for nothing but `record`."""
        return self.look is not None and self.there == self.needed


def runs_named(labels: Collection[str], params: Params) -> list[RunName]:
    """Runs of the params files with these labels; other labels are left out."""
    found = []
    for label in labels:
        name, _, cell = label.partition(".")
        arm, _, replicate = cell.rpartition(".")
        if name in params.experiments and arm in params.experiments[name].arms and replicate.isdecimal():
            found.append(RunName(name, arm, int(replicate)))
    return found


def brought_by(labels: Collection[str], root: Path, params: Params) -> list[Brought]:
    """What these runs, trained as printed, brought: claims with a complete look first, then the nearest to theirs."""
    printed = as_printed(params)
    trainings, standing = all_trainings(printed), standing_today(root, printed)
    finished = trainings.with_same(run for run in runs_named(labels, printed) if run in trainings.first)
    trained = trainings.with_same(standing.decided_by | trained_runs(printed, root) | finished)
    looks = {look.claim.id: look for look in next_looks(standing, printed, trained)}
    served: dict[str, list[RunName]] = {}
    verdicts: dict[str, str] = {}
    for run in sorted(finished):
        for one in judgements_about(run, standing.judgements, printed):
            served.setdefault(one.claim.id, []).append(run)
            verdicts[one.claim.id] = str(one.verdict.status)
    found = [
        _brought(claim, verdicts[claim], runs, looks.get(claim), standing.decided_by) for claim, runs in served.items()
    ]
    return sorted(found, key=lambda one: (not one.is_judged, not one.is_complete, one.needed - one.there))


def _brought(
    claim: str, verdict: str, runs: list[RunName], look: NextLook | None, decided_by: Collection[RunName]
) -> Brought:
    needed = look.runs if look else frozenset[RunName]()
    return Brought(
        claim=claim,
        verdict=verdict,
        is_judged=set(runs) <= set(decided_by),
        runs=tuple(run.label for run in runs),
        look=look.at if look else None,
        planned=look.planned if look else None,
        there=len(needed) - len(look.lacking) if look else 0,
        needed=len(needed),
    )
