"""Choose the trainings that are expected to decide most claims per second of a device, within a budget.

An interim analysis is worth the probability that it decides its claim, minus that of the analysis before it, times the
claim's weight.  Each pattern of a paper's `argument` is one part of the argument, and all claims without a pattern are
another; the claims of a part share its weight equally.  So one order that a paper rests on weighs as much as all cells
of a table together.

A claim is judged only at a complete analysis: replicates 0 … n − 1 of all its arms (`stages.verdicts.intervals`), under
the profile whose results decide.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from stages.claims import ClaimLine, Judgement, PaperDeviations, judge_claim
from stages.claims.kinds import TrainedKind, foresee, kind_of
from stages.claims.trials import arms_of
from stages.datasets.packed import PackedDataError
from stages.evaluation.flops import CountFlops, FlopCounts
from stages.params.experiment import ExperimentParams, Params, ParamsError, PlannedRun, RunName, plan_runs
from stages.params.schema import nearest
from stages.recording.sources import facts_today, read_paper_deviations
from stages.run import canonical_json
from stages.scheduling.groups import MAX_MODELS, network_of
from stages.scheduling.planning import pricing
from stages.scheduling.runner import Outcomes, keyed_runs, read_packed
from stages.verdicts import EvidenceLevel, Power, Status, Verdict

PROFILE = "paper"
"""The profile whose results decide."""


@dataclass(frozen=True, kw_only=True)
class NextLook:
    """The interim analysis at `at` replicates of a plan that ends at `planned`.

    It needs `runs`; those in `lacking` have neither a deciding result nor an outcome in the store.  If `lacking` is
    empty, the analysis is complete and waits for `record`.
    """

    claim: ClaimLine
    at: int
    planned: int
    runs: frozenset[RunName]
    lacking: frozenset[RunName]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """All claims, a function that judges one of them by the current results, and the runs with deciding results."""

    claims: Sequence[ClaimLine]
    judge: Callable[[ClaimLine], Judgement]
    decided_by: frozenset[RunName]


def standing_today(root: Path, params: Params) -> Standing:
    """Judge by the current evidence and local results, as `record` does, but only the claims that are asked for."""
    facts = facts_today(root, params)
    strongest = [(name, next(iter(of_it), None)) for name, of_it in facts.groups.items()]
    return Standing(
        claims=facts.claims,
        judge=cache(lambda claim: judge_claim(claim, facts)),
        decided_by=frozenset(
            RunName(name, arm, trial.result.replicate)
            for name, group in strongest
            if group is not None and group.evidence_level is EvidenceLevel.DECIDES
            for arm, trials in group.arms.items()
            for trial in trials
        ),
    )


def next_looks(standing: Standing, params: Params, trained: Collection[RunName]) -> list[NextLook]:
    """Return the next analysis of each undecided claim, in the order of the claims; `trained` runs have an outcome."""
    first: dict[str, NextLook] = {}
    for look in looks_left(standing, params, trained):
        first.setdefault(look.claim.id, look)
    return list(first.values())


def looks_left(standing: Standing, params: Params, trained: Collection[RunName]) -> Iterator[NextLook]:
    """Yield all future analyses of the undecided claims; a claim with a size is decided only if its size is, too."""
    there = standing.decided_by | frozenset(trained)
    for claim in standing.claims:
        kind, names = kind_of(claim, params.verdicts), fnmatch.filter(params.experiments, claim.experiment or "")
        if not isinstance(kind, TrainedKind) or len(names) != 1:
            continue
        experiment = params.experiments[names[0]]
        arms, looks = arms_behind(claim, experiment), kind.looks(experiment)
        needed = {
            at: frozenset(RunName(experiment.name, arm, replicate) for arm in arms for replicate in range(at))
            for at in looks
        }
        left = {at: runs for at, runs in needed.items() if not runs <= standing.decided_by}
        if not left:
            continue
        judgement = standing.judge(claim)
        parts = [judgement.verdict, *([judgement.verdict.size] if judgement.verdict.size else [])]
        if not judgement.is_decidable or all(is_decided(part.status) for part in parts):
            continue
        for at, runs in left.items():
            yield NextLook(claim=claim, at=at, planned=max(looks), runs=runs, lacking=runs - there)


def is_decided(status: Status) -> bool:
    from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER  # loads SQLAlchemy

    return status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER)


def arms_behind(claim: ClaimLine, experiment: ExperimentParams) -> tuple[str, ...]:
    """Return the arms of an experiment that a claim about trained models needs."""
    if not claim.facts.at_size:
        return arms_of(claim, experiment).arms
    patterns = [pattern for pattern in (claim.arm, claim.baseline_arm) if pattern]  # pairs are of equal size
    return tuple(arm for arm in experiment.arms if any(fnmatch.fnmatchcase(arm, pattern) for pattern in patterns))


def judgements_about(run: RunName, standing: Standing, params: Params) -> Iterator[Judgement]:
    """Yield the judgements of claims about trained models that use this run, now or in a later analysis."""
    for claim in standing.claims:
        kind = kind_of(claim, params.verdicts)
        if not isinstance(kind, TrainedKind) or not fnmatch.fnmatch(run.experiment, claim.experiment or ""):
            continue
        experiment = params.experiments[run.experiment]
        is_looked_at = run.replicate < max(kind.looks(experiment), default=0)
        if is_looked_at and run.arm in arms_behind(claim, experiment):
            yield standing.judge(claim)


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """All runs as printed.  `first` maps each run to the first run with the same training, possibly itself."""

    planned: Mapping[RunName, PlannedRun]
    first: Mapping[RunName, RunName]

    def of(self, runs: Iterable[RunName]) -> frozenset[RunName]:
        """Return one run for each training among `runs`."""
        return frozenset(self.first[run] for run in runs)

    def with_same(self, runs: Iterable[RunName]) -> frozenset[RunName]:
        """Return these runs and all others with the same trainings."""
        trainings = self.of(runs)
        return frozenset(run for run, first in self.first.items() if first in trainings)


def as_printed(params: Params) -> Params:
    """Return the params under the profile whose results decide."""
    if PROFILE not in params.profiles:
        raise ParamsError(f"params.yaml: no profile {PROFILE!r}, whose results alone decide a claim")
    return dataclasses.replace(params, profile_name=PROFILE)


def all_trainings(params: Params) -> Trainings:
    """Return the runs of all experiments under the profile of `params`."""
    planned, first, known = dict[RunName, PlannedRun](), dict[RunName, RunName](), dict[str, RunName]()
    for experiment in params.experiments.values():
        for run in plan_runs(experiment, params.profile, params.datasets[experiment.dataset]):
            planned[run.name] = run
            # The parts of a run key that are known before the data are packed.
            identity = canonical_json([experiment.dataset, run.spec.to_dict()])
            first[run.name] = known.setdefault(identity, run.name)
    return Trainings(planned=planned, first=first)


def trained_runs(params: Params, root: Path = Path()) -> frozenset[RunName]:
    """Return the profile's runs with an outcome in the store, including outcomes of older equivalent code."""
    outcomes = Outcomes(root)
    return frozenset(run.name for run in packed_runs(params, root) if outcomes.find(run.spec) is not None)


