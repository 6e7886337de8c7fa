"""Ratios of means and printed ranges of ratios, judged by their intervals."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.claims import ClaimLine
from stages.claims.kinds import RatioKind, kind_of
from stages.claims.trials import ClaimSamples, Pairs, ResultGroup
from stages.rules import Rules
from stages.verdicts import EvidenceLevel, Sample, Status, Verdict
from tests.claims.lines import claims, params
from tests.verdicts.test_by_margin import assert_says_what_it_would_say

CLAIM = claims()["ninformer.text.c10.acc_vs_mixer"]
MEMORY = claims()["nmn.gpt.memory"]
RULES = params().verdicts
PAIRS = Pairs(proposed=("ninformer",), baseline=("mlp-mixer",), cells=({},), grid=({},))
GROUP = ResultGroup(
    experiment=params().experiments["ninformer-cifar10"],
    profile="paper",
    conditions="",
    evidence_level=EvidenceLevel.DECIDES,
    share=1.0,
    arms={},
)


def of(claim: ClaimLine, rules: Rules = RULES) -> RatioKind:
    kind = kind_of(claim, rules)
    assert isinstance(kind, RatioKind)
    return kind


def sides(ours: Sequence[float], theirs: Sequence[float]) -> ClaimSamples:
    return ClaimSamples(pairs=PAIRS, group=GROUP, proposed=Sample.of(ours), baseline=Sample.of(theirs))


def judge_memory(saved: list[float]) -> Verdict:
    """Judge a printed saving of 15 to 25 % on pairs with these savings."""
    return of(MEMORY).decide(sides([1 - share for share in saved], [1.0] * len(saved)), params())[0]


@pytest.mark.parametrize(
    ("saved", "status"),
    [
        ([0.20, 0.21, 0.19, 0.20, 0.22], Status.REPRODUCED),
        ([0.14, 0.16, 0.13, 0.15, 0.125], Status.INCONCLUSIVE),  # near the rounded end
        ([0.08, 0.09, 0.07, 0.08, 0.10], Status.NOT_REPRODUCED),
        ([0.20] * 5, Status.REPRODUCED),
        ([0.13] * 5, Status.NOT_REPRODUCED),
        ([0.20, 0.21], Status.INCONCLUSIVE),
    ],
)
def test_range_is_decided_by_the_interval_or_by_equal_bytes(saved: list[float], status: Status) -> None:
    assert judge_memory(saved).status is status, judge_memory(saved).explanation


def test_range_states_its_middle_and_has_no_prediction() -> None:
    verdict = judge_memory([0.20, 0.21, 0.19, 0.20, 0.22])
    assert "− the middle of the printed range, 0.2 = " in verdict.explanation
    assert "margin ±0.06" in verdict.explanation and verdict.prediction is None


def test_equal_replicates_of_a_measured_ratio_have_unknown_spread() -> None:
    """Memory may be equal to the byte, but five equal losses mean that seeds weren't varied."""
    loss = dataclasses.replace(MEMORY, metric="validation_loss")
    verdict, _ = of(loss).decide(sides([0.8] * 5, [1.0] * 5), params())
    assert verdict.status is Status.INCONCLUSIVE and "spread is unknown" in verdict.explanation


def test_replicates_beyond_an_analysis_do_not_change_a_ratio() -> None:
    ours, base = [0.80, 0.83, 0.81, 0.82], [0.70, 0.69, 0.72, 0.10]
    sample, _ = of(CLAIM).measure_ratio(sides(ours, base))
    assert sum(sample.values[:3]) / 3 == pytest.approx(sum(ours[:3]) / sum(base[:3]) - 1)


@settings(max_examples=15, deadline=None, report_multiple_bugs=False)
@given(st.integers(0, 10**6), st.floats(0.02, 0.5), st.floats(0.005, 0.1), st.floats(0.01, 0.6))
def test_ratio_flips_at_the_predicted_margins(seed: int, true: float, spread: float, margin: float) -> None:
    """A ratio's spread depends on the margin, and so do the margins at which its verdict changes."""
    random = np.random.default_rng(seed)
    drawn = sides(*(random.normal(mean, spread, 5).tolist() for mean in (1 + true, 1.0)))
    printed = dataclasses.replace(CLAIM, value=0.3, precision=None)

    def judge_ratio(by: float) -> Verdict:
        margins = dataclasses.replace(RULES.margins, difference_points=by, difference_share=0.0)
        rules = dataclasses.replace(RULES, margins=margins)
        return of(printed, rules).decide(drawn, params())[0]

    def judge_range(by: float) -> Verdict:
        claim = dataclasses.replace(printed, kind="range", high=0.4, precision=by - 0.05)
        return of(claim).decide(drawn, params())[0]

    assert_says_what_it_would_say(judge_ratio, margin)
    assert_says_what_it_would_say(judge_range, margin)


def test_relative_margin_scales_with_the_printed_number() -> None:
    expected = {"dac.sgemm.gain": 0.25, "ninformer.text.c10.acc_vs_mixer": 0.5, "nmn.ext.mnist.accuracy.epoch3": -0.1}
    found = {name: kind_of(claims()[name], RULES).slope for name in expected}
    assert found == pytest.approx(expected, abs=1e-4)
    floor = dataclasses.replace(claims()["ninformer.text.c10.acc_vs_mixer"], value=0.01)
    assert kind_of(floor, RULES).slope == 0, "the margin is at least the rounding"
