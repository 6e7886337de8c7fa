"""A gain over an incomplete grid of pairs: the statement covers only the pairs that ran."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import GainClaim, GridPart, Sample, Status, Verdict, judge_gain
from stages.verdicts.grid_part import Cell, whole_slices
from stages.verdicts.intervals import combine, half_width, level, looks_of_part, looks_of_plan
from tests.verdicts.simulation import RULES, above

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
    return judge_gain(claim, *means, rules=RULES, pairing="none", planned=SEEDS, part=part, pairs=ran)


def test_sequential_depths_err_no_more_often_than_one_analysis() -> None:
    """Without any gain, judged after each of five depths at 3 and 5 seeds; at the full level each time, 5.7 % err."""
    trials, nominal = 12_000, RULES.alpha_outside / 2
    draws = np.random.default_rng(1).normal(0, 0.05, (2, trials, len(DEPTHS), len(WIDTHS), SEEDS))
    wrong = {"shared": np.zeros(trials, bool), "full": np.zeros(trials, bool)}
    looks = looks_of_plan(RULES.looks, SEEDS)
    for depths in range(1, len(DEPTHS) + 1):
        shared = looks_of_part(looks, depths * len(WIDTHS), len(GRID))
        for n in looks:
            arms = draws[:, :, :depths, :, :n].mean(axis=(2, 3))
            variance, df = combine([(arm.var(axis=-1, ddof=1) / n, n - 1.0) for arm in arms])
            gain = arms[0].mean(axis=-1) - arms[1].mean(axis=-1)
            for name, at in (("shared", shared), ("full", looks)):
                wrong[name] |= gain > half_width(variance, df, level(at, n, nominal))
    assert wrong["shared"].mean() <= above(nominal, trials)
    assert wrong["full"].mean() == pytest.approx(0.057, abs=0.008)


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
    by_seeds = judge(GRID, np.tile(gains, 3)[:35], noise=some_noise(35))
    assert "didn't run" not in by_seeds.explanation and by_seeds.status is Status.SUPPORTED
    assert verdict.size.prediction is None, "the paper's rerun would cover every depth"
    assert by_seeds.size.prediction is not None


def whole_grid(gains: Sequence[float], ran: int, order: str, trials: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Simulate 96.7 % intervals [trials] of all widths' mean gain, as if those that ran were drawn at random.

    `gains` are those of the widths, with five seeds of one SD.  Var = (1 − l/L) s²/l (Cochran 1977, ch. 2) has its own
    t, and so has the variance of the seeds (Banerjee 1960).  Until 2026-11, verdicts on a part showed this interval.
    """
    rng, levels, alpha = np.random.default_rng(0), len(gains), (1 - 0.967) / 2
    which = np.tile(np.arange(levels), (trials, 1))
    which = (rng.permuted(which, axis=1) if order == "random" else which)[:, :ran]
    seeds = 2 * 0.05**2 / (SEEDS * len(DEPTHS))
    seen = np.array(gains)[which] + rng.normal(0, seeds**0.5, which.shape)
    between = (1 - ran / levels) * seen.var(axis=1, ddof=1) / ran
    parts = (seeds / ran, 2.0 * (SEEDS - 1)), (between, ran - 1.0)
    half = np.sqrt(sum(stats.t.isf(alpha, df) ** 2 * variance for variance, df in parts))
    return seen.mean(axis=1) - half, seen.mean(axis=1) + half


FLAT = (0.2,) * 7
PUBLISHED = (0.156, 0.125, 0.18, 0.205, 0.275, 0.305, 0.305)
"""Gains of SGEMM's widths, from 18 to 141 units, over 5 and 8 layers."""
FALLING = (0.1, 0.1, 0.1, -0.1, -0.2, -0.2, -0.2)


@pytest.mark.parametrize(
    ("gains", "ran", "coverage", "wrong_sign"),
    [
        (FLAT, 3, 0.999, 0),
        (PUBLISHED, 3, 0.57, 0),
        (PUBLISHED, 4, 0.26, 0),
        (FALLING, 2, 0.33, 0.45),
        (FALLING, 3, 0, 1),
    ],
)
def test_narrowest_widths_say_nothing_of_the_whole_grid(
    gains: tuple[float, ...], ran: int, coverage: float, wrong_sign: float
) -> None:
    """A random sample of widths would keep 96.7 % if gains hardly jump; the narrowest ones don't."""
    mean = np.mean(gains)
    low, high = whole_grid(gains, ran, "narrowest")
    assert np.mean((low <= mean) & (mean <= high)) == pytest.approx(coverage, abs=0.03)
    assert np.mean((low > 0) & (mean < 0)) == pytest.approx(wrong_sign, abs=0.03)
    low, high = whole_grid(gains, ran, "random")
    assert np.mean((low <= mean) & (mean <= high)) > (0.8 if gains is FALLING else 0.94)


def test_verdict_on_the_narrowest_widths_errs_at_its_level_and_leaves_the_grid_open() -> None:
    """The widths that ran gain nothing on average; wider ones would gain."""
    there, rng = cells(widths=WIDTHS[:3]), np.random.default_rng(1)
    gains = np.repeat([-0.05, 0.0, 0.05], len(DEPTHS))
    verdicts = [judge(there, gains, noise=rng.normal(0, 0.05, (2, len(there), SEEDS))) for _ in range(100)]
    wrong = sum(verdict.status is not Status.UNRESOLVED for verdict in verdicts)
    assert wrong / len(verdicts) <= above(RULES.alpha_outside, len(verdicts))
    for verdict in verdicts:
        assert verdict.scope is not None and verdict.scope.missing == WIDTHS[3:]
        assert verdict.explanation.endswith("They may differ by any amount, so the whole grid isn't judged.")


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
