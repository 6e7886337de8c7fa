"""Verdicts under other metrics that the paper's words allow."""

import dataclasses

import pytest

from stages.claims import Judgement
from stages.verdicts import Status
from tests.claims.lines import claims, judge, results, trials


def accuracies(last: float, best: float) -> Judgement:
    """Judge a printed last-epoch accuracy on replicates that end at `last` and peak at `best`."""
    claim = claims()["ninformer.table2.c10.vit"]
    spread = [-0.002, -0.001, 0.0, 0.001, 0.002]
    lines = results("ninformer-cifar10", {"vit": [last + d for d in spread]})
    both = [
        dataclasses.replace(
            line,
            metrics=(*line.metrics, dataclasses.replace(line.metrics[0], metric="best_epoch_accuracy", value=best + d)),
        )
        for line, d in zip(lines, spread, strict=True)
    ]
    (judgement,) = judge(claim, entered=trials(both))
    return judgement


def test_verdict_by_another_metric_is_shown() -> None:
    printed = claims()["ninformer.table2.c10.vit"].value
    assert printed is not None
    judgement = accuracies(last=printed, best=printed + 0.05)
    (variant,) = judgement.variants
    assert judgement.verdict.status is Status.REPRODUCED
    assert (variant.metric, variant.status) == ("best_epoch_accuracy", Status.NOT_REPRODUCED)
    assert variant.ours is not None and abs(variant.ours - printed - 0.05) < 1e-9


def test_variant_equals_the_verdict_of_a_claim_with_that_metric() -> None:
    claim = claims()["ninformer.table2.c10.vit"]
    lines = results("ninformer-cifar10", {"vit": [0.598, 0.599, 0.6, 0.601, 0.602]}, metric="best_epoch_accuracy")
    (alone,) = judge(dataclasses.replace(claim, metric="best_epoch_accuracy"), entered=trials(lines))
    (variant,) = accuracies(last=0.5, best=0.6).variants
    assert alone.variants == (), "no result has the last epoch's accuracy"
    assert alone.verdict.status is variant.status
    assert (alone.verdict.low, alone.verdict.high) == pytest.approx((variant.low, variant.high))


def test_undecided_claim_has_no_variants() -> None:
    (judgement,) = judge(claims()["ninformer.table2.c10.vit"])
    assert judgement.verdict.status is Status.NOT_TESTED and judgement.variants == ()
