"""Comparable arms: no worse than by a margin, and never refuted for being better."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.verdicts import ComparableClaim, Sample, Status, judge_comparable
from stages.verdicts.verdict import Verdict
from tests.verdicts.simulation import RULES

# HyperBF, section 3.1.2: losses of 0.49, 1.6 and 0.89 points are "within an acceptable range".
CLAIM = ComparableClaim(margin=0.005, better="higher", accepted=0.016)
STRICT = ComparableClaim(margin=0.005, better="higher")
VIT = [0.7561, 0.7570, 0.7552, 0.7566, 0.7556]
NOISE = [0.0006, -0.0008, 0.0002, 0.0007, -0.0007]


def ours(gain: float, spread: float = 1.0) -> list[float]:
    return [value + gain + spread * noise for value, noise in zip(reversed(VIT), NOISE, strict=True)]


def judge(proposed: list, baseline: list = VIT, claim: ComparableClaim = CLAIM, pairing: str = "none") -> Verdict:
    return judge_comparable(claim, Sample.of(proposed), Sample.of(baseline), rules=RULES, pairing=pairing)  # type: ignore[arg-type]


def test_wide_interval_is_open_with_the_replicates_needed() -> None:
    noisy = judge(ours(0.0, spread=30), [value + 0.01 * place for place, value in enumerate(VIT)])
    assert noisy.status is Status.UNRESOLVED
    assert noisy.replicates_expected is not None and noisy.replicates_expected > 5


def test_bounds_equal_scipys() -> None:
    proposed, baseline = ours(0.001), VIT
    test = stats.ttest_rel(proposed, baseline)
    verdict = judge(proposed, pairing="fold")
    interval = test.confidence_interval(verdict.confidence)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert verdict.confidence == pytest.approx(1 - 2 * RULES.alpha_within * RULES.looks[5])


LOWER = dataclasses.replace(CLAIM, better="lower")
CASES = {
    "no replicate": ([], VIT, CLAIM, Status.NOT_TESTED),
    "before the first analysis": (ours(0.0)[:2], VIT, CLAIM, Status.UNRESOLVED),
    "identical replicates": ([0.76] * 5, [0.75] * 5, CLAIM, Status.UNRESOLVED),
    "within the paper's range": (ours(-0.0089), VIT, CLAIM, Status.HOLDS_UNDER_READING),
    "beyond a paper without a range": (ours(-0.0089), VIT, STRICT, Status.REVERSED),
    "at the margin": (ours(-0.005), VIT, STRICT, Status.UNRESOLVED),
    "equal": (ours(0.0), VIT, STRICT, Status.SUPPORTED),
    "a lower error": ([1 - value for value in ours(0.02)], [1 - value for value in VIT], LOWER, Status.SUPPORTED),
    "a higher error": ([1 - value for value in ours(-0.02)], [1 - value for value in VIT], LOWER, Status.REVERSED),
    "ahead, one diverged": ([*ours(0.003)[:4], None], VIT, CLAIM, Status.UNRESOLVED),
    "behind, one diverged": ([*ours(-0.02)[:4], None], VIT, CLAIM, Status.REVERSED),
    "behind, one of the baseline diverged": (ours(-0.02), [*VIT[:4], None], CLAIM, Status.UNRESOLVED),
    "all diverged": ([None] * 5, VIT, CLAIM, Status.UNRESOLVED),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_on_comparable_arms(case: str) -> None:
    proposed, baseline, claim, status = CASES[case]
    verdict = judge(proposed, baseline, claim)
    assert verdict.status is status, verdict.explanation
    assert ("diverged" in verdict.explanation) == ("diverged" in case)


@given(st.floats(-0.05, 0.05), st.floats(0, 0.05))
def test_better_arm_never_gets_a_worse_verdict(gain: float, lift: float) -> None:
    rank = [Status.REVERSED, Status.UNRESOLVED, Status.HOLDS_UNDER_READING, Status.SUPPORTED]
    before, after = (rank.index(judge(ours(value)).status) for value in (gain, gain + lift))
    assert before <= after


@pytest.mark.parametrize(
    ("gain", "warns"), [(0.0, False), (-0.003, True), (-0.014, True), (-0.010, False), (-0.018, True), (-0.03, False)]
)
def test_arms_near_their_limit_warn_of_skew(gain: float, warns: bool) -> None:
    still = judge([0.7561 + gain + noise / 100 for noise in NOISE])
    assert still.status is not Status.UNRESOLVED
    assert ("If the noise is skewed" in still.explanation) == warns, still.explanation
