"""A gain claimed to be alike at every level: the F test, its margin, and how often both err."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import Sample, Status, UniformClaim, Verdict, judge_uniform
from stages.verdicts.uniform import Gains, measure_levels, p_alike, p_apart
from tests.verdicts.simulation import RULES, above

CLAIM = UniformClaim(factor="width", is_whole=True, gain=0.25, margin=0.0625, better="lower")
N, DEPTHS = 5, 2
Pairs = dict[int, list[tuple[Sample, Sample]]]


def pairs(gains: list[float], *, seed: int = 0, spread: float = 0.05, n: int = N) -> Pairs:
    rng = np.random.default_rng(seed)
    drawn: Pairs = {}
    for number, gain in enumerate(gains):
        arms = [(rng.normal(-5 - gain, spread, n), rng.normal(-5, spread, n)) for _ in range(DEPTHS)]
        drawn[number] = [(Sample.of(one.tolist()), Sample.of(other.tolist())) for one, other in arms]
    return drawn


def judge(levels: Pairs, claim: UniformClaim = CLAIM) -> Verdict:
    return judge_uniform(claim, levels, rules=RULES)


def test_f_is_that_of_an_analysis_of_variance() -> None:
    """With one pair per level and a baseline that doesn't vary, F and p are those of SciPy's one-way analysis."""
    rng = np.random.default_rng(0)
    draws = [rng.normal(gain, 0.1, N) for gain in (0.1, 0.2, 0.4)]
    baseline = Sample.of([0.0] * N)
    levels = {number: [(Sample.of((-row).tolist()), baseline)] for number, row in enumerate(draws)}
    gains = measure_levels(CLAIM, levels, N)
    expected = stats.f_oneway(*draws)
    assert gains.f == pytest.approx(expected.statistic)
    # The constant arms count as measured ones: their df are known to be too many here, and only here.
    assert dataclasses.replace(gains, df=12).p == pytest.approx(expected.pvalue)
    assert gains.values == pytest.approx([row.mean() for row in draws])


@pytest.mark.parametrize(
    ("gains", "status"),
    [
        ([0.25] * 7, Status.REPRODUCED),
        ([0.16, 0.13, 0.18, 0.21, 0.28, 0.31, 0.31], Status.NOT_REPRODUCED),
        ([0.22, 0.22, 0.22, 0.22, 0.28, 0.28, 0.28], Status.INCONCLUSIVE),
    ],
)
def test_levels_are_alike_where_no_two_are_further_apart_than_the_margin(gains: list[float], status: Status) -> None:
    verdict = judge(pairs(gains, spread=0.02))
    assert verdict.status is status
    assert verdict.low <= verdict.estimate and (verdict.estimate <= verdict.high or verdict.high == 0)
    assert (status is Status.REPRODUCED) == (verdict.high <= CLAIM.margin)
    assert (status is Status.NOT_REPRODUCED) == (verdict.low > CLAIM.margin)


def test_the_sentence_has_every_level_and_those_outside_the_margin() -> None:
    verdict = judge(pairs([0.10, 0.05, 0.18, 0.21, 0.28, 0.31, 0.31], spread=0.02))
    assert "wholly outside 0.25 ± 0.0625: 0, 1." in verdict.explanation
    assert "Exactly alike: F(6, 112) = " in verdict.explanation
    assert verdict.p_value < 1e-10


def test_the_ends_of_the_interval_are_where_f_is_just_excluded() -> None:
    gains = Gains(values=np.array([0.1, 0.2, 0.3, 0.3]), spread=0.1, variance=0.0004, df=48)
    low, high = gains.range_interval(0.02)
    assert stats.ncf.sf(gains.f, 3, 48, low**2 / gains.variance) == pytest.approx(0.02)
    assert stats.ncf.cdf(gains.f, 3, 48, high**2 / 2 / gains.variance) == pytest.approx(0.02)
    alike = Gains(values=np.array([0.2, 0.2, 0.2001]), spread=0.1, variance=0.0004, df=48)
    assert alike.range_interval(0.02) == (0.0, 0.0), "closer than chance lets them be"


def test_what_chance_alone_explains_may_be_no_difference_at_all() -> None:
    """SciPy's noncentral F is not a probability where λ is 0."""
    gains = Gains(values=np.array([0.24, 0.25, 0.26]), spread=0.1, variance=0.01**2, df=24)
    assert gains.range_interval(0.05)[0] == 0.0
    assert p_apart(gains.f, 3, 24, 0.0) == pytest.approx(gains.p)
    assert p_alike(gains.f, 3, 24, 0.0) == pytest.approx(1 - gains.p)


