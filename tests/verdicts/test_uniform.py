"""Uniform gains: distances between levels, and their error rate."""

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import Sample, Status, UniformClaim, Verdict, judge_uniform
from stages.verdicts.grid_part import Distances, measure_levels
from tests.verdicts.simulation import RULES

CLAIM = UniformClaim(factor="width", is_whole=True, gain=0.25, margin=0.0625, better="lower")
N, DEPTHS = 5, 5
Pairs = dict[int, list[tuple[Sample, Sample]]]


def pairs(gains: list[float], *, seed: int = 0, spread: float = 0.05, n: int = N, depths: int = DEPTHS) -> Pairs:
    rng = np.random.default_rng(seed)
    drawn: Pairs = {}
    for number, gain in enumerate(gains):
        arms = [(rng.normal(-5 - gain, spread, n), rng.normal(-5, spread, n)) for _ in range(depths)]
        drawn[number] = [(Sample.of(one.tolist()), Sample.of(other.tolist())) for one, other in arms]
    return drawn


def judge(levels: Pairs, claim: UniformClaim = CLAIM) -> Verdict:
    return judge_uniform(claim, levels, rules=RULES)


def test_error_is_the_interaction_of_a_two_way_anova() -> None:
    """F = MS(levels)/MS(residual) of a least-squares fit of levels and slices without replication."""
    cell_gains = np.random.default_rng(1).normal(0.2, 0.1, (DEPTHS, 3))
    slices = [pairs(row.tolist(), seed=depth, depths=1) for depth, row in enumerate(cell_gains)]
    levels = {at: [one[at][0] for one in slices] for at in range(3)}
    gains = measure_levels(CLAIM, levels, N)
    cells = np.array(
        [[np.mean(theirs.values) - np.mean(ours.values) for ours, theirs in row] for row in levels.values()]
    )
    level, depth = np.indices(cells.shape)
    fit = np.hstack([np.eye(3)[level.ravel()], np.eye(DEPTHS)[depth.ravel()]])
    residual = float(np.square(cells.ravel() - fit @ np.linalg.lstsq(fit, cells.ravel())[0]).sum())
    df = cells.size - np.linalg.matrix_rank(fit)
    assert (gains.df, gains.spread) == (df, pytest.approx((residual / df) ** 0.5))
    assert gains.f == pytest.approx(DEPTHS * cells.mean(axis=1).var(ddof=1) / (residual / df))
    assert gains.p == pytest.approx(stats.f.sf(gains.f, 2, df))


def test_error_is_at_least_that_of_the_seeds() -> None:
    """Even if gains agree in every pair by chance."""
    steps = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    levels = {at: [(Sample.of((-5.25 + steps).tolist()), Sample.of((-5 + steps).tolist()))] * 3 for at in range(4)}
    gains = measure_levels(CLAIM, levels, N)
    assert gains.spread == pytest.approx((2 * steps.var(ddof=1) / N) ** 0.5)
    assert judge(levels).status is Status.REPRODUCED


def test_sentence_lists_all_levels_and_those_outside_the_margin() -> None:
    verdict = judge(pairs([0.10, 0.05, 0.18, 0.21, 0.28, 0.31, 0.31], spread=0.02))
    assert "wholly outside 0.25 ± 0.0625: 0, 1. Better at every width. " in verdict.explanation
    assert "Exactly alike: F(6, 24) = " in verdict.explanation
    assert verdict.p_value < 1e-10
    assert "Better" not in judge(pairs([0.0] + [0.3] * 6, spread=0.02)).explanation


def test_two_levels_are_compared_by_a_paired_t_test() -> None:
    """Each of several levels is compared with the mean of the others by Welch's test."""
    cells = np.random.default_rng(4).normal(0.2, 0.1, (2, DEPTHS))
    by_t = stats.ttest_rel(*cells).confidence_interval(0.9)
    distances = Distances.between(cells)
    assert distances.largest(0.05) == pytest.approx(max(map(abs, by_t)))
    assert distances.least(0.05) == pytest.approx(max(0.0, max(by_t.low, -by_t.high)))
    more = np.vstack([cells, 0.2 + 0 * cells])
    levels = cells - more[2] / 2 - np.stack([more[3], more[3]]) / 2
    welch = stats.ttest_ind(*levels, equal_var=False)
    assert Distances.between(more).df[0] == pytest.approx(welch.df)
    assert Distances.between(more).apart[0] / Distances.between(more).variance[0] ** 0.5 == pytest.approx(
        abs(welch.statistic)
    )


def test_incomparable_levels_are_left_open() -> None:
    levels = pairs([0.25] * 7)
    levels[3][0] = (Sample.of([None, -5.0, -5.1, -5.2, -5.1]), levels[3][0][1])
    assert (judge(levels).status, judge(levels).n_diverged) == (Status.INCONCLUSIVE, 1)
    assert judge(pairs([0.25] * 7, n=4)).explanation.startswith("4 of the first 5")
    for few in (pairs([0.25]), pairs([0.25] * 7, depths=1), pairs([0.25] * 7, spread=0.0)):
        assert judge(few).status is Status.INCONCLUSIVE
        assert (
            judge(few).explanation == "Two levels of width and of another factor, with gains that differ, are needed."
        )
