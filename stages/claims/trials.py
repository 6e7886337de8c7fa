"""Select the results that count as evidence for a claim, and collect the samples of the arms that it compares.

Only results under equal conditions (protocol and data) are judged together.  If several groups of results qualify, the
strongest is used.  Claims, comparisons and checkpoints share one ranking: results that decide come before results that
only indicate, real data before placeholder data, the profile and data closest to the paper's before others, and this
project's results before those of other labs.  Ties go to the group with more arms, then more results, then more
published results.

Most metrics are stored in a result line or its cost; `epoch_2_test_loss` comes from the curves.  Some metrics describe
a whole arm and choose an epoch from the curves of all folds; their sample is each fold's share of the metric
(`pseudo_values`).
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from stages.claims.lines import ArmSummary, ClaimCost, ClaimLine, Entry, Side
from stages.params.experiment import ArmParams, ExperimentParams, Params
from stages.rules import Rules
from stages.runs.evidence import Provenance, ResultLine, Trial, as_curves
from stages.verdicts import (
    ARM_METRICS,
    ArmMeasurement,
    EvidenceLevel,
    GridPart,
    NoCurves,
    Observation,
    Sample,
    arm_metric,
    evidence_level_of,
)
from stages.verdicts.grid_part import Cell, whole_slices
from stages.verdicts.intervals import Looks, complete_look, looks_of_plan, variance_of

FLOPS_OF_TRAINING = 3
"""A backward pass does the work of two forward passes."""
_PROVENANCES: tuple[Provenance, ...] = ("full", "subset", "embedded")


@dataclass(frozen=True, kw_only=True)
class ResultGroup:
    """Results of one experiment under equal conditions.

    `share` is the fraction of the paper's passes over the training images that these runs were planned to make.
    `of_labs`: the samples' replicates are labs, in which both arms are paired; any number of labs may still come.
    """

    experiment: ExperimentParams
    profile: str
    conditions: str
    evidence_level: EvidenceLevel
    share: float
    arms: Mapping[str, tuple[Trial, ...]]
    of_labs: bool = False

    @property
    def planned(self) -> int | None:
        return None if self.of_labs else self.experiment.replicates

    def looks(self, rules: Rules) -> dict[int, float]:
        """Planned analyses and the share of α of each; the last is at the experiment's number of replicates."""
        return looks_of_plan(rules.looks, self.planned)

    @property
    def lab(self) -> str:
        """Name of the other lab that trained these results; "" for this project's own."""
        return next(iter(self.arms.values()))[0].lab

    @property
    def pairing(self) -> Literal["fold", "none"]:
        return "fold" if self.of_labs or self.experiment.printed.split.kind == "folds" else "none"

    @property
    def folds(self) -> int | None:
        """Number of folds, of which each replicate holds out one; None if replicates aren't folds."""
        return None if self.of_labs or self.pairing == "none" else self.experiment.printed.split.folds

    @property
    def is_of_part_of_the_data(self) -> bool:
        return any(trial.result.data.provenance == "subset" for trials in self.arms.values() for trial in trials)

    @property
    def other_precision(self) -> str:
        """Description of these results' precision if it differs from the paper's; otherwise empty."""
        found = {trial.result.spec["protocol"]["precision"] for trials in self.arms.values() for trial in trials}
        others = sorted(found - {self.experiment.printed.precision})
        return f"{' and '.join(others)} instead of {self.experiment.printed.precision}" if others else ""

    @property
    def follows_plan(self) -> bool:
        return all(trial.follows_plan for trials in self.arms.values() for trial in trials)