def packed_runs(params: Params, root: Path = Path()) -> Iterator[PlannedRun]:
    """Runs of the profile, of all experiments whose data are packed here as the profile wants them."""
    for experiment in params.experiments.values():
        try:
            digest = read_packed(experiment, params, root / "data").digest
        except (PackedDataError, ParamsError):
            continue
        yield from keyed_runs(experiment, params, digest)


def seconds_each(
    trainings: Trainings, runs: Iterable[RunName], params: Params, device: str, count: CountFlops
) -> dict[RunName, float]:
    """Estimate each run's seconds on the device, in the order of the grid; a network's replicates share a stack."""
    if device not in params.rates:
        raise ParamsError(f"params.yaml: rates has no device {device!r}{nearest(device, params.rates)}")
    wanted = frozenset(runs)
    ordered = [run for run in trainings.planned if run in wanted]
    networks = {run: network_of(trainings.planned[run].spec) for run in ordered}
    alike = Counter(networks.values())
    price = pricing(params, params.profile, {device: params.rates[device]}, count)
    return {
        run: price(trainings.planned[run], min(MAX_MODELS, alike[networks[run]])).seconds[device] for run in ordered
    }


@dataclass(frozen=True, kw_only=True)
class Brought:
    """A claim that uses finished runs.

    `verdict` is the recorded one if it is based on these runs (`is_judged`), otherwise the previous one.  `look` is the
    next analysis, for which `there` of the `needed` runs are trained; None if the claim needs no more runs.
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
        """True if the analysis only waits for `record`."""
        return self.look is not None and self.there == self.needed


def brought_by(labels: Collection[str], root: Path, params: Params) -> list[Brought]:
    """Return the claims that use these runs, if trained as printed: complete analyses first, then the nearest."""
    printed = as_printed(params)
    trainings, standing = all_trainings(printed), standing_today(root, printed)
    finished = trainings.with_same(run for run in trainings.first if run.label in labels)
    trained = trainings.with_same(standing.decided_by | trained_runs(printed, root) | finished)
    looks = {look.claim.id: look for look in next_looks(standing, printed, trained)}
    served: dict[str, list[RunName]] = {}
    verdicts: dict[str, str] = {}
    for run in sorted(finished):
        for one in judgements_about(run, standing, printed):
            served.setdefault(one.claim.id, []).append(run)
            verdicts[one.claim.id] = str(one.verdict.status)
    found = []
    for claim, runs in served.items():
        look = looks.get(claim)
        needed = look.runs if look else frozenset[RunName]()
        found.append(
            Brought(
                claim=claim,
                verdict=verdicts[claim],
                is_judged=set(runs) <= standing.decided_by,
                runs=tuple(run.label for run in runs),
                look=look.at if look else None,
                planned=look.planned if look else None,
                there=len(needed) - len(look.lacking) if look else 0,
                needed=len(needed),
            )
        )
    return sorted(found, key=lambda one: (not one.is_judged, not one.is_complete, one.needed - one.there))


Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Step(Generic[Item]):
    """Items taken together, for `seconds`; with those of earlier steps they complete the sets `completed`."""

    items: tuple[Item, ...]
    seconds: float
    completed: tuple[str, ...]


def choose(
    wanted: Mapping[str, Iterable[Item]],
    seconds: Mapping[Item, float],
    worth: Mapping[str, float],
    budget: float = math.inf,
) -> list[Step[Item]]:
    """Choose steps within `budget` seconds, best first; ties go to the items that come first in `seconds`.

    A set without items is complete and in no step.  A set without worth never starts a step.
    """
    items, names = list(seconds), [name for name, needs in wanted.items() if list(needs)]
    place = {item: number for number, item in enumerate(items)}
    needs = np.zeros((len(names), len(items)), dtype=np.float32)  # [sets, items]
    for number, name in enumerate(names):
        needs[number, [place[item] for item in wanted[name]]] = 1
    worths = np.array([worth[name] for name in names])
    costs, steps, left = np.array([seconds[item] for item in items]), list[Step[Item]](), budget
    while len(names):
        prices = needs @ costs
        # [i, j]: set j contains all items of set i
        within = needs @ (1 - needs).T == 0
        rates = np.where(prices <= left, worths @ within / np.maximum(prices, 1e-9), 0.0)
        best = int(np.argmax(rates))
        if not rates[best]:
            break
        taken, done = needs[best] > 0, within[:, best]
        steps.append(
            Step(
                items=tuple(item for item, is_taken in zip(items, taken, strict=True) if is_taken),
                seconds=float(prices[best]),
                completed=tuple(name for name, is_done in zip(names, done, strict=True) if is_done),
            )
        )
        left -= float(prices[best])
        names = [name for name, is_done in zip(names, done, strict=True) if not is_done]
        needs, worths = needs[~done] * ~taken, worths[~done]
    return steps


UNKNOWN_CHANCE = 0.5
"""Chance of a decision if neither the paper nor the metric suggests the spread of replicates."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """An analysis, its power, the probability that it decides the claim, and the claim's weight.

    Power and probability are None and 0 if it takes more than the whole budget.
    """

    look: NextLook
    power: Power | None
    chance: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Analyses by name (`prospects`), the trainings each is `lacking`, `seconds` per training, and ordered `steps`."""

    prospects: Mapping[str, Prospect]
    lacking: Mapping[str, frozenset[RunName]]
    seconds: Mapping[RunName, float]
    steps: Sequence[Step[RunName]]

    @property
    def chosen(self) -> dict[str, list[str]]:
        """Labels `<arm>.<replicate>` of the trainings in all steps, by experiment."""
        found = defaultdict[str, list[str]](list)
        for run in self._places:
            found[run.experiment].append(run.cell)
        return found

    def order(self, runs: Sequence[PlannedRun], together: int) -> float:
        """Return the number of the first step that trains one of these runs, as a sort key of their group."""
        return min(self._places.get(run.name, len(self._places)) for run in runs)

    @cached_property
    def _places(self) -> dict[RunName, int]:
        return {run: number for number, step in enumerate(self.steps) for run in step.items}


