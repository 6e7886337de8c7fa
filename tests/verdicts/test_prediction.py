"""The coverage of the interval for the paper's own rerun, by simulation."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import GainClaim, Sample, Status, ValueClaim, judge_gain, judge_value
from stages.verdicts.intervals import half_width, variance_of
from stages.verdicts.value import Spread
from tests.verdicts.simulation import RULES

OURS = [0.900, 0.904, 0.897, 0.902, 0.899]


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(("paper_n", "prints_error"), [(1, False), (5, False), (5, True)])
def test_interval_covers_a_rerun_of_the_same_procedure_in_95_percent(n: int, paper_n: int, prints_error: bool) -> None:
    """With a printed error, Welch's df make it slightly more."""
    ours, runs = (np.random.default_rng(seed).normal(size=(40_000, size)) for seed, size in ((n, n), (99, paper_n)))
    stderr = stats.sem(runs, axis=1) if prints_error else None
    variance, freedom = Spread(s2=variance_of(ours), df=n - 1, n=n, stderr=stderr, paper_n=paper_n).at(n)
    half = half_width(variance, freedom, RULES.alpha_outside / 2)
    covered = float(np.mean(np.abs(ours.mean(axis=1) - runs.mean(axis=1)) <= half))
    assert 0.945 < covered < 0.975 if prints_error else abs(covered - 0.95) < 0.005


def test_interval_for_a_single_run_is_students() -> None:
    verdict = judge_value(ValueClaim(value=0.903, margin=0.001, n=1), Sample.of(OURS), rules=RULES, planned=5)
    half = stats.t.ppf(0.975, 4) * np.std(OURS, ddof=1) * math.sqrt(1 / 5 + 1)
    found = verdict.prediction
    assert (found.low, found.high) == (pytest.approx(np.mean(OURS) - half), pytest.approx(np.mean(OURS) + half))
    assert (found.confidence, found.holds) == (0.95, True)
    assert verdict.status is Status.UNDECIDABLE, "the prediction answers even if the margin doesn't decide"
    far = judge_value(ValueClaim(value=0.92, margin=0.001, n=1), Sample.of(OURS), rules=RULES, planned=5)
    assert not far.prediction.holds


def test_missing_test_rows_widen_it_and_a_printed_error_narrows_it() -> None:
    claim = ValueClaim(value=0.9, margin=0.01, n=1)
    plain, wide = (judge_value(claim, Sample.of(OURS), rules=RULES, widening=w).prediction for w in (0.0, 0.002))
    assert wide.high - wide.low == pytest.approx(plain.high - plain.low + 0.004)
    printed = judge_value(dataclasses.replace(claim, stderr=0.0004, n=5), Sample.of(OURS), rules=RULES).prediction
    assert printed.high - printed.low < plain.high - plain.low


def test_equal_replicates_predict_nothing() -> None:
    assert judge_value(ValueClaim(value=0.9, margin=0.01), Sample.of([0.9] * 5), rules=RULES).prediction is None


def test_gain_has_a_prediction_of_its_size() -> None:
    base = [value - 0.02 + step for value, step in zip(OURS, (0.001, -0.001, 0.0, 0.002, -0.001), strict=True)]
    claim = GainClaim(gain=0.021, margin=0.0105, better="higher", n=1)
    size = judge_gain(claim, Sample.of(OURS), Sample.of(base), rules=RULES, pairing="fold", planned=5).size
    gains = np.subtract(OURS, base)
    half = stats.t.ppf(0.975, 4) * gains.std(ddof=1) * math.sqrt(1 + 1 / 5)
    assert (size.prediction.low, size.prediction.holds) == (pytest.approx(gains.mean() - half), True)