def gather(params: Params, trials: Sequence[Trial]) -> dict[str, list[ResultGroup]]:
    """Group each experiment's results by profile and conditions, strongest group first."""
    alike: dict[tuple[str, str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        alike[trial.result.experiment, trial.result.profile, trial.conditions].append(trial)
    groups: dict[str, list[ResultGroup]] = defaultdict(list)
    for (name, _, _), trials_of_it in alike.items():
        groups[name].append(_group(params.experiments[name], trials_of_it, params.verdicts))
    ranks = {name: rank for rank, name in enumerate(params.profiles)}
    return {name: sorted(found, key=lambda group: _strength(group, ranks)) for name, found in groups.items()}


def _strength(group: ResultGroup, ranks: Mapping[str, int]) -> tuple[int | str, ...]:
    """Sort key that puts an experiment's strongest group first."""
    trials = [trial for arm in group.arms.values() for trial in arm]
    provenance = trials[0].result.data.provenance
    return (
        list(EvidenceLevel).index(group.evidence_level),
        provenance == "embedded",
        -ranks[group.profile],
        _PROVENANCES.index(provenance),
        bool(group.lab),  # how many results another lab contributes must not decide whose results are judged
        -len(group.arms),
        -len(trials),
        -sum(trial.origin is not None for trial in trials),
        group.lab,
    )


def _group(experiment: ExperimentParams, trials: Sequence[Trial], rules: Rules) -> ResultGroup:
    arms: dict[str, list[Trial]] = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: trial.result.replicate):
        arms[trial.result.arm].append(trial)
    share = min(passes_share(trial.result, experiment.arms[trial.result.arm], experiment) for trial in trials)
    first = trials[0].result
    # results under an outdated protocol can't decide a claim, but may indicate one
    profile = first.profile if all(trial.follows_plan for trial in trials) else ""
    return ResultGroup(
        experiment=experiment,
        profile=first.profile,
        conditions=trials[0].conditions,
        evidence_level=evidence_level_of(profile=profile, provenance=first.data.provenance, share=share, rules=rules),
        share=share,
        arms={name: tuple(trials) for name, trials in arms.items()},
    )


def passes_share(result: ResultLine, arm: ArmParams, experiment: ExperimentParams) -> float:
    """Return the planned share of the paper's passes over the training images; an early stop counts as complete."""
    protocol = result.spec["protocol"]
    images = result.data.train_images
    seen = min(protocol.get("train_images") or images, images)
    if protocol.get("steps_per_epoch"):
        seen = min(seen, protocol["steps_per_epoch"] * protocol["batch_size"])
    printed = arm.protocol.get("epochs", experiment.printed.epochs)
    return float(protocol["epochs"] * seen / (printed * images))


def choose(groups: Sequence[ResultGroup], arms: Collection[str]) -> ResultGroup | None:
    """Return the first group that has results for all `arms`; None if there is none."""
    return next((group for group in groups if set(arms) <= set(group.arms)), None)


def price(trials: Collection[Trial], params: Params) -> ClaimCost | None:
    """Sum the cost of these results, counting each once; None if no cost is known."""
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


COSTS = ("train_seconds", "samples_per_second", "train_tokens_per_second", "peak_memory_bytes")
_AT_EPOCH = re.compile(r"epoch_([1-9]\d*)_(train_loss|test_loss|test_accuracy)")
"""A metric that a paper prints for a given epoch, counted from 1."""
FAILED_FACTOR = 10.0
"""Multiple of the median error at its size above which a training failed; DAC prints no limit."""
_FAILED_METRIC = "selected_mse"


class NotMeasured(LookupError):
    """No result has this metric; the message says why."""


def measure(metric: str, trials: Sequence[Trial], looks: Looks) -> Sample:
    """Return the sample of one arm's `trials`; a result without the metric counts as a missing replicate.

    Raises:
        NotMeasured: no trial has the metric.
    """
    if metric in ARM_METRICS:
        return _measure_arm(metric, trials, looks)
    values = [(trial, None if trial.result.status == "diverged" else _read(metric, trial)) for trial in trials]
    if all(value is None for _, value in values) and not _all_diverged(trials):
        raise NotMeasured(f"no result holds {metric}")
    kept = [(trial, value) for trial, value in values if value is not None or trial.result.status == "diverged"]
    return Sample(tuple(_replicate(trial, value) for trial, value in kept))


def _replicate(trial: Trial, value: float | None) -> Observation:
    ran_in = frozenset({trial.result.machine_digest})
    return Observation(index=trial.result.replicate, value=value, environments=ran_in)


def _all_diverged(trials: Sequence[Trial]) -> bool:
    return bool(trials) and all(trial.result.status == "diverged" for trial in trials)


def _read(metric: str, trial: Trial) -> float | None:
    if metric in COSTS:
        value = None if trial.cost is None else getattr(trial.cost, metric)
        return None if value is None else float(value)
    found = {row.split: row.value for row in trial.result.metrics if row.metric == metric}
    if found:
        return next(found[split] for split in ("test", "val", "none", "train") if split in found)
    if metric == "error":
        accuracy = _read("accuracy", trial)
        return None if accuracy is None else 1 - accuracy
    if metric == "min_log_mse":
        errors = [loss for loss in as_curves(trial.result.curves).column("test_loss") if loss is not None]
        return math.log(min(errors)) if "log_mse" in {row.metric for row in trial.result.metrics} and errors else None
    if metric == "validation_loss" and trial.result.curves:
        return trial.result.curves[-1].val_loss
    at_epoch = _AT_EPOCH.fullmatch(metric)
    if at_epoch and len(trial.result.curves) >= int(at_epoch[1]):
        return as_curves(trial.result.curves).column(at_epoch[2])[int(at_epoch[1]) - 1]
    return None


def choose_epoch(metric: str, trials: Sequence[Trial], looks: Looks) -> ArmMeasurement:
    """Return the judged trials' metric at the epoch chosen from all of their curves.

    Raises:
        NotMeasured: fewer than two have finished, or their curves lack a quantity that the metric needs.
    """
    finished = [trial.result for trial in judged_of(trials, looks) if trial.result.status == "finished"]
    if len(finished) < 2:
        raise NotMeasured(f"{metric} is one number of all folds, and fewer than two have finished")
    try:
        return arm_metric(metric, [result.curves for result in finished])
    except NoCurves as error:
        raise NotMeasured(str(error)) from None


def judged_of(trials: Sequence[Trial], looks: Looks) -> list[Trial]:
    """Return the judged replicates: those of the last complete analysis, or all if no analysis is complete."""
    n = complete_look((trial.result.replicate for trial in trials), looks)
    return [trial for trial in trials if n is None or trial.result.replicate < n]


def _measure_arm(metric: str, trials: Sequence[Trial], looks: Looks) -> Sample:
    used = judged_of(trials, looks)
    if _all_diverged(used):
        return Sample(tuple(_replicate(trial, None) for trial in used))
    shares = iter(choose_epoch(metric, trials, looks).folds)
    values = [next(shares) if trial.result.status == "finished" else None for trial in used]
    return Sample(tuple(_replicate(trial, value) for trial, value in zip(used, values, strict=True)))


def average(samples: Sequence[Sample]) -> Sample:
    """Average the samples of several arms, replicate by replicate.

    Replicates that some arm lacks are dropped; a replicate that diverged in any arm counts as diverged.
    """
    replicates = []
    for index in sorted(set.intersection(*(set(sample.indices) for sample in samples))):
        found = [replicate for sample in samples for replicate in sample.replicates if replicate.index == index]
        values = [replicate.value for replicate in found if replicate.value is not None]
        value = sum(values) / len(values) if len(values) == len(found) else None
        environments = frozenset().union(*(replicate.environments for replicate in found))
        replicates.append(Observation(index=index, value=value, environments=environments))
    return Sample(tuple(replicates))


def count_failed(trials: Sequence[Trial], peers: Sequence[Trial]) -> tuple[int, int]:
    """Return the number of failed trials and the number of all `trials`.

    A trial fails if it diverged or if its error is far above the median of `trials` and their `peers` of similar size.
    """
    errors = [value for trial in (*trials, *peers) if (value := _read(_FAILED_METRIC, trial)) is not None]
    if not errors:
        raise NotMeasured(f"no result holds {_FAILED_METRIC}, so nothing tells a failed training")
    limit = FAILED_FACTOR * median(errors)
    failed = [
        trial.result.status == "diverged" or (value := _read(_FAILED_METRIC, trial)) is None or value > limit
        for trial in trials
    ]
    return sum(failed), len(trials)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Proposed arms of a claim, each with the baseline that it is compared with (none for a value).

    `cells` has the model arguments of each proposed arm, which give its position in the grid; `grid` has those of all
    planned arms.
    """

    proposed: tuple[str, ...]
    baseline: tuple[str, ...]
    cells: tuple[Cell, ...]
    grid: tuple[Cell, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.proposed, *self.baseline)))

    @property
    def sides(self) -> Mapping[Side, tuple[str, ...]]:
        return {"proposed": self.proposed, "baseline": self.baseline}

    @property
    def planned(self) -> int:
        return len(self.grid)

    def among(self, numbers: Sequence[int]) -> Pairs:
        """Return the pairs with these indices."""
        return Pairs(
            proposed=tuple(self.proposed[number] for number in numbers),
            baseline=tuple(self.baseline[number] for number in numbers) if self.baseline else (),
            cells=tuple(self.cells[number] for number in numbers),
            grid=self.grid,
        )


@dataclass(frozen=True, kw_only=True)
class ClaimSamples:
    """Samples of a claim's proposed and baseline arms in its metric; a value has no baseline.

    The samples are taken from `group`, for the arms in `pairs`; `part` is set if only part of a grid has results.
    `paper_n`: if replicates are labs, the number of labs whose mean varies like the paper's number.
    """

    pairs: Pairs
    group: ResultGroup
    proposed: Sample
    baseline: Sample | None
    trials: tuple[Trial, ...] = ()
    entries: tuple[Entry, ...] = ()
    part: GridPart | None = None
    paper_n: float | None = None

    @property
    def both(self) -> tuple[Sample, Sample]:
        assert self.baseline is not None, "the claim compares nothing"
        return self.proposed, self.baseline

    @property
    def excluded_share(self) -> float:
        """Share of the official test rows that our source lacks."""
        counts = {(trial.result.data.excluded_test_images, trial.result.data.test_images) for trial in self.trials}
        return max((excluded / (used + excluded) for excluded, used in counts if excluded), default=0.0)


def find_group(
    claim: ClaimLine, experiment: ExperimentParams, groups: Sequence[ResultGroup]
) -> tuple[Pairs, ResultGroup | None]:
    """Return the claim's arms and the group with the strongest evidence; for a grid, the arms with results.

    If a grid of pairs has complete slices, only those count, so that pairs within a slice can't be cherry-picked.
    """
    planned = arms_of(claim, experiment)
    if len(planned.proposed) == 1:
        return planned, choose(groups, planned.arms)
    if claim.facts.at_size:  # results show which pairs have equal size
        return planned, next(iter(groups), None)
    for group in groups:
        couples = enumerate(zip(planned.proposed, planned.baseline or planned.proposed, strict=True))
        numbers = [number for number, couple in couples if set(couple) <= set(group.arms)]
        if not numbers:
            continue
        some = planned.among(numbers)
        if planned.baseline and claim.facts.over_pairs:
            some = some.among(whole_slices(some.cells, some.grid) or range(len(numbers)))
        return some, group
    return planned, None


def arms_of(claim: ClaimLine, experiment: ExperimentParams) -> Pairs:
    """Return the arms that match the claim's patterns; in a grid, each with its baseline from the params file."""
    proposed, known = (fnmatch.filter(experiment.arms, arm or "") for arm in (claim.arm, claim.baseline_arm))
    baseline: list[str] = []
    if claim.baseline_arm is not None and len(proposed) == 1:
        (only,) = known
        baseline = [only]
    elif claim.baseline_arm is not None:
        proposed = [arm for arm in proposed if experiment.arms[arm].against in known]
        baseline = [str(experiment.arms[arm].against) for arm in proposed]
    cells = tuple(experiment.arms[arm].model for arm in proposed)
    return Pairs(proposed=tuple(proposed), baseline=tuple(baseline), cells=cells, grid=cells)


def gather_samples(claim: ClaimLine, pairs: Pairs, group: ResultGroup, rules: Rules) -> ClaimSamples:
    """Return the samples of the claim's proposed and baseline arms.

    Raises:
        NotMeasured: no result has the metric.
    """
    samples = {arm: measure(claim.metric, group.arms[arm], group.looks(rules)) for arm in pairs.arms}
    values = {(arm, one.index): one.value for arm, sample in samples.items() for one in sample.replicates}
    used = [
        (trial, side, values[arm, trial.result.replicate])
        for side, arms in pairs.sides.items()
        for arm in dict.fromkeys(arms)
        for trial in group.arms[arm]
        if (arm, trial.result.replicate) in values
    ]
    part = None
    if pairs.baseline and len(pairs.proposed) < pairs.planned:
        couples = zip(pairs.proposed, pairs.baseline, strict=True)
        both = tuple((samples[one], samples[other]) for one, other in couples)
        part = GridPart(pairs=both, cells=pairs.cells, planned=pairs.grid)
    return ClaimSamples(
        pairs=pairs,
        group=group,
        proposed=average([samples[arm] for arm in pairs.proposed]),
        baseline=average([samples[arm] for arm in pairs.baseline]) if pairs.baseline else None,
        trials=tuple({trial.row: trial for trial, _, _ in used}.values()),
        entries=tuple(entry_of(*each) for each in used),
        part=part,
    )


def pool_labs(labs: Sequence[ClaimSamples], claim: ClaimLine) -> ClaimSamples:
    """Return samples in which each lab's mean is one replicate, because a lab's replicates share what sets it apart.

    A lab with a diverged replicate counts as a diverged replicate.  The paper is one more lab: its number varies as the
    labs' means do, plus the variance of its own runs, as printed or measured, beyond that of a lab's mean.
    """

    def means(arms: Sequence[Sample]) -> Sample:
        values = [None if arm.n_diverged else fmean(arm.values) for arm in arms]
        return Sample(
            tuple(
                Observation(index=index, value=value, environments=arm.environments)
                for index, (value, arm) in enumerate(zip(values, arms, strict=True))
            )
        )

    both = [lab.baseline for lab in labs if lab.baseline is not None]
    proposed, paper_n = means([lab.proposed for lab in labs]), None
    whole = [lab.proposed for lab in labs if not lab.proposed.n_diverged]
    if len(whole) > 1 and (between := float(variance_of(proposed.values))):
        within = fmean(float(variance_of(arm.values)) for arm in whole)
        paper = claim.stderr**2 if claim.stderr is not None else within / (claim.n or 1)
        paper_n = between / (between + max(0.0, paper - within / whole[0].n))
    return ClaimSamples(
        pairs=labs[0].pairs,
        group=replace(labs[0].group, arms={}, of_labs=True),
        proposed=proposed,
        baseline=means(both) if both else None,
        trials=tuple(trial for lab in labs for trial in lab.trials),
        paper_n=paper_n,
    )


def entry_of(trial: Trial, side: Side, value: float | None) -> Entry:
    line = trial.result
    return Entry(result=trial.row, side=side, arm=line.arm, replicate=line.replicate, value=value)


def mean_of(sample: Sample, looks: Looks) -> float | None:
    """Return the mean of the judged replicates, or of all if no analysis is complete."""
    n = complete_look(sample.indices, looks)
    used = sample.among(range(n)) if n else sample
    return fmean(used.values) if used.values else None


def summarise_arms(metric: str, arms: Iterable[str], group: ResultGroup, rules: Rules) -> tuple[ArmSummary, ...]:
    """Summarise each of `arms` that has the metric; empty unless the metric describes whole arms."""
    found, looks = [], group.looks(rules)
    for arm in dict.fromkeys(arms) if metric in ARM_METRICS else ():
        trials = group.arms[arm]
        try:
            chosen = choose_epoch(metric, trials, looks)
        except NotMeasured:
            continue
        assert chosen.stderr is not None, "two folds or more have a standard error"
        low, high = chosen.interval()
        costs = {row.metric: row.value for trial in reversed(trials) for row in reversed(trial.result.metrics)}
        found.append(
            ArmSummary(
                experiment=group.experiment.name,
                arm=arm,
                role=group.experiment.arms[arm].role,
                n=len(chosen.folds),
                value=chosen.value,
                stderr=chosen.stderr,
                low=low,
                high=high,
                epoch=chosen.epoch,
                epochs=min(len(trial.result.curves) for trial in judged_of(trials, looks)),
                flops=costs.get("flops_per_image"),
                parameters=costs.get("parameters"),
            )
        )
    return tuple(found)


def summarise_figure(metric: str, groups: Sequence[ResultGroup], rules: Rules) -> tuple[ArmSummary, ...]:
    """Summarise a figure's arms, using the strongest results of each experiment."""
    found: list[ArmSummary] = []
    for name in dict.fromkeys(group.experiment.name for group in groups):
        own = [group for group in groups if group.experiment.name == name]
        for arm, settings in own[0].experiment.arms.items():
            if settings.role in ("baseline", "proposed") and (group := choose(own, [arm])):
                found += summarise_arms(metric, [arm], group, rules)
    return tuple(found)
