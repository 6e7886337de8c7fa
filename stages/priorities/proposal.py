"""The trainings that bring most claims to their next look per second of a device, within a budget."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.evaluation.flops import FlopCounts
from stages.params.experiment import Params
from stages.priorities.choice import Step, choose
from stages.priorities.looks import NextLook, RunName, next_looks, standing_today
from stages.priorities.trainings import Trainings, all_trainings, as_printed, seconds_each, trained_runs


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """`looks` by claim, what each lacks as one run a training, `seconds` of each of these, and the `steps` in order."""

    trainings: Trainings
    looks: Mapping[str, NextLook]
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
    looks = {
        look.claim.id: look
        for look in next_looks(standing, printed, trained)
        if not experiments or look.claim.experiment in experiments
    }
    lacking = {name: trainings.of(look.lacking) for name, look in looks.items()}
    seconds = seconds_each(trainings, frozenset().union(*lacking.values()), printed, device, counts.count)
    counts.save()
    return Proposal(
        trainings=trainings, looks=looks, lacking=lacking, seconds=seconds, steps=choose(lacking, seconds, budget)
    )