def test_gains_far_closer_than_the_margin_are_alike() -> None:
    """SciPy's series doesn't end there: a tail of 0 comes back as NaN."""
    assert stats.ncf.cdf(1.490915244342992, 4, 24, 1800.5345513461411) != 0
    assert p_alike(1.490915244342992, 5, 24, 2 * 1800.5345513461411) == 0.0
    assert p_apart(1.490915244342992, 5, 24, 1800.5345513461411) == 1.0


def test_part_of_the_pairs_can_refute_and_not_confirm() -> None:
    some = dataclasses.replace(CLAIM, is_whole=False)
    assert judge(pairs([0.25] * 7, spread=0.02), some).status is Status.INCONCLUSIVE
    assert judge(pairs([0.1] * 3 + [0.4] * 4, spread=0.02), some).status is Status.NOT_REPRODUCED


def test_what_cannot_be_compared_is_left_open() -> None:
    levels = pairs([0.25] * 7)
    levels[3][0] = (Sample.of([None, -5.0, -5.1, -5.2, -5.1]), levels[3][0][1])
    assert (judge(levels).status, judge(levels).n_diverged) == (Status.INCONCLUSIVE, 1)
    assert judge(pairs([0.25] * 7, n=4)).explanation.startswith("4 of the first 5")
    assert judge(pairs([0.25])).status is judge(pairs([0.25] * 7, spread=0.0)).status is Status.INCONCLUSIVE


# Standard deviations that SGEMM's networks have over seeds, smallest widths first.
SEEN = np.array([0.055, 0.058, 0.045, 0.037, 0.041, 0.036, 0.037])


@pytest.mark.parametrize(
    ("gains", "errs"),
    [
        pytest.param([0.25] * 7, p_apart, id="alike"),
        pytest.param([0.25] * 3 + [0.3125] * 4, p_apart, id="half-at-each-end-of-the-margin"),
        pytest.param([0.25] + [0.28125] * 5 + [0.3125], p_alike, id="as-far-apart-as-the-margin"),
    ],
)
def test_it_errs_no_more_often_than_it_says(gains: list[float], errs: Callable[..., np.ndarray]) -> None:
    """Small networks vary more from seed to seed; F assumes that all vary alike."""
    trials, nominal = 20_000, 0.0125
    draws = np.random.default_rng(2).normal(0, SEEN[:, None, None, None], (trials, 7, DEPTHS, 2, N))
    by_level = draws[:, :, :, 0].mean(axis=(2, 3)) - draws[:, :, :, 1].mean(axis=(2, 3)) + gains
    variance = 2 * draws.var(axis=-1, ddof=1).mean(axis=(1, 2, 3)) / N / DEPTHS
    f = by_level.var(axis=1, ddof=1) / variance
    p = errs(f, 7, 2 * (N - 1) * 7 * DEPTHS, CLAIM.margin**2 / variance)
    assert np.mean(p < nominal) <= above(nominal, trials)


def test_what_the_paper_reports_would_be_told() -> None:
    """Gains as uneven as ours are found at this margin in most repetitions, and twice the margin isn't excluded."""
    trials = 2_000
    gains = np.array([0.156, 0.127, 0.178, 0.206, 0.275, 0.309, 0.307])
    draws = np.random.default_rng(3).normal(0, 0.045, (trials, 7, DEPTHS, 2, N))
    by_level = gains + draws[:, :, :, 0].mean(axis=(2, 3)) - draws[:, :, :, 1].mean(axis=(2, 3))
    variance = 2 * draws.var(axis=-1, ddof=1).mean(axis=(1, 2, 3)) / N / DEPTHS
    f = by_level.var(axis=1, ddof=1) / variance
    told = [np.mean(p_apart(f, 7, 112, (times * CLAIM.margin) ** 2 / variance) < 0.0125) for times in (1, 2)]
    assert told[0] > 0.9 and told[1] < 0.2
