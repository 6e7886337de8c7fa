"""How close a number must come to the one a claim prints, by the kind of number (`margins` in `params.yaml`)."""

from __future__ import annotations

import dataclasses

from stages.claims.lines import ORDERS, ClaimLine
from stages.rules import Margins


def margin_of_value(claim: ClaimLine, margins: Margins) -> float:
    """The margin for the kind of number: an accuracy, an error, a loss, a memory."""
    value, precision = claim.value or 0.0, claim.precision or 0.0
    if claim.unit == "fraction":
        return (margins.accuracy if claim.better == "higher" else margins.error)(value, precision)
    if claim.metric.endswith("log_mse"):
        return margins.log_mse(value)
    if claim.unit == "bytes":
        return margins.memory(value, precision)
    return margins.loss(abs(value), precision)


def margin_of_gain(claim: ClaimLine, margins: Margins) -> float:
    gain = claim.value or 0.0
    return margins.log_mse(gain) if claim.metric.endswith("log_mse") else margins.difference(gain)


def margin_of_ratio(claim: ClaimLine, margins: Margins) -> float:
    """The margin of a difference, but at least the printed rounding."""
    return max(margins.difference(claim.value or 0.0), claim.precision or 0.0)


def margin_of(claim: ClaimLine, margins: Margins) -> float | None:
    """The margin by which trained models decide the claim, or the size of its gain; None where the test has none."""
    value = claim.value or 0.0
    if claim.kind == "value":
        return margin_of_value(claim, margins)
    if claim.kind in (*ORDERS, "gap", "uniform"):
        return None if claim.value is None else margin_of_gain(claim, margins)
    if claim.kind == "ratio":
        return margin_of_ratio(claim, margins)
    if claim.kind == "equivalence":
        return margins.comparable(claim.precision or 0.0)
    if claim.kind == "range" and claim.high is not None:
        return (claim.high - value) / 2 + (claim.precision or 0.0)
    if claim.kind == "observed" and claim.better is None:
        return margins.difference(value)
    if claim.kind == "failures" and claim.baseline_arm is None and claim.trials:
        return margins.error(value / claim.trials, 1 / claim.trials)
    return None


def slope_of_margin(claim: ClaimLine, margins: Margins) -> float:
    """How much the claim's margin grows with its printed number: half of a gain's error is an error of its margin."""
    step = 1e-6 * abs(claim.value or 0.0)
    if not step:
        return 0.0
    moved = dataclasses.replace(claim, value=(claim.value or 0.0) + step)
    return ((margin_of(moved, margins) or 0.0) - (margin_of(claim, margins) or 0.0)) / step
