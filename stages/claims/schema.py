"""Checks of a claim's row against the metrics that trainings give and against its experiment.

A row with a mistake can accuse a paper: 99.05 instead of 0.9905, or an accuracy of which lower is better.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from stages.claims.lines import ClaimLine
from stages.params.experiment import Params
from stages.params.schema import nearest

_METRICS = (  # pattern of names, unit, which way is better
    (
        r"accuracy|best_epoch_accuracy|accuracy_after_inversion|macro_f1|auroc|epoch_\d+_(test|train)_accuracy",
        "fraction",
        "higher",
    ),
    ("error|min_error|window_error|calibration_error", "fraction", "lower"),
    (r"loss|log_mse|selected_log_mse|min_log_mse|epoch_\d+_(test|train)_loss", "nats", "lower"),
    ("mse|selected_mse|perplexity", "", "lower"),
    ("validation_loss", "nats per token", "lower"),
    ("inference_time", "ns", "lower"),
    ("train_seconds", "seconds", "lower"),
    ("train_tokens_per_second", "tokens per second", "higher"),
    ("peak_memory_bytes", "bytes", "lower"),
    ("failed", "trainings", "lower"),
)

_ORDERS = ("tally", "wins", "significant_wins")
_PAIRS = ("gap", "order", "difference", "equivalence", "uniform", "ahead_from", "behind_up_to")
_NEEDED = {  # column -> the kinds that can't be judged without it
    "value": (
        *("value", "gap", "difference", "uniform", "ahead_from", "behind_up_to", *_ORDERS),
        *("count", "setup", "noise", "failures", "observed", "ratio", "range"),
    ),
    "better": ("value", "failures", "wins", "significant_wins", *_PAIRS),
    "baseline_arm": _PAIRS,
    "trials": ("noise", "failures", *_ORDERS),
    "factor": ("uniform",),
    "family": _ORDERS,
}
FAULT = "its row has a fault: "
"""The beginning of the reason of a claim that isn't judged because of its row."""

_MOST = 1e18
"""A number from which squares overflow or mean nothing."""
_FAR = 30
"""Factor between a gain and the difference of its cells from which a mix of percent and fractions is likelier."""


def place_claims(claims: Sequence[ClaimLine], params: Params) -> list[ClaimLine]:
    """Place each claim at an experiment of the params files.

    A claim whose row has a fault, or whose experiment isn't there, gets that as the reason why it isn't judged.
    """
    rows = Counter(claim.family for claim in claims if claim.family)
    families = {*params.verdicts.families, *(name for name, count in rows.items() if count > 1)}
    families &= {claim.family for claim in claims if claim.family and claim.facts.is_gain}
    cells = {(claim.experiment, claim.metric, claim.arm): claim.value for claim in claims if claim.kind == "value"}
    placed = []
    for claim in claims:
        fault = next(find_faults(claim, params, families), "")
        one, other = (cells.get((claim.experiment, claim.metric, arm)) for arm in (claim.arm, claim.baseline_arm))
        if claim.facts.is_gain and claim.value and one and other and abs(claim.value) > _FAR * abs(one - other) > 0:
            fault = fault or f"value is {claim.value:g}; the printed numbers of both models differ by {one - other:.4g}"
        reason = f"{FAULT}{fault}" if fault else ""
        if not reason and claim.experiment and not fnmatch.filter(params.experiments, claim.experiment):
            close = nearest(claim.experiment, params.experiments)
            hint = close if "did you mean" in close else ""
            reason = claim.reason or f"its experiment {claim.experiment} is not in the params files yet{hint}"
        placed.append(replace(claim, experiment=None, reason=reason) if reason else claim)
    return placed


def find_faults(claim: ClaimLine, params: Params, families: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a row: column, what came, and what would do.  `families` are those of orders."""
    for column, kinds in _NEEDED.items():
        if claim.kind in kinds and getattr(claim, column) is None and not claim.reason:
            yield f"{column} is empty; {claim.kind} needs it"
    for column, least in (("value", -math.inf), ("high", -math.inf), ("precision", 0), ("stderr", 0)):
        number = getattr(claim, column)
        if number is not None and not (abs(number) < _MOST and number >= least):
            yield f"{column} is {number}; expected a finite number{' that is not negative' if not least else ''}"
    for column in ("n", "trials"):
        if (count := getattr(claim, column)) is not None and count < 1:
            yield f"{column} is {count}; expected a number of at least 1"
    if claim.better not in (None, "higher", "lower"):
        yield f"better is {claim.better!r}; expected higher or lower"
    if claim.family and claim.family not in families:
        yield f"family is {claim.family!r}, of no orders{nearest(claim.family, families)}"
    names = fnmatch.filter(params.experiments, claim.experiment or "")
    for experiment in (params.experiments[name] for name in names):
        if experiment.paper != claim.paper:
            yield f"paper is {claim.paper!r}; {experiment.name} is of {experiment.paper}"
        for column, arm in (("arm", claim.arm), ("baseline_arm", claim.baseline_arm)):
            if arm and not fnmatch.filter(experiment.arms, arm):
                yield f"{column}: {experiment.name} has no arm {arm!r}{nearest(arm, experiment.arms)}"
        counts = [len(fnmatch.filter(experiment.arms, arm or "")) for arm in (claim.arm, claim.baseline_arm)]
        if counts[0] == 1 < counts[1]:
            yield f"baseline_arm is {claim.baseline_arm!r}, {counts[1]} arms of {experiment.name}; name one"
        if claim.factor and len({str(arm.model.get(claim.factor)) for arm in experiment.arms.values()}) < 2:
            yield f"factor is {claim.factor!r}; the models of {experiment.name} don't differ in it"
    if claim.experiment and claim.facts.by == "training":
        yield from _find_faults_of_training(claim)


def _find_faults_of_training(claim: ClaimLine) -> Iterator[str]:
    found = [row for row in _METRICS if re.fullmatch(row[0], claim.metric)]
    if not found:
        if claim.kind != "observed":  # the paper's own
            known = [name for names, _, _ in _METRICS for name in names.split("|") if name.isidentifier()]
            yield f"metric is {claim.metric!r}{nearest(claim.metric, known)}"
        return
    _, unit, better = found[0]
    is_number = claim.facts.is_gain or claim.facts.number == "model"
    if claim.better not in (None, better):
        yield f"better is {claim.better or 'empty'}; {better} is better for {claim.metric}"
    if claim.facts.is_gain and claim.arm == claim.baseline_arm:
        yield f"baseline_arm is {claim.baseline_arm!r}, as arm; name the model that it is compared with"
    if claim.arm is None:
        yield "arm is empty; name the model that the claim is about"
    if claim.facts.is_spread and not claim.value:
        yield f"value is {claim.value}; expected the printed range"
    if not is_number:
        return
    if (claim.unit or "") != unit and claim.value is not None:
        yield f"unit is {claim.unit!r}; {claim.metric} is in {unit or 'no unit: leave it empty'}"
    least = -1 if claim.facts.is_gain else 0
    for column in ("value", "stderr", "precision"):
        number = getattr(claim, column)
        if unit == "fraction" and number is not None and not least <= number <= 1:
            yield f"{column} is {number:g}; expected a fraction of 1, such as {number / 100:g} for {number:g} %"
