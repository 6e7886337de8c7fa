"""How often verdicts are wrong, by simulation from known truths: 20,000 experiments each, in units of the spread."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import Sample, Status, ValueClaim, judge_value
from stages.verdicts.intervals import combine, half_width, is_within
from stages.verdicts.looks import level
from tests.verdicts.simulation import RULES, World, above, draw, judge_all, planned_looks, rates

SINGLE_RUN = {"paper_n": 1, "prints_error": False}
WITH_ERROR = {"paper_n": 5, "prints_error": True}
PAPERS = pytest.mark.parametrize("paper", [SINGLE_RUN, WITH_ERROR], ids=["single-run", "with-error"])


@PAPERS
def test_a_shift_of_the_margin_is_reproduced_with_at_most_alpha_over_all_looks(paper: dict) -> None:
    false, _ = rates(World(shift=6.0, margin=6.0, **paper))
    assert false <= above(RULES.alpha_within)


@PAPERS
def test_a_shift_of_the_margin_is_not_reproduced_with_at_most_alpha_over_all_looks(paper: dict) -> None:
    _, false = rates(World(shift=6.0, margin=6.0, **paper))
    assert false <= above(RULES.alpha_outside / 2)


@PAPERS
def test_the_papers_own_procedure_is_hardly_ever_called_not_reproduced(paper: dict) -> None:
    for margin in (0.0, 0.5, 1.0, 4.0):
        _, false = rates(World(shift=0.0, margin=margin, **paper))
        assert false <= above(RULES.alpha_outside), f"margin {margin}"


def test_the_papers_own_procedure_is_reproduced_once_the_margin_leaves_room_for_its_single_run() -> None:
    """Hardly ever at 2 standard deviations, about half the time at 3, nearly always at 5."""
    power = {margin: rates(World(shift=0.0, margin=margin, **SINGLE_RUN))[0] for margin in (1, 2, 3, 4, 5)}
    assert power[1] < 0.01 and power[2] < 0.13 and 0.5 < power[3] < 0.6 and power[4] > 0.85 and power[5] > 0.97
    assert list(power.values()) == sorted(power.values())


@PAPERS
def test_power_falls_as_the_truth_moves_away(paper: dict) -> None:
    reproduced, refuted = zip(*(rates(World(shift=d, margin=4.0, **paper)) for d in (0, 1, 2, 4, 6, 8)), strict=True)
    assert list(reproduced) == sorted(reproduced, reverse=True)
    assert list(refuted) == sorted(refuted)
    assert refuted[-1] > 0.75


def test_more_replicates_give_more_power() -> None:
    world = World(shift=0.5, margin=2.5, **WITH_ERROR)
    looks = judge_all(world, draw(world, 20_000, seed=1))
    shares = [float(reproduced.mean()) for reproduced, _ in looks.values()]
    assert shares == sorted(shares) and shares[0] < 0.5 < 0.75 < shares[-1]


def test_looking_whenever_one_likes_is_wrong_three_times_as_often() -> None:
    """The reason why looks are planned: replicates one by one from 3 to 10, each time at the full level."""
    trials, margin = 20_000, 3.0
    draws = np.random.default_rng(2).normal(margin, 1, (trials, 10))
    false = np.zeros(trials, bool)
    for n in range(3, 11):
        half = half_width(draws[:, :n].var(axis=1, ddof=1) / n, n - 1, RULES.alpha_within)
        false |= is_within(draws[:, :n].mean(axis=1), half, margin)
    assert 0.13 < false.mean() < 0.16


@PAPERS
def test_the_interval_covers_the_true_shift_as_often_as_it_says(paper: dict) -> None:
    world = World(shift=0.7, margin=1.0, **paper)
    draws = draw(world, 20_000, seed=3)
    for n in planned_looks(world):
        s2 = draws.ours[:, :n].var(axis=1, ddof=1)
        ours = (s2 * (1 / n + 1), n - 1.0) if draws.stderr is None else (s2 / n, n - 1.0)
        variance, df = combine([ours] if draws.stderr is None else [ours, (draws.stderr**2, world.paper_n - 1.0)])
        error = np.abs(draws.ours[:, :n].mean(axis=1) - draws.printed - world.shift)
        assert np.mean(error <= half_width(variance, df, 0.05)) == pytest.approx(0.90, abs=0.012)


@PAPERS
def test_the_array_pass_says_what_judge_value_says(paper: dict) -> None:
    """So the rates above are those of the real function."""
    for shift in (0.0, 2.5, 8.0):
        world = World(shift=shift, margin=3.0, **paper)
        draws = draw(world, 60, seed=4)
        for n, (reproduced, refuted) in judge_all(world, draws).items():
            for trial in range(60):
                error = None if draws.stderr is None else float(draws.stderr[trial])
                claim = ValueClaim(
                    value=float(draws.printed[trial]), margin=world.margin, stderr=error, n=world.paper_n
                )
                verdict = judge_value(claim, Sample.of(draws.ours[trial, :n].tolist()), rules=RULES)
                assert (verdict.status is Status.REPRODUCED) == bool(reproduced[trial])
                assert (verdict.status is Status.NOT_REPRODUCED) == bool(refuted[trial])


def test_an_order_of_equal_arms_is_decided_with_at_most_alpha_over_all_looks() -> None:
    """Independent arms by Welch, and shared folds whose folds differ more than the arms do."""
    trials, rng = 20_000, np.random.default_rng(5)
    folds = rng.normal(0, 3, (trials, 10))
    arms = [folds + rng.normal(0, 1, (trials, 10)) for _ in range(2)]
    alone = [rng.normal(0, spread, (trials, 10)) for spread in (1, 2)]
    false = {"fold": np.zeros(trials, bool), "none": np.zeros(trials, bool)}
    for n in RULES.looks:
        alpha = level(RULES.looks, n, RULES.alpha_outside / 2)
        pairs = (arms[0] - arms[1])[:, :n]
        false["fold"] |= np.abs(pairs.mean(axis=1)) > half_width(pairs.var(axis=1, ddof=1) / n, n - 1.0, alpha)
        variance, df = combine([(arm[:, :n].var(axis=1, ddof=1) / n, n - 1.0) for arm in alone])
        gain = alone[0][:, :n].mean(axis=1) - alone[1][:, :n].mean(axis=1)
        false["none"] |= np.abs(gain) > half_width(variance, df, alpha)
    assert {pairing: wrong.mean() <= above(RULES.alpha_outside) for pairing, wrong in false.items()} == {
        "fold": True,
        "none": True,
    }


@pytest.mark.slow
@PAPERS
@pytest.mark.parametrize("margin", [1.0, 3.0, 10.0])
def test_size_holds_over_many_margins(paper: dict, margin: float) -> None:
    trials = 200_000
    reproduced, refuted = rates(World(shift=margin, margin=margin, **paper), trials, seed=6)
    assert reproduced <= above(RULES.alpha_within, trials)
    assert refuted <= above(RULES.alpha_outside / 2, trials)


@pytest.mark.slow
def test_size_holds_for_long_tailed_replicates() -> None:
    """Student's t with 5 df instead of normal draws: what a rare bad seed looks like."""
    trials, rng = 100_000, np.random.default_rng(7)
    ours = stats.t.rvs(5, size=(trials, 10), random_state=rng)
    false = np.zeros(trials, bool)
    for n in RULES.looks:
        alpha = level(RULES.looks, n, RULES.alpha_within)
        half = half_width(ours[:, :n].var(axis=1, ddof=1) / n, n - 1.0, alpha)
        false |= is_within(ours[:, :n].mean(axis=1) + 4.0, half, 4.0)
    assert false.mean() <= above(RULES.alpha_within, trials)