def propose(
    root: Path, params: Params, device: str, *, budget: float = math.inf, experiments: Collection[str] = ()
) -> Proposal:
    """Propose what to train first as printed, under any profile, for claims of these experiments (default: all)."""
    printed = as_printed(params)
    trainings, standing, counts = all_trainings(printed), standing_today(root, printed), FlopCounts()
    trained = trainings.with_same(standing.decided_by | trained_runs(printed, root))
    weights = weigh(standing.claims, read_paper_deviations(printed))
    looks = {
        f"{look.claim.id} {look.at}": look
        for look in looks_left(standing, printed, trained)
        if not experiments or look.claim.experiment in experiments
    }
    lacking = {name: trainings.of(look.lacking) for name, look in looks.items()}
    seconds = seconds_each(trainings, frozenset().union(*lacking.values()), printed, device, counts.count)
    prospects, worth, before = dict[str, Prospect](), dict[str, float](), dict[str, float]()
    for name, look in looks.items():
        claim, verdict = look.claim, standing.judge(look.claim).verdict
        power, chance = None, 0.0
        if math.fsum(seconds[run] for run in lacking[name]) <= budget:  # otherwise it is never chosen
            power = foresee(claim, printed, verdict, standing.claims, at=look.at)
            chance = chance_of_decision(claim, power, verdict)
        prospects[name] = Prospect(look=look, power=power, chance=chance, weight=weights[claim.id])
        worth[name] = max(chance - before.get(claim.id, 0.0), 0.0) * weights[claim.id]
        before[claim.id] = max(chance, before.get(claim.id, 0.0))
    counts.save()
    steps = choose(lacking, seconds, worth, budget)
    return Proposal(prospects=prospects, lacking=lacking, seconds=seconds, steps=steps)


