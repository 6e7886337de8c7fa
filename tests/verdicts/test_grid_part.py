"""Gains over a grid of pairs: statements on the part that ran, and equal gains at every level."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import (
    ComparedArms,
    GainClaim,
    GridPart,
    Sample,
    Status,
    UniformClaim,
    Verdict,
    judge_gain,
    judge_uniform,
)
from stages.verdicts.grid_part import Cell, Distances, measure_levels, whole_slices
from tests.verdicts.simulation import RULES

CLAIM = GainClaim(gain=0.2, margin=0.05, better="higher")
WIDTHS, DEPTHS = (18, 25, 35, 50, 71, 100, 141), (5, 6, 8, 11, 16)


SEEDS = 5
Cells = tuple[Cell, ...]


def cells(widths: tuple[int, ...] = WIDTHS, depths: tuple[int, ...] = DEPTHS) -> Cells:
    return tuple({"name": "DACMLP", "width": width, "depth": depth} for width in widths for depth in depths)


GRID, SLICES = cells(), cells(depths=(5, 8))


def part_of(there: Cells, arms: np.ndarray) -> GridPart:
    """`arms` is [2, pairs, replicates]."""
    pairs = tuple((Sample.of(one.tolist()), Sample.of(other.tolist())) for one, other in zip(*arms, strict=True))
    return GridPart(pairs=pairs, cells=there, planned=GRID)


def judge(there: Cells, gains: np.ndarray, *, noise: np.ndarray, claim: GainClaim = CLAIM) -> Verdict:
    """Judge by the means of each pair's arms; `gains` is [pairs], `noise` [2, pairs, replicates]."""
    arms = noise + np.stack([gains, np.zeros_like(gains)])[:, :, None]
    part = part_of(there, arms) if len(there) < len(GRID) else None
    means = (Sample.of(arm.mean(axis=0).tolist()) for arm in arms)
    ran = len(there), len(GRID)
    return judge_gain(claim, ComparedArms(*means, rules=RULES, pairing="none", planned=SEEDS, part=part, pairs=ran))


def test_part_of_a_grid_needs_more_evidence_than_the_whole() -> None:
    part = judge(SLICES, np.full(14, 0.2), noise=some_noise(14))
    whole = judge(GRID, np.full(35, 0.2), noise=some_noise(35))
    look = RULES.alpha_outside * 2 / 3
    assert (1 - part.confidence, 1 - whole.confidence) == (pytest.approx(look * 0.2 / 34), pytest.approx(look * 0.8))
    weak = np.full(14, 0.007)
    alone = judge(SLICES, weak, noise=some_noise(14))
    assert alone.status is Status.UNRESOLVED and alone.p_value < look


def some_noise(pairs: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.01, (2, pairs, SEEDS))


def test_sentence_lists_the_depths_that_ran_and_the_missing_ones() -> None:
    gains = np.linspace(0.1, 0.3, 14)
    verdict = judge(SLICES, gains, noise=some_noise(14))
    assert verdict.status is Status.SUPPORTED
    assert "It is of depth 5 and 8 with every width; depth 6, 11 and 16 didn't run." in verdict.explanation
    assert verdict.scope is not None and (verdict.scope.ran, verdict.scope.missing) == ((5, 8), (6, 11, 16))
    by_seeds = judge(GRID, np.tile(gains, 3)[:35], noise=some_noise(35))
    assert "didn't run" not in by_seeds.explanation and by_seeds.status is Status.SUPPORTED
    assert verdict.size.prediction is None, "the paper's rerun would cover every depth"
    assert by_seeds.size.prediction is not None


def test_slices_are_complete_levels_of_one_factor() -> None:
    there = (*SLICES, GRID[1], GRID[6])
    assert [there[number] for number in whole_slices(there, GRID)] == list(SLICES), "two pairs of depth 6 are excluded"
    assert len(whole_slices(cells(widths=(18, 25)), GRID)) == 10, "two complete widths"
    assert whole_slices((GRID[0], GRID[7]), GRID) == []
    assert whole_slices(GRID, GRID) == list(range(35))


def test_printed_number_needs_every_pair() -> None:
    sharp = dataclasses.replace(CLAIM, stderr=0.001, n=5)
    for gain, of_whole in ((0.2, Status.REPRODUCED), (0.4, Status.NOT_REPRODUCED)):
        part = judge(SLICES, np.full(14, gain), noise=some_noise(14), claim=sharp)
        whole = judge(GRID, np.full(35, gain), noise=some_noise(35), claim=sharp)
        assert (part.status, part.size.status) == (Status.SUPPORTED, Status.INCONCLUSIVE)
        assert whole.size.status is of_whole
        assert part.size.explanation.endswith("more pairs are needed.") and part.size.replicates_expected is None


