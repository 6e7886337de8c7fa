"""A printed range compared with the spread between seeds: hand calculations and simulated error rates."""

import re

import numpy as np
import pytest

from stages.verdicts import Sample, Status, judge_noise
from stages.verdicts.families import decisive_spreads, power_of_noise
from tests.verdicts.simulation import RULES

WINDOW, K = 0.0131, 4


def spread_by(s: float, n: int = 10) -> np.ndarray:
    """Numbers around 0.95 with standard deviation s."""
    draws = np.linspace(-1, 1, n)
    return 0.95 + s * draws / draws.std(ddof=1)


def test_limits_equal_published_tables() -> None:
    """q(4, 9) = 4.415 and q(4, ∞) = 3.633 at 5 % (Harter 1960); χ²(9) at 5 % is 16.919."""
    most, least = decisive_spreads(1.0, 4, 9, 0.05)
    assert most == pytest.approx(1 / 4.415, rel=1e-3)
    assert least == pytest.approx((16.919 / 9) ** 0.5 / 3.633, rel=1e-3)


def test_range_is_decided_exactly_if_its_interval_excludes_the_printed_one() -> None:
    for s in np.linspace(0.0005, 0.01, 40):
        verdict = judge_noise(WINDOW, K, Sample.of(spread_by(s).tolist()), rules=RULES, planned=10)
        assert verdict.low is not None and verdict.high is not None and verdict.low < verdict.high
        assert (verdict.status == Status.REVERSED) == (verdict.high < 0)
        assert (verdict.status == Status.SUPPORTED) == (verdict.low >= 0)


def test_too_few_or_diverged_replicates_decide_nothing() -> None:
    four = judge_noise(WINDOW, K, Sample.of(spread_by(0.001, 4).tolist()), rules=RULES, planned=10)
    assert (four.status, four.n) == (Status.UNRESOLVED, 4)
    lost = judge_noise(WINDOW, K, Sample.of([*spread_by(0.001, 9).tolist(), None]), rules=RULES, planned=10)
    assert (lost.status, lost.n_diverged) == (Status.UNRESOLVED, 1)
    assert "diverged" in lost.explanation


def test_power_equals_a_simulation() -> None:
    text = power_of_noise(10, WINDOW, K, RULES).explanation
    most, least = decisive_spreads(WINDOW, K, 9, RULES.alpha_outside / 4)
    small, large = map(float, re.findall(r"at (?:most|least) ([\d.]+\d)", text))
    s = np.random.default_rng(2).standard_normal((20_000, 10)).std(axis=1, ddof=1)
    assert (small * s < most).mean() == pytest.approx(0.8, abs=0.03)
    assert (large * s >= least).mean() == pytest.approx(0.8, abs=0.03)
    assert "too short" in power_of_noise(3, WINDOW, K, RULES).explanation
