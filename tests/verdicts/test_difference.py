import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.verdicts import (
    ComparableClaim,
    ComparedArms,
    GainClaim,
    Observation,
    Sample,
    Status,
    judge_comparable,
    judge_gain,
    judge_gap,
)
from stages.verdicts.verdict import Verdict
from tests.verdicts.simulation import RULES

BASE = [0.700, 0.712, 0.705, 0.698, 0.709]
GAINS = [0.020, 0.024, 0.019, 0.022, 0.021]
DAC = [base + gain for base, gain in zip(BASE, GAINS, strict=True)]
CLAIM = GainClaim(gain=0.02, margin=0.01, better="higher")
values = st.floats(0.5, 0.9).map(lambda value: round(value, 4))
samples = st.lists(values, min_size=5, max_size=5, unique=True)


def judge(claim: GainClaim, proposed: list, baseline: list, pairing: str = "none", **more: object):
    return judge_gain(
        claim, ComparedArms(Sample.of(proposed), Sample.of(baseline), rules=RULES, pairing=pairing, **more)
    )


@pytest.mark.parametrize(
    ("pairing", "test"),
    [("none", stats.ttest_ind(DAC, BASE, equal_var=False)), ("fold", stats.ttest_rel(DAC, BASE))],
    ids=["independent", "folds"],
)
def test_interval_and_p_value_equal_scipys(pairing: str, test: Any) -> None:
    verdict = judge(CLAIM, DAC, BASE, pairing)
    interval = test.confidence_interval(verdict.confidence)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert verdict.p_value == pytest.approx(test.pvalue, rel=1e-9)


def test_folds_show_nadeau_and_bengios_corrected_interval() -> None:
    """For 5 folds, s² (1/5 + 1/4) instead of s²/5: the interval is 1.5 times as wide."""
    plain = judge(CLAIM, DAC, BASE, "fold", planned=5)
    shown = judge(CLAIM, DAC, BASE, "fold", planned=5, folds=5)
    half = stats.t.ppf(1 - 0.05 / 3, 4) * np.std(GAINS, ddof=1) * np.sqrt(1 / 5 + 1 / 4)
    assert dataclasses.replace(shown, explanation=plain.explanation) == plain, "it decides nothing"
    assert half / (plain.high - plain.estimate) == pytest.approx(1.5) and plain.share == pytest.approx(2 / 3)
    wider = f"+{plain.estimate - half:.4f} to +{plain.estimate + half:.4f}"
    assert shown.explanation.endswith(
        " This holds for these training data, which the folds share; allowing for others: +0.0212, "
        f"96.7 % interval {wider}."
    )
    gap = judge_gap(
        CLAIM, ComparedArms(Sample.of(DAC), Sample.of(BASE), rules=RULES, pairing="fold", planned=5, folds=5)
    )
    assert gap.explanation.endswith(f"interval {wider}.")


@pytest.mark.parametrize("order", [1, -1])
def test_order_within_three_half_widths_warns_of_skew(order: int) -> None:
    still, far = ([mean + step for step in (0.0, 0.0002, 0.0001, -0.0001, -0.0002)] for mean in (0.71, 0.5))
    decided, clear = (judge(CLAIM, *(DAC, other)[::order]) for other in (still, far))
    assert decided.status is clear.status is (Status.SUPPORTED if order == 1 else Status.REVERSED)
    assert "If the noise is skewed and the spreads of the two models differ" in decided.explanation
    assert "skewed" not in clear.explanation, "too far apart for skew to be the reason"
    alike = judge(CLAIM, *(DAC, [value - 0.02 for value in DAC])[::order])
    assert "skewed" in alike.explanation, "five replicates may hide a noisy arm's spread"
    of_grid = judge(CLAIM, *(DAC, still)[::order], pairs=(15, 15))
    assert "skewed" not in of_grid.explanation, "the mean of many pairs is hardly skewed"
    open_still = judge(CLAIM, [value - 0.016 for value in DAC], still)
    assert open_still.status is Status.UNRESOLVED and "skewed" not in open_still.explanation


def test_pairing_removes_fold_effects() -> None:
    hard = [0.70, 0.80, 0.60, 0.75, 0.65]  # the folds differ far more than the arms
    better = [value + gain for value, gain in zip(hard, GAINS, strict=True)]
    assert judge(CLAIM, better, hard, "fold").status is Status.SUPPORTED
    assert judge(CLAIM, better, hard, "none").status is Status.UNRESOLVED


