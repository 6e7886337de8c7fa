"""Which results count as evidence for a claim, and how strong that evidence is.

Only results under equal conditions (protocol and data) are judged together.  Of several such groups the strongest
speaks, in one order for claims, comparisons and checkpoints: what decides before what indicates, real data before
stand-ins, the profile and the data nearest to what is printed, then more arms, more results, more published ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stages.claims.lines import ClaimCost
from stages.params.experiment import Arm, Experiment, Params
from stages.rules import Rules
from stages.runs.evidence import Provenance, ResultLine, Trial
from stages.verdicts import EvidenceLevel, evidence_level_of
from stages.verdicts.looks import looks_of_plan

FLOPS_OF_TRAINING = 3
"""A backward pass does the work of two forward passes."""
_PROVENANCES: tuple[Provenance, ...] = ("full", "subset", "embedded")


@dataclass(frozen=True, kw_only=True)
class ResultGroup:
    """Results of one experiment under equal conditions; `share`: of the printed passes over the training images."""

    experiment: Experiment
    profile: str
    conditions: str
    evidence_level: EvidenceLevel
    share: float
    arms: Mapping[str, tuple[Trial, ...]]

    def looks(self, rules: Rules) -> dict[int, float]:
        """The planned looks, which end at the experiment's number of replicates."""
        return looks_of_plan(rules.looks, self.experiment.replicates)

    @property
    def pairing(self) -> Literal["fold", "none"]:
        return "fold" if self.experiment.printed.split.kind == "folds" else "none"

    @property
    def folds(self) -> int | None:
        """Parts of the training images, one held out by each replicate; None if replicates aren't folds."""
        return self.experiment.printed.split.folds if self.pairing == "fold" else None

    @property
    def is_of_part_of_the_data(self) -> bool:
        return any(trial.result.data.provenance == "subset" for trials in self.arms.values() for trial in trials)

    @property
    def other_precision(self) -> str:
        """The precision of these results where it isn't the printed one, for a reader; else empty."""
        found = {trial.result.spec["protocol"]["precision"] for trials in self.arms.values() for trial in trials}
        others = sorted(found - {self.experiment.printed.precision})
        return f"{' and '.join(others)} instead of {self.experiment.printed.precision}" if others else ""

    @property
    def follows_plan(self) -> bool:
        return all(trial.follows_plan for trials in self.arms.values() for trial in trials)


def gather(params: Params, trials: Sequence[Trial]) -> dict[str, list[ResultGroup]]:
    """The groups of results of each experiment, the strongest first."""
    alike: dict[tuple[str, str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        alike[trial.result.experiment, trial.result.profile, trial.conditions].append(trial)
    groups: dict[str, list[ResultGroup]] = defaultdict(list)
    for (name, _, _), trials_of_it in alike.items():
        groups[name].append(_group(params.experiments[name], trials_of_it, params.verdicts))
    ranks = {name: rank for rank, name in enumerate(params.profiles)}
    return {name: sorted(found, key=lambda group: _strength(group, ranks)) for name, found in groups.items()}


def _strength(group: ResultGroup, ranks: Mapping[str, int]) -> tuple[int, ...]:
    """Sort key of the groups of an experiment, the strongest first."""
    trials = [trial for arm in group.arms.values() for trial in arm]
    provenance = trials[0].result.data.provenance
    return (
        list(EvidenceLevel).index(group.evidence_level),
        provenance == "embedded",
        -ranks[group.profile],
        _PROVENANCES.index(provenance),
        -len(group.arms),
        -len(trials),
        -sum(trial.origin is not None for trial in trials),
    )


def _group(experiment: Experiment, trials: Sequence[Trial], rules: Rules) -> ResultGroup:
    arms: dict[str, list[Trial]] = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: trial.result.replicate):
        arms[trial.result.arm].append(trial)
    share = min(passes_share(trial.result, experiment.arms[trial.result.arm], experiment) for trial in trials)
    return ResultGroup(
        experiment=experiment,
        profile=trials[0].result.profile,
        conditions=trials[0].conditions,
        evidence_level=_evidence_level(trials, share, rules),
        share=share,
        arms={name: tuple(trials) for name, trials in arms.items()},
    )


def _evidence_level(trials: Sequence[Trial], share: float, rules: Rules) -> EvidenceLevel:
    """The evidence level; an outdated protocol decides nothing, but under the profile `paper` it may still indicate."""
    first = trials[0].result
    as_printed = all(trial.follows_plan for trial in trials)
    return evidence_level_of(
        profile=first.profile if as_printed else "",
        provenance=first.data.provenance,
        share=share,
        rules=rules,
    )


def passes_share(result: ResultLine, arm: Arm, experiment: Experiment) -> float:
    """Training images seen over those that the printed protocol shows, as planned: an early stop counts as complete."""
    protocol = result.spec["protocol"]
    images = result.data.train_images
    seen = min(protocol.get("train_images") or images, images)
    if protocol.get("steps_per_epoch"):
        seen = min(seen, protocol["steps_per_epoch"] * protocol["batch_size"])
    printed = arm.protocol.get("epochs", experiment.printed.epochs)
    return float(protocol["epochs"] * seen / (printed * images))


def choose(groups: Sequence[ResultGroup], arms: Collection[str]) -> ResultGroup | None:
    """The first group that has results of all `arms`; None if there is none."""
    return next((group for group in groups if set(arms) <= set(group.arms)), None)


def price(trials: Collection[Trial], params: Params) -> ClaimCost | None:
    """The joint cost of these results, each counted once; None where no cost is known."""
    costs = [(trial, trial.cost) for trial in trials if trial.cost is not None]
    if not costs:
        return None
    flops = [_training_flops(trial) for trial, _ in costs]
    dollars = [
        params.rates[kind].usd_per_hour * cost.train_seconds / 3600 if kind in params.rates else None
        for trial, cost in costs
        for kind in [str(trial.result.environment.get("device", "")).partition(":")[0]]
    ]
    return ClaimCost(
        device_seconds=sum(cost.train_seconds for _, cost in costs),
        flops=_total(flops),
        peak_memory_bytes=max(cost.peak_memory_bytes for _, cost in costs),
        energy_joules=_total([cost.energy_joules for _, cost in costs]),
        usd=_total(dollars),
    )


def _total(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _training_flops(trial: Trial) -> float | None:
    line = trial.result
    forward = next((row.value for row in line.metrics if row.metric.startswith("flops_per_")), None)
    if forward is None or not line.curves:
        return None
    return FLOPS_OF_TRAINING * forward * line.curves[-1].steps * line.spec["protocol"]["batch_size"]
