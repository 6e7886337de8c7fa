"""A table's sentence: the mean gain over its orders, its error rate, and its power if the paper is right."""

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import PrintedOrder, Status, TableSentence, Verdict, judge_table
from stages.verdicts.families import measure_heterogeneity
from tests.verdicts.simulation import RULES

SHARE = RULES.alpha_outside * RULES.looks[5]
FOLDS = 5
STEPS = np.array([0.001, -0.002, 0.0, 0.003, -0.002])


def order(gain: float | None, *, dataset: str = "one", printed: float = 0.004, turn: int = 0) -> PrintedOrder:
    """Five folds with this mean gain; `turn` rotates the steps among folds."""
    steps = np.roll(STEPS, turn)
    gains = {} if gain is None else {fold: gain + float(step) for fold, step in enumerate(steps)}
    verdict = Verdict(
        status=Status.NOT_TESTED if gain is None else Status.UNRESOLVED,
        explanation="",
        estimate=gain,
        stderr=None if gain is None else float(stats.sem(STEPS)),
        n=0 if gain is None else FOLDS,
        p_value=None if gain is None else 0.5,
        share=RULES.looks[FOLDS],
    )
    return PrintedOrder(verdict=verdict, printed=printed, dataset=dataset, gains=gains)


def table(*gains: float | None, printed: float = 0.004) -> TableSentence:
    return judge_table([order(gain, printed=printed, turn=at) for at, gain in enumerate(gains)], RULES)


def test_mean_on_one_data_set_has_students_interval() -> None:
    gains = [0.010, 0.004, 0.016, 0.007]
    found = table(*gains)
    folds = np.mean([gain + np.roll(STEPS, at) for at, gain in enumerate(gains)], axis=0)
    expected = stats.t.interval(1 - SHARE, FOLDS - 1, folds.mean(), stats.sem(folds))
    assert (found.low, found.high) == pytest.approx(expected)
    own = stats.sem(STEPS) ** 2
    assert found.tau == pytest.approx((np.var(gains, ddof=1) - own) ** 0.5)
    assert found.i2 == pytest.approx(found.tau**2 / (found.tau**2 + own))
    assert found.p_heterogeneity == pytest.approx(stats.f.sf(np.var(gains, ddof=1) / own, 3, 16))


def test_data_sets_are_independent_and_weighted_by_orders() -> None:
    orders = [order(0.01), order(0.02, turn=1), order(0.06, dataset="other")]
    found = judge_table(orders, RULES)
    one = np.mean([0.01 + STEPS, 0.02 + np.roll(STEPS, 1)], axis=0)
    parts = np.array([(2 / 3) ** 2 * one.var(ddof=1) / FOLDS, (1 / 3) ** 2 * STEPS.var(ddof=1) / FOLDS])
    df = parts.sum() ** 2 / (parts**2 / (FOLDS - 1)).sum()
    assert found.gain == pytest.approx(0.03)
    assert found.high - found.gain == pytest.approx(stats.t.isf(SHARE / 2, df) * parts.sum() ** 0.5)
    assert "of these 3 orders on 2 data sets" in found.text


def test_repeated_orders_count_once() -> None:
    once, thrice = (judge_table([order(0.01)] * times, RULES) for times in (1, 3))
    assert once.high - once.low == pytest.approx(thrice.high - thrice.low)


def test_equal_orders_have_no_heterogeneity() -> None:
    order = Verdict(status=Status.SUPPORTED, explanation="", estimate=0.01, stderr=0.002, n=5)
    found = measure_heterogeneity([order, order])
    assert found.tau == 0 and found.i2 == 0
    assert measure_heterogeneity([order]) is None


def test_sentences_state_direction_and_count() -> None:
    for sign, status in ((1, Status.SUPPORTED), (-1, Status.REVERSED)):
        found = table(*(sign * gain for gain in (0.010, 0.009, 0.011, 0.010)))
        assert found.status is status
        assert (
            f"the paper's +0.004: {status}. {4 if sign > 0 else 0} of 4 ahead. They differ by no more than"
            in found.text
        )
    assert table(-0.010, -0.008, -0.012, -0.009, printed=-0.01).status is Status.SUPPORTED, "the paper's arm is worse"
    open_still = table(0.010, -0.010, 0.012, -0.011)
    assert open_still.status is Status.UNRESOLVED and "They differ by τ = 0.012 beyond chance (p = " in open_still.text
    assert (open_still.ahead, open_still.tested) == (2, 4)


def test_orders_without_evidence_are_omitted_and_mentioned() -> None:
    found = table(0.010, None, 0.012, 0.009)
    assert found.text.startswith("Mean gain of 3 of 4 orders on 1 data set +0.0103")
    assert found.tested == 3 and found.status is Status.UNRESOLVED, "it is judged once"
    assert "+0.004: unresolved, because it is judged once all orders have run. 3 of 3 ahead." in found.text
    nothing = table(None, None)
    assert (nothing.status, nothing.text) == (Status.NOT_TESTED, "None of 2 orders has enough replicates yet.")
    alone = table(0.01, None)
    assert (alone.status, alone.tau) == (Status.UNRESOLVED, None) and alone.text.endswith("1 of 1 ahead.")
    apart = [order(0.01), order(0.01, turn=1)]
    apart[1].gains.clear()  # type: ignore[attr-defined]
    nothing = judge_table(apart, RULES)
    assert nothing.status is Status.UNRESOLVED and "fewer than two replicates in common: no interval" in nothing.text