@pytest.mark.parametrize(
    ("gain", "better", "arms", "status"),
    [
        (+0.02, "higher", (DAC, BASE), Status.SUPPORTED),
        (+0.02, "higher", (BASE, DAC), Status.REVERSED),
        (-0.02, "higher", (BASE, DAC), Status.SUPPORTED),  # the paper says that its own arm is worse
        (-0.02, "higher", (DAC, BASE), Status.REVERSED),
        (+0.02, "lower", (BASE, DAC), Status.SUPPORTED),  # an error
        (+0.02, "lower", (DAC, BASE), Status.REVERSED),
        (+0.02, "higher", (BASE, [value + 0.001 for value in reversed(BASE)]), Status.UNRESOLVED),
    ],
)
def test_gain_is_proposed_minus_baseline_with_better_positive(
    gain: float, better: str, arms: tuple, status: Status
) -> None:
    claim = GainClaim(gain=gain, margin=0.01, better=better)
    assert judge(claim, *arms).status is status


def test_size_is_judged_separately_from_the_sign() -> None:
    claim = GainClaim(gain=0.10, margin=0.05, better="higher", stderr=0.002, n=5)
    verdict = judge(claim, DAC, BASE, "fold")
    assert (verdict.status, verdict.size.status) == (Status.SUPPORTED, Status.NOT_REPRODUCED)
    near = judge(dataclasses.replace(claim, gain=0.021, margin=0.0105), DAC, BASE, "fold")
    assert (near.status, near.size.status) == (Status.SUPPORTED, Status.REPRODUCED)
    assert near.size.estimate == pytest.approx(np.mean(GAINS) - 0.021)


def test_size_against_single_runs_allows_for_their_spread() -> None:
    size = judge(CLAIM, DAC, BASE).size
    s2 = np.var(DAC, ddof=1) + np.var(BASE, ddof=1)
    df = stats.ttest_ind(DAC, BASE, equal_var=False).df
    half = stats.t.ppf((1 + size.confidence) / 2, df) * np.sqrt(s2 * (1 + 1 / 5))
    assert (size.high - size.low) / 2 == pytest.approx(half)


def gap(claim: GainClaim, proposed: list, baseline: list, pairing: str = "fold"):
    return judge_gap(claim, ComparedArms(Sample.of(proposed), Sample.of(baseline), rules=RULES, pairing=pairing))


def test_only_the_size_of_a_printed_loss_is_judged() -> None:
    """The paper admits a loss of 2.1 points: leading isn't `reversed`, and an equal loss isn't `supported`."""
    loss = GainClaim(gain=-0.021, margin=0.0105, better="higher", stderr=0.001, n=5)
    as_printed, ahead, level = gap(loss, BASE, DAC), gap(loss, DAC, BASE), gap(loss, [v + 3e-5 * v for v in BASE], BASE)
    assert [verdict.status for verdict in (as_printed, ahead, level)] == [
        Status.REPRODUCED,
        Status.NOT_REPRODUCED,
        Status.NOT_REPRODUCED,
    ]
    assert as_printed.size is not None and as_printed.size.status is Status.REPRODUCED
    assert (as_printed.estimate, as_printed.p_value) == (
        pytest.approx(-np.mean(GAINS)),
        judge(CLAIM, BASE, DAC, "fold").p_value,
    )
    assert "claims no order: the size decides" in as_printed.explanation


def test_gap_needs_the_replicates_of_a_size() -> None:
    loss = GainClaim(gain=-0.021, margin=0.0105, better="higher")
    assert gap(loss, [], []).status is Status.NOT_TESTED
    assert gap(loss, BASE[:2], DAC[:2]).status is Status.INCONCLUSIVE
    assert gap(loss, BASE[:3], DAC[:3]).status is Status.INCONCLUSIVE
    assert gap(loss, [None] * 4 + BASE[:1], DAC).status is Status.INCONCLUSIVE


