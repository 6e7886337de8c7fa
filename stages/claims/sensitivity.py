"""The verdict on a claim under every defensible metric: how far it depends on the choice of one.

A paper can be read to report the last epoch, the one that validation chooses, or the best on the test set.  One of them
decides (the claim's row); the verdicts under the others are shown next to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from stages.claims.judgement import Judgement, Variant
from stages.claims.lines import ClaimLine
from stages.verdicts import Status

DEFENSIBLE: Sequence[Sequence[str]] = (
    ("accuracy", "best_epoch_accuracy"),
    ("error", "min_error", "window_error"),
    ("log_mse", "selected_log_mse", "min_log_mse"),
)
"""Metrics that answer one question; the errors of a table's trainings are all in one unit."""
_NO_TEST = (Status.NOT_TESTED, Status.OTHER_HARDWARE, Status.AGREES, Status.DISAGREES, Status.SHOWN)


def under_other_metrics(judgement: Judgement, judge: Callable[[ClaimLine], Judgement]) -> tuple[Variant, ...]:
    """The verdict of `judge` in each other metric of the same question; empty if results don't decide the claim."""
    claim = judgement.claim
    others = next((group for group in DEFENSIBLE if claim.metric in group), ())
    if judgement.basis != "results" or judgement.verdict.status in _NO_TEST:
        return ()
    judged = [judge(dataclasses.replace(claim, metric=metric)) for metric in others if metric != claim.metric]
    return tuple(
        Variant(
            metric=other.claim.metric,
            status=other.verdict.status,
            size=other.verdict.size.status if other.verdict.size else None,
            ours=other.ours,
            low=other.verdict.low,
            high=other.verdict.high,
        )
        for other in judged
        if other.basis == "results" and other.verdict.status not in _NO_TEST
    )
