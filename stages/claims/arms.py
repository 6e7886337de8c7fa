"""The number of each arm of a claim whose metric chooses an epoch: the numbers behind DAC's Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.claims.judgement import ArmSummary
from stages.claims.measures import NotMeasured, choose_epoch, is_of_arm, judged_of
from stages.claims.trials import ResultGroup, choose
from stages.rules import Rules
from stages.runs.trial import Trial

DRAWN = ("baseline", "proposed")
"""Roles of the arms that a paper's figure shows."""


def summarise_arms(metric: str, arms: Iterable[str], group: ResultGroup, rules: Rules) -> tuple[ArmSummary, ...]:
    """Summaries of those of `arms` that have the metric, each once; none where the metric is a replicate's own."""
    found = [_summarise(metric, arm, group, rules) for arm in dict.fromkeys(arms)] if is_of_arm(metric) else []
    return tuple(summary for summary in found if summary is not None)


def summarise_figure(metric: str, groups: Sequence[ResultGroup], rules: Rules) -> tuple[ArmSummary, ...]:
    """Summaries of the arms of a figure, from the results of each experiment that have the strongest evidence."""
    found: list[ArmSummary] = []
    for name in dict.fromkeys(group.experiment.name for group in groups):
        own = [group for group in groups if group.experiment.name == name]
        drawn = [arm for arm, settings in own[0].experiment.arms.items() if settings.role in DRAWN]
        for arm in drawn:
            group = choose(own, [arm])
            found += summarise_arms(metric, [arm], group, rules) if group else ()
    return tuple(found)


def _summarise(metric: str, arm: str, group: ResultGroup, rules: Rules) -> ArmSummary | None:
    trials, looks = group.arms[arm], group.looks(rules)
    try:
        chosen = choose_epoch(metric, trials, looks)
    except NotMeasured:
        return None
    assert chosen.stderr is not None, "of two folds or more"
    low, high = chosen.interval()
    return ArmSummary(
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
        flops=_cost(trials, "flops_per_image"),
        parameters=_cost(trials, "parameters"),
    )


def _cost(trials: Sequence[Trial], metric: str) -> float | None:
    return next((row.value for trial in trials for row in trial.result.metrics if row.metric == metric), None)