def test_gain_within_its_margin_never_has_the_same_size() -> None:
    """Printed +0.0004, margin 0.001: no gain or the opposite would count as the same size."""
    claim = GainClaim(gain=0.0004, margin=0.001, better="higher", stderr=0.0, n=5)
    hardly = [value + 0.0004 + step for value, step in zip(BASE, (1e-5, -1e-5, 0, 2e-5, -2e-5), strict=True)]
    verdict = judge(claim, hardly, BASE, "fold")
    assert (verdict.status, verdict.size.status) == (Status.SUPPORTED, Status.UNDECIDABLE)
    assert "the margin is as large as the printed number" in verdict.size.explanation
    assert judge(claim, DAC, BASE, "fold").size.status is Status.NOT_REPRODUCED, "a distant result is still refuted"
    enough = dataclasses.replace(claim, gain=0.0021, margin=0.00105)
    more = [value + 0.0017 for value in hardly]
    assert judge(enough, more, BASE, "fold").size.status is Status.REPRODUCED


def test_fold_missing_in_one_arm_ends_the_analysis() -> None:
    proposed = Sample(tuple(Observation(index=fold, value=DAC[fold]) for fold in (0, 1, 2, 4)))
    verdict = judge_gain(CLAIM, ComparedArms(proposed, Sample.of(BASE), rules=RULES, pairing="fold"))
    assert verdict.n == 3


def test_leading_arm_with_diverged_replicates_is_unresolved() -> None:
    lost = [*DAC[:4], None]
    ahead, behind = judge(CLAIM, lost, BASE), judge(CLAIM, DAC, [*BASE[:4], None])
    assert (ahead.status, ahead.n_diverged) == (Status.UNRESOLVED, 1)
    assert "some replicates of the model ahead have diverged" in ahead.explanation
    assert behind.status is Status.SUPPORTED, "the baseline diverged and is behind anyway"
    assert ahead.size.status is not Status.REPRODUCED and behind.size.status is not Status.REPRODUCED
    none = judge(CLAIM, [None] * 5, BASE)
    assert (none.status, none.n, none.n_diverged, none.low) == (Status.UNRESOLVED, 5, 5, None)


@pytest.mark.parametrize("pairing", ["fold", "none"])
def test_equal_replicates_and_tied_arms_are_unresolved(pairing: str) -> None:
    for proposed in ([0.7] * 5, [0.8] * 5):
        verdict = judge(CLAIM, proposed, [0.7] * 5, pairing)
        assert (verdict.status, verdict.p_value) == (Status.UNRESOLVED, None)
    equal = judge(CLAIM, BASE, list(reversed(BASE)))
    assert (equal.status, equal.estimate, equal.p_value) == (Status.UNRESOLVED, pytest.approx(0), pytest.approx(1))


def test_unresolved_states_the_replicates_that_would_decide() -> None:
    close = [value + shift for value, shift in zip(BASE, (0.01, -0.004, 0.008, -0.002, 0.006), strict=True)]
    verdict = judge(CLAIM, close, BASE, "fold")
    assert (verdict.status, verdict.replicates_expected) == (Status.UNRESOLVED, 20)
    gains = np.array([0.01, -0.004, 0.008, -0.002, 0.006])
    t = gains.mean() / (gains.std(ddof=1) / np.sqrt(np.array([19, 20])))
    assert (t > stats.t.isf(0.01, [18, 19])).tolist() == [False, True]


@given(samples, samples, st.sampled_from(["fold", "none"]))
def test_swapping_the_arms_reverses_the_order(one: list, other: list, pairing: str) -> None:
    there, back = judge(CLAIM, one, other, pairing), judge(CLAIM, other, one, pairing)
    opposite = {Status.SUPPORTED: Status.REVERSED, Status.REVERSED: Status.SUPPORTED}
    assert back.status is opposite.get(there.status, there.status)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-12)


@given(samples, samples, st.floats(0.0, 0.2))
def test_lifting_the_proposed_arm_never_hurts_it(one: list, other: list, lift: float) -> None:
    rank = {Status.REVERSED: 0, Status.UNRESOLVED: 1, Status.SUPPORTED: 2}
    before, after = judge(CLAIM, one, other), judge(CLAIM, [value + lift for value in one], other)
    assert rank[before.status] <= rank[after.status]


@given(samples, samples)
def test_error_is_the_mirror_image_of_accuracy(one: list, other: list) -> None:
    accuracy = judge(CLAIM, one, other)
    error = judge(dataclasses.replace(CLAIM, better="lower"), [1 - value for value in one], [1 - v for v in other])
    assert accuracy.status is error.status
    assert (accuracy.low, accuracy.high) == pytest.approx((error.low, error.high), abs=1e-9)


