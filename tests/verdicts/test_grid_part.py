"""A gain over an incomplete grid of pairs: the statement covers only the pairs that ran."""

import dataclasses

import numpy as np
import pytest

from stages.verdicts import GainClaim, GridPart, Sample, Status, Verdict, judge_gain
from stages.verdicts.grid_part import Cell, whole_slices
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
    return judge_gain(claim, *means, rules=RULES, pairing="none", planned=SEEDS, part=part, pairs=ran)


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
