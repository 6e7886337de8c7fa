"""The two sides of a claim: which arms it compares, and their samples from the results that may say most."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from stages.experiment import Experiment
from stages.ledger.claims import ClaimLine
from stages.ledger.judgement import Entry, Side
from stages.ledger.measures import average, measure
from stages.ledger.trials import Body, Trial, choose, strength
from stages.rules import Rules
from stages.verdicts import GridPart, Sample
from stages.verdicts.looks import Looks, complete_look


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The arms of a claim: the proposed, and for each the baseline that it is compared with (none for a value)."""

    proposed: tuple[str, ...]
    baseline: tuple[str, ...]
    planned: int

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.proposed, *self.baseline)))


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Samples of a claim's two sides in its metric; a value has no baseline."""

    proposed: Sample
    baseline: Sample | None
    trials: tuple[Trial, ...]
    entries: tuple[Entry, ...]
    part: GridPart | None = None
    """The pairs, where those of a grid have results in part."""

    @property
    def note(self) -> str:
        return "" if self.part is None else f" Over {len(self.part.pairs)} of {self.part.planned} pairs of the grid."


def find_body(claim: ClaimLine, experiment: Experiment, bodies: Sequence[Body]) -> tuple[Pairs, Body | None]:
    """The claim's arms and the body that says most; of a grid of arms, those that have results."""
    planned = arms_of(claim, experiment)
    if len(planned.proposed) == 1:
        return planned, choose(bodies, planned.arms)
    best: tuple[Pairs, Body | None] = (planned, None)
    for body in bodies:
        couples = list(zip(planned.proposed, planned.baseline or planned.proposed, strict=True))
        there = [couple for couple in couples if set(couple) <= set(body.arms)]
        if not there:
            continue
        proposed, baseline = zip(*there, strict=True)
        some = Pairs(proposed=proposed, baseline=baseline if planned.baseline else (), planned=planned.planned)
        if best[1] is None or strength(body, some.arms) > strength(best[1], best[0].arms):
            best = some, body
    return best


def arms_of(claim: ClaimLine, experiment: Experiment) -> Pairs:
    """Arms by the claim's patterns; of a grid, each with the baseline that the params file sets against it."""
    proposed = fnmatch.filter(experiment.arms, claim.arm or "")
    if claim.baseline_arm is None:
        return Pairs(proposed=tuple(proposed), baseline=(), planned=len(proposed))
    if len(proposed) == 1:
        (baseline,) = fnmatch.filter(experiment.arms, claim.baseline_arm)
        return Pairs(proposed=tuple(proposed), baseline=(baseline,), planned=1)
    known = fnmatch.filter(experiment.arms, claim.baseline_arm)
    couples = [(arm, experiment.arms[arm].against) for arm in proposed]
    fitting = [(arm, str(against)) for arm, against in couples if against in known]
    return Pairs(
        proposed=tuple(arm for arm, _ in fitting), baseline=tuple(arm for _, arm in fitting), planned=len(fitting)
    )


def gather_sides(claim: ClaimLine, pairs: Pairs, body: Body, rules: Rules) -> Sides:
    """The claim's samples.

    Raises:
        NotMeasured: no result holds the metric.
    """
    samples = {arm: measure(claim.metric, body.arms[arm], body.looks(rules)) for arm in pairs.arms}
    entries: list[Entry] = []
    trials: dict[int, Trial] = {}
    sides: Mapping[Side, tuple[str, ...]] = {"proposed": pairs.proposed, "baseline": pairs.baseline}
    for side, arms in sides.items():
        for arm in dict.fromkeys(arms):
            values = {replicate.index: replicate.value for replicate in samples[arm].replicates}
            for trial in body.arms[arm]:
                if trial.result.replicate in values:
                    trials[trial.number] = trial
                    entries.append(entry_of(trial, side, values[trial.result.replicate]))
    part = None
    if pairs.baseline and len(pairs.proposed) < pairs.planned:
        couples = zip(pairs.proposed, pairs.baseline, strict=True)
        part = GridPart(tuple((samples[one], samples[other]) for one, other in couples), pairs.planned)
    return Sides(
        proposed=average([samples[arm] for arm in pairs.proposed]),
        baseline=average([samples[arm] for arm in pairs.baseline]) if pairs.baseline else None,
        trials=tuple(trials.values()),
        entries=tuple(entries),
        part=part,
    )


def entry_of(trial: Trial, side: Side, value: float | None) -> Entry:
    line = trial.result
    return Entry(result=trial.number, side=side, arm=line.arm, replicate=line.replicate, value=value)


def mean_of(sample: Sample, looks: Looks) -> float | None:
    """Of the replicates that are judged; of all where no look is complete."""
    n = complete_look(sample.indices, looks)
    used = sample.among(range(n)) if n else sample
    return fmean(used.values) if used.values else None
