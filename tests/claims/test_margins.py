"""Margins in points are for shares; in any other unit, a change of the unit changes no verdict."""

import dataclasses
from typing import Any

import pytest

import claimcheck
from stages.claims import ClaimLine, Judgement, place_claims
from stages.claims.kinds import foresee, kind_of
from stages.claims.lines import FAULT
from stages.params.metrics import OwnMetric
from stages.verdicts import Status, not_tested
from tests.claims.lines import claims, judge, params, results, trials

STEPS = [-0.004, 0.001, 0.003, -0.002, 0.002]
METRICS = ("rmse", "mae", "mse", "perplexity", "loss", "of_a_user")
"""The last one is only in an experiment's file."""


def row(metric: str, kind: str, value: float | None, **cells: Any) -> ClaimLine:
    """Return a claim on two models whose numbers are near 1; lower is better."""
    like = claims()["hyperbf.comparable.c10"]
    fields = {"stderr": None, "n": None, "unit": None, "precision": None, "better": "lower", "family": None}
    if kind in ("value", "observed"):
        fields["baseline_arm"] = None
    if kind == "observed":
        fields["better"] = None
    return dataclasses.replace(like, metric=metric, kind=kind, value=value, **fields | cells)


def judged(claim: ClaimLine, factor: float = 1.0, *, worse: float = 0.01) -> Judgement:
    """Judge a claim on a baseline near 1 and a model that is worse by a share, with all numbers times `factor`."""
    vit = [factor * (1 + step) for step in STEPS]
    hyperbf = [factor * (1 + worse + step) for step in reversed(STEPS)]
    lines = results("hyperbf-cifar10", {"vit": vit, "hyperbf": hyperbf}, metric=claim.metric)
    value = None if claim.value is None else claim.value * factor
    (found,) = judge(dataclasses.replace(claim, value=value), entered=trials(lines))
    return found


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("value", 1.0),
        ("gap", -0.012),
        ("difference", -0.012),
        ("order", 0.01),
        ("equivalence", None),
        ("observed", 1.0),
    ],
)
def test_unit_changes_no_verdict(metric: str, kind: str, value: float | None) -> None:
    claim = row(metric, kind, value)
    found = [judged(claim, factor) for factor in (1.0, 1e-4, 1e4)]
    words = {(one.verdict.status, one.verdict.size and one.verdict.size.status) for one in found}
    assert len(words) == 1 and found[0].verdict.status is not Status.NOT_TESTED
    margins = [(one.verdict.size or one.verdict).margin for one in found]
    assert margins[0] and [margins[0] * factor for factor in (1.0, 1e-4, 1e4)] == pytest.approx(margins)


@pytest.mark.parametrize(("worse", "status"), [(0.01, Status.SUPPORTED), (0.05, Status.REVERSED)])
def test_comparable_means_a_share_of_the_baseline_as_in_the_library(worse: float, status: Status) -> None:
    claim = row("rmse", "equivalence", None)
    for factor in (1e-3, 1e3):
        found = judged(claim, factor, worse=worse).verdict
        ours, theirs = ([factor * (1 + more + step) for step in STEPS] for more in (worse, 0.0))
        library = claimcheck.comparable(ours, theirs, better="lower", is_share=False)
        assert found.status is library.status is status
        assert found.margin == pytest.approx(library.verdict.margin) == pytest.approx(0.02 * factor)


def test_shares_have_margins_in_points() -> None:
    shares = OwnMetric(address="a:b", takes="predictions", unit="fraction", better="lower", range=(0, 1))
    for metric, unit in (("error", None), ("epoch_2_test_accuracy", "fraction"), ("of_a_user", shares.unit)):
        for kind, value, margin in (("equivalence", None, 0.005), ("gap", 0.0004, 0.001), ("observed", 0.0004, 0.001)):
            assert kind_of(row(metric, kind, value, unit=unit), params().verdicts).margin == margin
    for kind in ("gap", "observed"):
        assert kind_of(row("loss", kind, 0.0004), params().verdicts).margin == 0.0002
        assert kind_of(row("loss", kind, 0.0004, precision=0.003), params().verdicts).margin == 0.003


def test_ratio_has_its_margin_in_points_whatever_its_metric() -> None:
    ratio = row("perplexity", "ratio", 0.0004, unit="relative reduction")
    assert kind_of(ratio, params().verdicts).margin == 0.001


def test_power_of_comparable_models_needs_the_level_of_the_baseline() -> None:
    claim = row("loss", "equivalence", None, unit="nats")
    printed = row("loss", "value", 3.0, arm="vit", unit="nats")
    assert foresee(claim, params(), not_tested("Not run."), [claim]) is None
    power = foresee(claim, params(), not_tested("Not run."), [claim, printed])
    assert power is not None and power.supported is not None and power.supported > 0.9
    assert "worse by 0.12," in power.explanation
    again = foresee(claim, params(), judged(claim).verdict, [claim, printed])
    assert again is not None and "worse by 0.04," in again.explanation, "the baseline's number is 1, not 3"


@pytest.mark.parametrize("kind", ["value", "gap", "observed"])
def test_printed_zero_needs_its_rounding_unless_it_is_a_share(kind: str) -> None:
    def reason(claim: ClaimLine) -> str | None:
        (placed,) = place_claims([claim], params())
        return placed.reason

    zero = row("loss", kind, 0.0, unit="nats")
    assert (reason(zero) or "").startswith(f"{FAULT}precision is empty; a printed 0 needs it")
    assert reason(dataclasses.replace(zero, precision=0.01)) is None
    share = {"metric": "error", "unit": "fraction"}
    assert reason(dataclasses.replace(zero, **share)) is None


def test_comparable_needs_the_unit_that_its_margin_depends_on() -> None:
    (placed,) = place_claims([row("error", "equivalence", None)], params())
    assert placed.reason == f"{FAULT}unit is empty; error is in fraction"
