"""What each arm of a claim comes to where the metric chooses an epoch: the numbers behind DAC's Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stages.ledger.judgement import ArmSummary
from stages.ledger.measures import NotMeasured, choose_epoch, is_of_arm, judged_of
from stages.ledger.trials import Body, Trial, choose
from stages.rules import Rules

DRAWN = ("baseline", "proposed")
"""Roles of the arms that a paper's figure shows."""


def summarise_arms(metric: str, arms: Iterable[str], body: Body, rules: Rules) -> tuple[ArmSummary, ...]:
    """Those of `arms` that have the metric, each once; none where the metric is a replicate's own."""
    found = [_summarise(metric, arm, body, rules) for arm in dict.fromkeys(arms)] if is_of_arm(metric) else []
    return tuple(summary for summary in found if summary is not None)


def summarise_figure(metric: str, bodies: Sequence[Body], rules: Rules) -> tuple[ArmSummary, ...]:
    """The arms of a figure, of each experiment those results that may say most."""
    found: list[ArmSummary] = []
    for name in dict.fromkeys(body.experiment.name for body in bodies):
        own = [body for body in bodies if body.experiment.name == name]
        drawn = [arm for arm, settings in own[0].experiment.arms.items() if settings.role in DRAWN]
        for arm in drawn:
            body = choose(own, [arm])
            found += summarise_arms(metric, [arm], body, rules) if body else ()
    return tuple(found)


def _summarise(metric: str, arm: str, body: Body, rules: Rules) -> ArmSummary | None:
    trials, looks = body.arms[arm], body.looks(rules)
    try:
        chosen = choose_epoch(metric, trials, looks)
    except NotMeasured:
        return None
    assert chosen.stderr is not None, "of two folds or more"
    low, high = chosen.interval()
    return ArmSummary(
        experiment=body.experiment.name,
        arm=arm,
        role=body.experiment.arms[arm].role,
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