UNIFORM = UniformClaim(factor="width", is_whole=True, gain=0.25, margin=0.0625, better="lower")
N, OTHERS = 5, 5
Pairs = dict[int, list[tuple[Sample, Sample]]]


def pairs(gains: list[float], *, seed: int = 0, spread: float = 0.05, n: int = N, depths: int = OTHERS) -> Pairs:
    rng = np.random.default_rng(seed)
    drawn: Pairs = {}
    for number, gain in enumerate(gains):
        arms = [(rng.normal(-5 - gain, spread, n), rng.normal(-5, spread, n)) for _ in range(depths)]
        drawn[number] = [(Sample.of(one.tolist()), Sample.of(other.tolist())) for one, other in arms]
    return drawn


def judge_levels(levels: Pairs, claim: UniformClaim = UNIFORM) -> Verdict:
    return judge_uniform(claim, levels, rules=RULES)


def test_error_is_the_interaction_of_a_two_way_anova() -> None:
    """F = MS(levels)/MS(residual) of a least-squares fit of levels and slices without replication."""
    cell_gains = np.random.default_rng(1).normal(0.2, 0.1, (OTHERS, 3))
    slices = [pairs(row.tolist(), seed=depth, depths=1) for depth, row in enumerate(cell_gains)]
    levels = {at: [one[at][0] for one in slices] for at in range(3)}
    gains = measure_levels(UNIFORM, levels, N)
    cells = np.array(
        [[np.mean(theirs.values) - np.mean(ours.values) for ours, theirs in row] for row in levels.values()]
    )
    level, depth = np.indices(cells.shape)
    fit = np.hstack([np.eye(3)[level.ravel()], np.eye(OTHERS)[depth.ravel()]])
    residual = float(np.square(cells.ravel() - fit @ np.linalg.lstsq(fit, cells.ravel())[0]).sum())
    df = cells.size - np.linalg.matrix_rank(fit)
    assert (gains.df, gains.spread) == (df, pytest.approx((residual / df) ** 0.5))
    assert gains.f == pytest.approx(OTHERS * cells.mean(axis=1).var(ddof=1) / (residual / df))
    assert gains.p == pytest.approx(stats.f.sf(gains.f, 2, df))


def test_error_is_at_least_that_of_the_seeds() -> None:
    """Even if gains agree in every pair by chance."""
    steps = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    levels = {at: [(Sample.of((-5.25 + steps).tolist()), Sample.of((-5 + steps).tolist()))] * 3 for at in range(4)}
    gains = measure_levels(UNIFORM, levels, N)
    assert gains.spread == pytest.approx((2 * steps.var(ddof=1) / N) ** 0.5)
    assert judge_levels(levels).status is Status.REPRODUCED


def test_sentence_lists_all_levels_and_those_outside_the_margin() -> None:
    verdict = judge_levels(pairs([0.10, 0.05, 0.18, 0.21, 0.28, 0.31, 0.31], spread=0.02))
    assert "wholly outside 0.25 ± 0.0625: 0, 1. Better at every width. " in verdict.explanation
    assert "Exactly alike: F(6, 24) = " in verdict.explanation
    assert verdict.p_value < 1e-10
    assert "Better" not in judge_levels(pairs([0.0] + [0.3] * 6, spread=0.02)).explanation


def test_two_levels_are_compared_by_a_paired_t_test() -> None:
    """Each of several levels is compared with the mean of the others by Welch's test."""
    cells = np.random.default_rng(4).normal(0.2, 0.1, (2, OTHERS))
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
    assert (judge_levels(levels).status, judge_levels(levels).n_diverged) == (Status.INCONCLUSIVE, 1)
    assert judge_levels(pairs([0.25] * 7, n=4)).explanation.startswith("4 of the first 5")
    for few in (pairs([0.25]), pairs([0.25] * 7, depths=1), pairs([0.25] * 7, spread=0.0)):
        assert judge_levels(few).status is Status.INCONCLUSIVE
        assert (
            judge_levels(few).explanation
            == "Two levels of width and of another factor, with gains that differ, are needed."
        )
