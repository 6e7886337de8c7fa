"""Every judge with a margin predicts its verdicts under other margins, and judging again confirms them."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.verdicts import (
    ComparableClaim,
    ComparedArms,
    GainClaim,
    Sample,
    Status,
    UniformClaim,
    ValueClaim,
    Verdict,
    judge_comparable,
    judge_gain,
    judge_gap,
    judge_proportion,
    judge_uniform,
    judge_value,
)
from stages.verdicts.others import Failures
from tests.verdicts.simulation import RULES

MARGINS = st.floats(0.05, 3.0)
DRAWS = st.lists(st.floats(-2, 2, width=16), min_size=5, max_size=5).filter(lambda values: np.ptp(values) > 0.01)
SOMETIMES = settings(max_examples=25, deadline=None, report_multiple_bugs=False)


def assert_says_what_it_would_say(judge: Callable[[float], Verdict], margin: float) -> Verdict:
    """Judge again just below and above each predicted change of verdict, and far beyond the last."""
    verdict = judge(margin)
    stretches = verdict.by_margin
    following = [*stretches[1:], None] if stretches else []
    for before, after in zip(stretches, following, strict=True):
        if after is None:
            assert judge(4 * before.start + 1).status is before.status
        else:
            step = 1e-6 * (1 + after.start)
            assert judge(after.start + step).status is after.status, (after, judge(after.start + step).explanation)
            if after.start - before.start > step:
                assert judge(after.start - step).status is before.status, before
    now = [one.status for one in stretches if one.start <= margin]
    edges = [*(one.start for one in stretches), abs(verdict.estimate or 0.0)]  # a margin of exactly |D| decides nothing
    assert not stretches or now[-1] is verdict.status or min(abs(edge - margin) for edge in edges) < 1e-6
    return verdict


@SOMETIMES
@example([0.0, 0.0, 1.0, 0.0, 1.0], 1.0, 0.5, 0.0, 0.05)
@given(DRAWS, st.floats(-2, 2), MARGINS, st.sampled_from([None, 0.0, 0.1]), st.sampled_from([0.0, 0.05]))
def test_value_flips_as_predicted(
    ours: list[float], printed: float, margin: float, stderr: float | None, widening: float
) -> None:
    def judge(by: float) -> Verdict:
        claim = ValueClaim(value=printed, margin=by, stderr=stderr, n=5)
        return judge_value(claim, Sample.of(ours), rules=RULES, planned=5, widening=widening)

    assert_says_what_it_would_say(judge, margin)


@SOMETIMES
@given(DRAWS, DRAWS, st.floats(0.1, 3), MARGINS)
@example([2.0, 1.98, 2.01, 2.02, 1.99], [0.0, 0.01, -0.01, 0.02, 0.0], 1.9, 0.5)
def test_gain_size_flips_as_predicted(ours: list[float], theirs: list[float], gain: float, margin: float) -> None:
    """A margin as large as the gain reproduces nothing, so the last stretch begins there."""

    def judge(by: float) -> Verdict:
        claim = GainClaim(gain=gain, margin=by, better="higher")
        arms = Sample.of(ours), Sample.of(theirs)
        size = judge_gain(claim, ComparedArms(*arms, rules=RULES, pairing="none", planned=5)).size
        assert size is not None
        assert judge_gap(claim, ComparedArms(*arms, rules=RULES, pairing="none", planned=5)).size == size
        return size

    verdict = assert_says_what_it_would_say(judge, margin)
    assert not any(one.status is Status.REPRODUCED and one.start >= gain for one in verdict.by_margin)


@SOMETIMES
@given(DRAWS, DRAWS, st.sampled_from([None, 0.5, 2.0]), MARGINS, st.booleans())
def test_comparable_arms_flip_as_predicted(
    ours: list[float], theirs: list[float], accepted: float | None, margin: float, diverges: bool
) -> None:
    def judge(by: float) -> Verdict:
        claim = ComparableClaim(margin=by, better="higher", accepted=accepted)
        proposed = Sample.of([*ours[:4], None if diverges else ours[4]])
        return judge_comparable(
            claim, ComparedArms(proposed, Sample.of(theirs), rules=RULES, pairing="none", planned=5)
        )

    assert_says_what_it_would_say(judge, margin)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(-1, 1), min_size=3, max_size=3), MARGINS)
def test_uniform_gain_flips_as_predicted(seed: int, gains: list[float], margin: float) -> None:
    random = np.random.default_rng(seed)
    arms = {
        at: [tuple(Sample.of(random.normal(mean, 0.1, 5).tolist()) for mean in (-gain, 0)) for _ in range(3)]
        for at, gain in enumerate(gains)
    }

    def judge(by: float) -> Verdict:
        claim = UniformClaim(factor="width", is_whole=True, gain=0.25, margin=by, better="lower")
        return judge_uniform(claim, arms, rules=RULES, replicates=5)

    assert_says_what_it_would_say(judge, margin)


@SOMETIMES
@given(st.lists(st.integers(0, 5), min_size=8, max_size=8), st.integers(0, 40), st.floats(0.001, 0.5))
def test_failure_rate_flips_as_predicted(ours: list[int], printed: int, margin: float) -> None:
    failed = Failures(counts=tuple(ours), each=5)
    assert_says_what_it_would_say(lambda by: judge_proportion((printed, 40), failed, by, rules=RULES), margin)


def test_value_changes_at_the_ends_of_its_interval() -> None:
    """Not reproduced below |D| − the outer half-width, reproduced from |D| + the inner one."""
    ours = [0.50, 0.52, 0.51, 0.53, 0.49]
    judged = judge_value(ValueClaim(value=0.61, margin=0.05, stderr=0.0), Sample.of(ours), rules=RULES, planned=5)
    error = np.std(ours, ddof=1) / np.sqrt(5)
    outer, inner = (scipy.stats.t.isf(alpha * 2 / 3, 4) * error for alpha in (0.025, 0.05))
    statuses, starts = zip(*((one.status, one.start) for one in judged.by_margin), strict=True)
    assert statuses == (Status.NOT_REPRODUCED, Status.INCONCLUSIVE, Status.REPRODUCED)
    assert starts == pytest.approx((0, 0.10 - outer, 0.10 + inner))


def test_equal_replicates_never_change() -> None:
    same = judge_value(ValueClaim(value=0.6, margin=0.05), Sample.of([0.5] * 5), rules=RULES)
    assert (same.by_margin, same.posterior) == ((), None)


def test_chance_is_the_posterior_probability_within_the_margin() -> None:
    """Compared with draws from the posterior D + SE · t."""
    ours, random = [0.50, 0.52, 0.51, 0.53, 0.49], np.random.default_rng(0)
    judged = judge_value(ValueClaim(value=0.52, margin=0.02, stderr=0.0), Sample.of(ours), rules=RULES, planned=5)
    error = np.std(ours, ddof=1) / np.sqrt(5)
    drawn = -0.01 + error * random.standard_t(4, 200_000)
    assert judged.posterior == pytest.approx(np.mean(np.abs(drawn) <= 0.02), abs=0.003)


@given(DRAWS, DRAWS)
def test_chance_of_an_order_is_one_minus_its_one_sided_p_value(ours: list[float], theirs: list[float]) -> None:
    arms = Sample.of(ours), Sample.of(theirs)
    up, down = (
        judge_gain(
            GainClaim(gain=gain, margin=None, better="higher"),
            ComparedArms(*arms, rules=RULES, pairing="fold", planned=5),
        ).posterior
        for gain in (1.0, -1.0)
    )
    if up is not None and np.mean(ours) != np.mean(theirs):
        t = scipy.stats.ttest_rel(ours, theirs, alternative="less")
        assert up == pytest.approx(t.pvalue, abs=1e-9) and down == pytest.approx(1 - up)


def test_chance_of_a_uniform_gain_follows_the_range_of_its_levels() -> None:
    """With two levels the range is |difference|, which follows Student's t: T((m − d)/s) − T((−m − d)/s)."""
    random = np.random.default_rng(3)
    arms = {
        at: [(Sample.of(random.normal(-at / 5, 0.1, 5).tolist()), Sample.of([0.0] * 5)) for _ in range(4)]
        for at in (1, 2)
    }
    claim = UniformClaim(factor="width", is_whole=True, gain=0.3, margin=0.25, better="lower")
    judged = judge_uniform(claim, arms, rules=RULES, replicates=5)
    cells = np.array([[-np.mean(arm.values) for arm, _ in row] for row in arms.values()])
    rest = cells - cells.mean(axis=0) - cells.mean(axis=1, keepdims=True) + cells.mean()
    assert judged.spread is not None and judged.spread**2 == pytest.approx(max((rest**2).sum() / 3, judged.spread**2))
    apart, scale = np.ptp(cells.mean(axis=1)), judged.spread * np.sqrt(2 / 4)
    within = scipy.stats.t.cdf((0.25 - apart) / scale, 3) - scipy.stats.t.cdf((-0.25 - apart) / scale, 3)
    assert judged.posterior == pytest.approx(within, abs=0.01)
