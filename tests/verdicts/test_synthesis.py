"""A table's sentence: the gain over its orders, its error rate, and its content when the paper is right."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import Order, Status, TableSentence, Verdict, judge_table
from stages.verdicts.families import holm
from stages.verdicts.synthesis import Effect, pool_effects, synthesise
from tests.verdicts.simulation import RULES, above

SHARE = RULES.alpha_outside * RULES.looks[5]
FOLDS, TRIALS = 5, 20_000


def order(gain: float | None, *, arms: str, stderr: float = 0.002, n: int = FOLDS, printed: float = 0.004) -> Order:
    status = Status.NOT_TESTED if gain is None else Status.UNRESOLVED
    verdict = Verdict(
        status=status,
        explanation="",
        estimate=gain,
        stderr=None if gain is None else stderr,
        n=0 if gain is None else n,
        p_value=None if gain is None else 0.5,
        share=RULES.looks[n],
    )
    return Order(verdict=verdict, printed=printed, arms=frozenset(arms.split()))


def table(*gains: float | None, printed: float = 0.004) -> TableSentence:
    orders = [order(gain, arms=f"dac{i} base{i}", printed=printed) for i, gain in enumerate(gains)]
    return judge_table(orders, RULES)


def test_it_is_students_t_over_the_orders_where_they_differ() -> None:
    gains = [0.010, 0.004, 0.016, 0.007]
    found = table(*gains)
    expected = stats.t.interval(1 - SHARE, 3, np.mean(gains), stats.sem(gains))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.tau == pytest.approx((np.var(gains, ddof=1) - 0.002**2) ** 0.5)
    assert found.i2 == pytest.approx(found.tau**2 / (found.tau**2 + 0.002**2))
    assert found.p_heterogeneity == pytest.approx(stats.f.sf(np.var(gains, ddof=1) / 0.002**2, 3, 16))


def test_orders_that_happen_to_agree_keep_their_own_errors() -> None:
    found = synthesise([Effect(gain=0.01, stderr=0.002, df=4), Effect(gain=0.01, stderr=0.002, df=4)], 0.01)
    assert found.tau == 0 and found.share == 0
    assert found.half == pytest.approx(stats.t.ppf(0.99, 1) * 0.002 / 2**0.5)
    assert synthesise([Effect(gain=0.01, stderr=0.002, df=4)], 0.01) is None


def test_sentences_say_which_way_and_how_many() -> None:
    for sign, status in ((1, Status.SUPPORTED), (-1, Status.REVERSED)):
        found = table(*(sign * gain for gain in (0.010, 0.008, 0.012, 0.009)))
        assert found.status is status
        assert (
            f"the paper's +0.004: {status}. {4 if sign > 0 else 0} of 4 ahead. They differ by no more than"
            in found.text
        )
    assert table(-0.010, -0.008, -0.012, -0.009, printed=-0.01).status is Status.SUPPORTED, "said to be worse"
    open_still = table(0.010, -0.008, 0.012, -0.009)
    assert open_still.status is Status.UNRESOLVED and "They differ by τ = 0.011 beyond chance (p = " in open_still.text
    assert (open_still.ahead, open_still.tested) == (2, 4)


def test_orders_without_evidence_are_left_out_and_said() -> None:
    found = table(0.010, None, 0.012, 0.009)
    assert found.text.startswith("Mean gain over 3 of 4 orders +0.0103")
    assert (found.tested, found.holds) == (3, (False,) * 4)
    nothing = table(None, None)
    assert (nothing.status, nothing.text) == (Status.NOT_TESTED, "None of 2 orders has enough replicates yet.")
    assert "It is one comparison, which has no interval over orders." in table(0.01, None).text


def test_orders_that_share_an_arm_count_once() -> None:
    """A ranking on two data sets: each order's better arm is the next one's worse."""
    chain = [("a b", 0.01), ("b c", 0.03), ("c d", 0.02)]
    orders = [order(gain + 0.01 * at, arms=f"{arms[0]}{at} {arms[-1]}{at}") for at in (0, 1) for arms, gain in chain]
    found = judge_table(orders, RULES)
    assert found.gain == pytest.approx(0.025)
    assert found.high - found.gain == pytest.approx(stats.t.ppf(1 - SHARE / 2, 1) * 0.005)
    assert "over 6 orders in 2 groups without a common arm" in found.text
    assert judge_table(orders[:3], RULES).gain is None
    # An order that is judged last may join two groups.
    joined = [order(0.01, arms="a b"), order(0.02, arms="c d"), order(0.03, arms="b c")]
    assert judge_table(joined, RULES).gain is None


def table_1() -> tuple[np.ndarray, np.ndarray]:
    """Gains and their standard errors as printed in DAC's Table 1."""
    with (Path(__file__).parents[2] / "data" / "claims.csv").open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row["family"] == "dac.table1" and row["kind"] in ("order", "gap")
        ]
    gains, errors = (np.array([float(row[name]) for row in rows]) for name in ("value", "stderr"))
    return gains, errors


def simulate(gains: np.ndarray, errors: np.ndarray, tau: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, half-width, p of heterogeneity) of tables whose orders have these gains and errors over five folds."""
    rng, k = np.random.default_rng(0), gains.size
    true = gains + tau * rng.standard_normal((TRIALS, k))
    folds = true[:, :, None] + FOLDS**0.5 * errors[:, None] * rng.standard_normal((TRIALS, k, FOLDS))
    seen, own = folds.mean(axis=2), folds.var(axis=2, ddof=1) / FOLDS
    df = own.sum(axis=1) ** 2 / (own**2 / (FOLDS - 1)).sum(axis=1)
    half, _, p = pool_effects(seen.var(axis=1, ddof=1), own.mean(axis=1), df, k, SHARE / 2)
    return seen.mean(axis=1), half, p


def test_where_the_paper_is_right_the_sentence_says_so() -> None:
    """With Table 1's gains and errors as the truth; by Holm's adjustment 1 or 2 of 16 hold."""
    gains, errors = table_1()
    mean, half, _ = simulate(gains, errors)
    assert np.mean(mean > half) > 0.99
    rng, counts = np.random.default_rng(0), []
    for _ in range(300):
        p = stats.ttest_1samp(gains + FOLDS**0.5 * errors * rng.standard_normal((FOLDS, 16)), 0).pvalue
        found = [
            Verdict(status=Status.SUPPORTED, explanation="", p_value=one, n=FOLDS, share=RULES.looks[FOLDS])
            for one in p.tolist()
        ]
        counts.append(sum(holm(found, RULES)))
    assert 1.0 < np.mean(counts) < 1.9


@pytest.mark.parametrize("tau", [0.0, 0.001, 0.003])
@pytest.mark.parametrize("k", [2, 4, 16])
def test_without_a_gain_it_errs_no_more_often_than_it_says(k: int, tau: float) -> None:
    errors = table_1()[1][:k]
    mean, half, p = simulate(np.zeros(k), errors, tau)
    assert np.mean(np.abs(mean) > half) <= above(SHARE, TRIALS)
    if not tau:
        assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.02), (
            "errors of single orders differ, F takes them as equal"
        )
