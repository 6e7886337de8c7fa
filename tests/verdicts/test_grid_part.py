"""A gain over a grid of pairs of which a part has results: what the others could add is in the interval."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import GainClaim, GridPart, Sample, Status, judge_gain
from tests.verdicts.simulation import RULES, above

CLAIM = GainClaim(gain=0.2, margin=0.05, better="higher")
PLANNED = 35


def judge(gains: np.ndarray, planned: int, *, noise: np.ndarray, claim: GainClaim = CLAIM):
    """`gains` [pairs], `noise` [2, pairs, replicates]: the arms of each pair, judged by their means."""
    proposed, baseline = gains[:, None] + noise[0], noise[1]
    pairs = tuple(
        (Sample.of(one.tolist()), Sample.of(other.tolist())) for one, other in zip(proposed, baseline, strict=True)
    )
    part = GridPart(pairs, planned) if len(pairs) < planned else None
    means = (Sample.of(arm.mean(axis=0).tolist()) for arm in (proposed, baseline))
    return judge_gain(claim, *means, rules=RULES, pairing="none", part=part)


def some_noise(pairs: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.01, (2, pairs, 5))


def test_pairs_that_differ_say_little_of_those_without_results() -> None:
    gains, noise = np.array([0.05, 0.10, 0.30, 0.35]), some_noise(4)
    whole, part = judge(gains, 4, noise=noise), judge(gains, 35, noise=noise)
    assert (whole.status, part.status) == (Status.SUPPORTED, Status.UNRESOLVED)
    assert whole.estimate == part.estimate
    assert (part.high - part.low) > 10 * (whole.high - whole.low)


def test_the_interval_is_that_of_seeds_and_of_a_finite_population() -> None:
    gains, noise = np.array([0.18, 0.20, 0.25]), some_noise(3)
    arms = gains[:, None] + noise[0], noise[1]
    seeds = [arm.mean(axis=0).var(ddof=1) / 5 for arm in arms]
    pairs = 7 / 10 * (arms[0].mean(axis=1) - arms[1].mean(axis=1)).var(ddof=1) / 3
    variance = sum(seeds) + pairs
    df = variance**2 / (sum(part**2 / 4 for part in seeds) + pairs**2 / 2)
    verdict = judge(gains, 10, noise=noise)
    half = stats.t.ppf((1 + verdict.confidence) / 2, df) * np.sqrt(variance)
    assert (verdict.low, verdict.high) == pytest.approx((verdict.estimate - half, verdict.estimate + half))
    # The size knows it, too: the paper's own error alone is added, that of one replicate of the mean.
    paper = sum(arm.mean(axis=0).var(ddof=1) for arm in arms)
    assert verdict.size.high - verdict.size.low > 2 * stats.norm.ppf(0.95) * np.sqrt(variance + paper)


def test_one_pair_says_nothing_of_a_grid() -> None:
    verdict = judge(np.array([0.2]), 35, noise=some_noise(1))
    assert verdict.status is Status.UNRESOLVED and verdict.low is None
    assert verdict.estimate == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("common", [0.0, 0.1])
@pytest.mark.parametrize("trained", [3, 10, 30])
def test_the_interval_covers_the_grids_gain_as_often_as_it_says(trained: int, common: float) -> None:
    """Grids whose pairs differ as SGEMM's do, each replicate with or without a gain of its own in all pairs at once.

    By the seeds alone the interval would miss five times as often.
    """
    rng, trials = np.random.default_rng(1), 600
    missed, missed_by_seeds = 0, 0
    for _ in range(trials):
        grid = rng.normal(0.2, 0.06, PLANNED)
        drawn, noise = rng.choice(grid, trained, replace=False), rng.normal(0, 0.05, (2, trained, 5))
        noise[0] += rng.normal(0, common, 5)
        verdict, by_seeds = judge(drawn, PLANNED, noise=noise), judge(drawn, trained, noise=noise)
        missed += not verdict.low <= grid.mean() <= verdict.high
        missed_by_seeds += not by_seeds.low <= grid.mean() <= by_seeds.high
    nominal = 1 - verdict.confidence
    assert missed / trials <= above(nominal, trials)
    if trained < PLANNED / 2 and not common:
        assert missed_by_seeds / trials > 5 * nominal


def test_where_pairs_are_missing_it_is_they_that_are_asked_for() -> None:
    gains, noise = np.array([0.05, 0.10, 0.30, 0.35]), some_noise(4)
    sharp = dataclasses.replace(CLAIM, stderr=0.001, n=5)
    part, whole = (judge(gains, planned, noise=noise, claim=sharp) for planned in (35, 4))
    assert whole.size.status is Status.REPRODUCED
    assert (part.status, part.size.status) == (Status.UNRESOLVED, Status.INCONCLUSIVE)
    assert part.explanation.count("more pairs are needed") == part.size.explanation.count("more pairs are needed") == 1
    assert part.replicates_expected is None
