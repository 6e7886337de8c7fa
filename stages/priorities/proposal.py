"""The trainings that let us expect most decided claims per second of a device, within a budget.

A look is worth the probability that it decides its claim, beyond that of the look before it, times the claim's weight.
Each pattern of a paper's `argument` is one part of it, and so is all that matches none; the claims of a part share it
equally.  So one order that a paper rests on weighs as much as all cells of a table together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from stages.claims import ClaimLine, PaperDeviations
from stages.claims.kinds import foresee
from stages.evaluation.flops import FlopCounts
from stages.params.experiment import Params
from stages.priorities.looks import (
    NextLook,
    RunName,
    Trainings,
    all_trainings,
    as_printed,
    is_decided,
    looks_left,
    seconds_each,
    standing_today,
    trained_runs,
)
from stages.recording.sources import read_paper_deviations
from stages.verdicts import Power, Verdict

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Step(Generic[Item]):
    """`items` are taken together, for `seconds`; with those of earlier steps they complete the sets `completed`."""

    items: tuple[Item, ...]
    seconds: float
    completed: tuple[str, ...]


def choose(
    wanted: Mapping[str, Iterable[Item]],
    seconds: Mapping[Item, float],
    worth: Mapping[str, float],
    budget: float = math.inf,
) -> list[Step[Item]]:
    """The steps within `budget` seconds, best first; `seconds` has every item in the order of preference among equals.

    A set without items is complete and in no step; one without worth begins no step.
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
        # [i, j]: set i needs nothing that set j hasn't
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


NOBODY_KNOWS = 0.5
"""Chance of a decision where neither the paper nor the metric suggests how far replicates spread."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """A look, its power, the probability that it decides the claim, and the claim's weight."""

    look: NextLook
    power: Power | None
    chance: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """`prospects` by look, the trainings that each lacks, the `seconds` of each training, and the `steps` in order."""

    trainings: Trainings
    prospects: Mapping[str, Prospect]
    lacking: Mapping[str, frozenset[RunName]]
    seconds: Mapping[RunName, float]
    steps: Sequence[Step[RunName]]

    def place(self, run: RunName) -> tuple[int, float]:
        """The number of the step that trains this run, and the run's share of the step's claims; last and 0 if none."""
        training = self.trainings.first.get(run)
        for number, step in enumerate(self.steps):
            if training in step.items:
                return number, len(step.completed) / len(step.items)
        return len(self.steps), 0.0


def propose(
    root: Path, params: Params, device: str, *, budget: float = math.inf, experiments: Collection[str] = ()
) -> Proposal:
    """What to train first as printed, whatever the profile is now, for claims of these experiments (default: all).

    Raises:
        ParamsError: there is no such device, or no profile whose results decide.
        ClaimsError, EvidenceError, RecordError: a file can't be read or contradicts another.
    """
    printed = as_printed(params)
    trainings, standing, counts = all_trainings(printed), standing_today(root, printed), FlopCounts()
    trained = trainings.with_same(standing.decided_by | trained_runs(printed, root))
    claims = [judgement.claim for judgement in standing.judgements]
    verdicts = {judgement.claim.id: judgement.verdict for judgement in standing.judgements}
    weights = weigh(claims, read_paper_deviations(printed))
    prospects, worth, before = dict[str, Prospect](), dict[str, float](), dict[str, float]()
    for look in looks_left(standing, printed, trained):
        claim, verdict = look.claim, verdicts[look.claim.id]
        if experiments and claim.experiment not in experiments:
            continue
        power = foresee(claim, printed, verdict, claims, at=look.at)
        name, chance = f"{claim.id} {look.at}", chance_of_decision(claim, power, verdict)
        prospects[name] = Prospect(look=look, power=power, chance=chance, weight=weights[claim.id])
        worth[name] = max(chance - before.get(claim.id, 0.0), 0.0) * weights[claim.id]
        before[claim.id] = max(chance, before.get(claim.id, 0.0))
    lacking = {name: trainings.of(one.look.lacking) for name, one in prospects.items()}
    seconds = seconds_each(trainings, frozenset().union(*lacking.values()), printed, device, counts.count)
    counts.save()
    steps = choose(lacking, seconds, worth, budget)
    return Proposal(trainings=trainings, prospects=prospects, lacking=lacking, seconds=seconds, steps=steps)


def weigh(claims: Sequence[ClaimLine], papers: Sequence[PaperDeviations]) -> dict[str, float]:
    """The share of a part of its paper's argument that each claim of trained models carries."""
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
    """The probability that the look decides what is open of the claim: the sign of a gain, or else a number.

    A number is as printed or two margins off, each with probability 1/2; a gain is as large as printed.  No look
    refutes a claim whose experiment is a reading of ours.
    """
    if power is None or (power.supported, power.reproduced, power.not_reproduced) == (None, None, None):
        return NOBODY_KNOWS
    if claim.facts.is_order and not is_decided(verdict.status):
        return power.supported or 0.0
    right = power.reproduced if claim.facts.is_order or power.supported is None else power.supported
    wrong = power.not_reproduced if claim.reading is None else None
    return ((right or 0.0) + (wrong or 0.0)) / 2