# HyperBF, section 3.1.2: losses of 0.49, 1.6 and 0.89 points are "within an acceptable range".
COMPARABLE = ComparableClaim(margin=0.005, better="higher", accepted=0.016)
STRICT = ComparableClaim(margin=0.005, better="higher")
VIT = [0.7561, 0.7570, 0.7552, 0.7566, 0.7556]
NOISE = [0.0006, -0.0008, 0.0002, 0.0007, -0.0007]


def ours(gain: float, spread: float = 1.0) -> list[float]:
    return [value + gain + spread * noise for value, noise in zip(reversed(VIT), NOISE, strict=True)]


def judge_arms(
    proposed: list, baseline: list = VIT, claim: ComparableClaim = COMPARABLE, pairing: str = "none"
) -> Verdict:
    return judge_comparable(claim, ComparedArms(Sample.of(proposed), Sample.of(baseline), rules=RULES, pairing=pairing))  # type: ignore[arg-type]


def test_wide_interval_is_open_with_the_replicates_needed() -> None:
    noisy = judge_arms(ours(0.0, spread=30), [value + 0.01 * place for place, value in enumerate(VIT)])
    assert noisy.status is Status.UNRESOLVED
    assert noisy.replicates_expected is not None and noisy.replicates_expected > 5


def test_bounds_equal_scipys() -> None:
    proposed, baseline = ours(0.001), VIT
    test = stats.ttest_rel(proposed, baseline)
    verdict = judge_arms(proposed, pairing="fold")
    interval = test.confidence_interval(verdict.confidence)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert verdict.confidence == pytest.approx(1 - 2 * RULES.alpha_within * RULES.looks[5])


LOWER = dataclasses.replace(COMPARABLE, better="lower")
CASES = {
    "no replicate": ([], VIT, COMPARABLE, Status.NOT_TESTED),
    "before the first analysis": (ours(0.0)[:2], VIT, COMPARABLE, Status.UNRESOLVED),
    "identical replicates": ([0.76] * 5, [0.75] * 5, COMPARABLE, Status.UNRESOLVED),
    "within the paper's range": (ours(-0.0089), VIT, COMPARABLE, Status.HOLDS_UNDER_READING),
    "beyond a paper without a range": (ours(-0.0089), VIT, STRICT, Status.REVERSED),
    "at the margin": (ours(-0.005), VIT, STRICT, Status.UNRESOLVED),
    "equal": (ours(0.0), VIT, STRICT, Status.SUPPORTED),
    "a lower error": ([1 - value for value in ours(0.02)], [1 - value for value in VIT], LOWER, Status.SUPPORTED),
    "a higher error": ([1 - value for value in ours(-0.02)], [1 - value for value in VIT], LOWER, Status.REVERSED),
    "ahead, one diverged": ([*ours(0.003)[:4], None], VIT, COMPARABLE, Status.UNRESOLVED),
    "behind, one diverged": ([*ours(-0.02)[:4], None], VIT, COMPARABLE, Status.REVERSED),
    "behind, one of the baseline diverged": (ours(-0.02), [*VIT[:4], None], COMPARABLE, Status.UNRESOLVED),
    "all diverged": ([None] * 5, VIT, COMPARABLE, Status.UNRESOLVED),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_on_comparable_arms(case: str) -> None:
    proposed, baseline, claim, status = CASES[case]
    verdict = judge_arms(proposed, baseline, claim)
    assert verdict.status is status, verdict.explanation
    assert ("diverged" in verdict.explanation) == ("diverged" in case)


@given(st.floats(-0.05, 0.05), st.floats(0, 0.05))
def test_better_arm_never_gets_a_worse_verdict(gain: float, lift: float) -> None:
    rank = [Status.REVERSED, Status.UNRESOLVED, Status.HOLDS_UNDER_READING, Status.SUPPORTED]
    before, after = (rank.index(judge_arms(ours(value)).status) for value in (gain, gain + lift))
    assert before <= after


@pytest.mark.parametrize(
    ("gain", "warns"), [(0.0, False), (-0.003, True), (-0.014, True), (-0.010, False), (-0.018, True), (-0.03, False)]
)
def test_arms_near_their_limit_warn_of_skew(gain: float, warns: bool) -> None:
    still = judge_arms([0.7561 + gain + noise / 100 for noise in NOISE])
    assert still.status is not Status.UNRESOLVED
    assert ("If the noise is skewed" in still.explanation) == warns, still.explanation
