"""The benefit of ending the looks with the plan: 20,000 simulated experiments each, in units of the spread."""

import dataclasses

import pytest

from stages.verdicts import GainClaim, Sample, Status, ValueClaim, judge_gain, judge_value
from tests.verdicts.simulation import RULES, World, draw, judge_all

SINGLE_RUN = World(shift=0.0, margin=3.0, planned=5)
WITH_ERROR = World(shift=0.0, margin=3.0, planned=5, paper_n=5, prints_error=True)


def at_five(world: World) -> float:
    """Share of experiments that the look at five replicates calls `reproduced`."""
    reproduced, _ = judge_all(world, draw(world, 20_000, seed=0))[5]
    return float(reproduced.mean())


def test_ending_at_five_reproduces_50_instead_of_29_of_100_at_a_margin_of_three_spreads() -> None:
    """The paper ran once: half of α waited for a look at ten that no plan of five reaches."""
    assert at_five(dataclasses.replace(SINGLE_RUN, planned=None)) == pytest.approx(0.29, abs=0.012)
    assert at_five(SINGLE_RUN) == pytest.approx(0.50, abs=0.012)


def test_a_verdict_says_the_confidence_of_its_plan() -> None:
    better, worse = Sample.of([0.90, 0.901, 0.902, 0.9, 0.901]), Sample.of([0.70, 0.701, 0.702, 0.7, 0.701])
    claim = GainClaim(gain=0.2, margin=0.1, better="higher")
    open_ended = judge_gain(claim, better, worse, rules=RULES, pairing="none")
    planned = judge_gain(claim, better, worse, rules=RULES, pairing="none", planned=5)
    assert open_ended.confidence == pytest.approx(0.98) and open_ended.size.confidence == pytest.approx(0.95)
    assert planned.confidence == pytest.approx(1 - 0.05 * 2 / 3) and planned.size.confidence == pytest.approx(0.90)
    assert planned.share == pytest.approx(2 / 3)


def test_a_plan_of_seven_is_judged_at_seven() -> None:
    sample = Sample.of([0.90, 0.901, 0.902, 0.9, 0.901, 0.9, 0.901])
    verdict = judge_value(ValueClaim(value=0.9, margin=0.01), sample, rules=RULES, planned=7)
    assert (verdict.status, verdict.n) == (Status.REPRODUCED, 7)


def test_a_plan_that_is_too_short_says_so() -> None:
    verdict = judge_value(ValueClaim(value=0.9, margin=0.01), Sample.of([0.9, 0.91, 0.9]), rules=RULES, planned=3)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.explanation.endswith(
        "of the first 5 replicates are there; nothing is said before, and the plan ends with 3."
    )


def test_an_open_verdict_at_the_end_of_the_plan_says_that_more_would_be_beyond_it() -> None:
    sample = Sample.of([0.897, 0.903, 0.9, 0.899, 0.904])
    claim = ValueClaim(value=0.9, margin=0.003, stderr=0.0008, n=5)
    verdict = judge_value(claim, sample, rules=RULES, planned=5)
    assert verdict.status is Status.INCONCLUSIVE and verdict.replicates_expected > 5
    assert "replicates are expected to decide, but the last analysis is at 5" in verdict.explanation