def weigh(claims: Sequence[ClaimLine], papers: Sequence[PaperDeviations]) -> dict[str, float]:
    """Return each trained claim's share of its part of the paper's argument."""
    arguments = {paper.paper: paper.argument for paper in papers}
    parts = {}
    for claim in claims:
        if claim.facts.by == "training":
            patterns = arguments.get(claim.paper, ())
            found = (place for place, pattern in enumerate(patterns) if fnmatchcase(claim.id, pattern))
            parts[claim.id] = claim.paper, next(found, len(patterns))
    sizes = Counter(parts.values())
    return {name: 1 / sizes[part] for name, part in parts.items()}


def chance_of_decision(claim: ClaimLine, power: Power | None, verdict: Verdict) -> float:
    """Return the probability that the analysis decides what is open: the sign of a gain, otherwise a number.

    We assume that a number is as printed or two margins off, each with probability 1/2, and that a gain is as large as
    printed.  No analysis refutes a claim whose experiment is our reading.
    """
    if power is None or (power.supported, power.reproduced, power.not_reproduced) == (None, None, None):
        return UNKNOWN_CHANCE
    if claim.facts.is_order and not is_decided(verdict.status):
        return power.supported or 0.0
    right = power.reproduced if claim.facts.is_order or power.supported is None else power.supported
    wrong = power.not_reproduced if claim.reading is None else None
    return ((right or 0.0) + (wrong or 0.0)) / 2
