"""A gain over an incomplete grid of pairs: the statement covers only the pairs that ran."""

import dataclasses

import numpy as np
import pytest
from scipy import special

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
    """The sign uses the part's share of alpha; the whole grid's interval uses all of it, because it decides nothing."""
    part = judge(SLICES, np.full(14, 0.2), noise=some_noise(14))
    whole = judge(GRID, np.full(35, 0.2), noise=some_noise(35))
    look = RULES.alpha_outside * 2 / 3
    assert (1 - part.confidence, 1 - whole.confidence) == (pytest.approx(look * 0.2 / 34), pytest.approx(look * 0.8))
    assert part.scope.whole_confidence == pytest.approx(1 - look)
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


def test_two_depths_say_little_about_five() -> None:
    """Compared with a hand calculation: Student's t with one degree of freedom."""
    gains, noise = np.tile([0.20, 0.24], 7), some_noise(14)
    verdict = judge(SLICES, gains, noise=noise)
    arms = noise + np.stack([gains, np.zeros(14)])[:, :, None]
    seeds = [arm.mean(axis=0).var(ddof=1) / SEEDS for arm in arms]
    df = sum(seeds) ** 2 / sum(variance**2 / (SEEDS - 1) for variance in seeds)
    by_depth = (arms[0] - arms[1]).mean(axis=1).reshape(7, 2).mean(axis=0)
    depths = (1 - 2 / 5) * by_depth.var(ddof=1) / 2
    tail = (1 + verdict.scope.whole_confidence) / 2
    half = np.sqrt(special.stdtrit(df, tail) ** 2 * sum(seeds) + special.stdtrit(1, tail) ** 2 * depths)
    assert part_of(SLICES, arms).half_width_of_whole((sum(seeds), df), SEEDS, 1 - tail) == pytest.approx(half)
    assert half > 0.3 > 10 * (verdict.high - verdict.low) / 2
    assert f"96.7 % interval −{half - 0.22:.2f} to +{half + 0.22:.2f}." in verdict.explanation


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
