import dataclasses
import re

import numpy as np
import pytest

from stages.verdicts import (
    PrintedOrder,
    Sample,
    Status,
    Verdict,
    design_effect,
    false_discovery_rates,
    judge_noise,
    judge_tally,
    judge_wins,
)
from stages.verdicts.families import decisive_spreads, power_of_noise
from tests.verdicts.simulation import RULES


def order(p: float | None, *, n: int = 5, status: Status = Status.SUPPORTED) -> Verdict:
    return Verdict(status=status, explanation="", p_value=p, n=n, share=RULES.looks[n])


def test_false_discovery_rates_follow_benjamini_and_hochberg() -> None:
    """Each rate is p · m/rank, made monotonic: 0.01 · 3, 0.04 · 3/2, 0.05 · 3/3; p is divided by its share of α."""
    share = RULES.looks[5]
    rates = false_discovery_rates([order(0.05 * share), order(0.01 * share), order(0.04 * share)])
    assert rates == pytest.approx([0.05, 0.03, 0.05])


def test_family_includes_unresolved_orders_but_not_verdicts_on_sizes() -> None:
    size, untested = order(1e-6, status=Status.NOT_REPRODUCED), order(None, status=Status.NOT_TESTED)
    unsure = order(0.9, status=Status.UNRESOLVED)
    assert false_discovery_rates([order(0.004), size, untested]) == [pytest.approx(0.01), None, None]
    assert false_discovery_rates([order(0.004), unsure]) == pytest.approx([0.02, 1.0])
    assert false_discovery_rates([size]) == [None]


@pytest.mark.parametrize(
    ("supported", "reversed_", "status"),
    [(9, 0, Status.SUPPORTED), (8, 0, Status.UNRESOLVED), (0, 0, Status.UNRESOLVED), (8, 1, Status.REVERSED)],
)
def test_ranking_of_nine_orders_needs_all_nine(supported: int, reversed_: int, status: Status) -> None:
    orders = [
        *[order(0.01)] * supported,
        *[order(0.01, status=Status.REVERSED)] * reversed_,
        *[order(0.5, status=Status.UNRESOLVED)] * (9 - supported - reversed_),
    ]
    verdict = judge_tally(9, orders, orders)
    assert verdict.status is status
    assert verdict.explanation == (
        f"Claimed: 9 of 9. Ours: {supported} supported, each at α; {reversed_} reversed, each at α/9."
    )


def test_statement_about_several_cases_is_as_weak_as_its_weakest_case() -> None:
    """HyperBF is said to be comparable on three data sets."""
    holds, read, behind = (
        Verdict(status=status, explanation="", low=-0.01, n=5)
        for status in (Status.SUPPORTED, Status.HOLDS_UNDER_READING, Status.REVERSED)
    )
    assert judge_tally(3, [holds] * 3, [holds] * 3).status is Status.SUPPORTED
    under = judge_tally(3, [holds, holds, read], [holds, holds, read])
    assert under.status is Status.HOLDS_UNDER_READING
    assert "Ours: 2 supported, 1 under a reading, each at α; 0 reversed, each at α/3." in under.explanation
    assert judge_tally(3, [holds, read, behind], [holds, read, behind]).status is Status.REVERSED
    unsure = Verdict(status=Status.UNRESOLVED, explanation="", low=-0.01, n=5)
    verdict = judge_tally(3, [holds, read, behind], [holds, read, unsure])
    assert verdict.status is Status.UNRESOLVED, "one case is reversed at α, but none at α/3"


def test_tally_without_evidence_is_not_tested() -> None:
    verdict = judge_tally(15, *[[order(None, status=Status.NOT_TESTED)] * 16] * 2)
    assert (verdict.status, verdict.estimate) == (Status.NOT_TESTED, None)


def gain(p: float | None, sign: int = 1, *, n: int = 5, n_diverged: int = 0) -> Verdict:
    status = Status.UNRESOLVED if p is None or p > 0.02 else Status.SUPPORTED if sign > 0 else Status.REVERSED
    return Verdict(status=status, explanation="", estimate=0.01 * sign, p_value=p, n=n, n_diverged=n_diverged)


# DAC, section 5: "Among the 16 comparisons, 15 are in favor of DAC models, with 9 of them statistically significant
# (p-value below 5%)".  Some of those p-values may be too large for `supported` at one of our analyses.
FIGURE_6 = [*[gain(0.01)] * 5, *[gain(0.04)] * 4, *[gain(0.3)] * 6, gain(0.9, -1)]


@pytest.mark.parametrize(
    ("claimed", "ours", "status"),
    [
        *[(15, ours, Status.REPRODUCED) for ours in (15, 16)],
        *[(15, ours, Status.INCONCLUSIVE) for ours in (10, 14)],
        *[(15, ours, Status.NOT_REPRODUCED) for ours in (0, 8, 9)],
    ],
)
def test_nine_wins_or_fewer_do_not_reproduce_15_of_16(claimed: int, ours: int, status: Status) -> None:
    """Fisher's exact test rejects nine, p = 2 (16 · 11,440 + 12,870)/10,518,300 = 0.037, but not ten, p = 0.083."""
    orders = [*[gain(0.3)] * ours, *[gain(0.3, -1)] * (16 - ours)]
    verdict = judge_wins(claimed, orders, RULES, n=5)
    assert (verdict.status, verdict.estimate) == (status, ours - claimed)
    if ours in (9, 10):
        assert verdict.p_value == pytest.approx({9: 0.03725, 10: 0.08293}[ours], abs=1e-5)
    assert verdict.low is not None and verdict.high is not None
    assert verdict.low <= verdict.estimate <= verdict.high
    marked = judge_wins(9, orders, RULES, n=5, must_be_significant=True)
    assert marked.status is Status.NOT_REPRODUCED, "none of them is significant"
    count = [*[gain(0.001)] * ours, *[gain(0.001, -1)] * (16 - ours)]
    assert judge_wins(claimed, count, RULES, n=5, must_be_significant=True).status is status


def test_reversed_or_diverged_comparison_is_not_a_win() -> None:
    lost = [*[gain(0.001)] * 3, gain(0.001, n_diverged=1)]
    assert judge_wins(4, lost, RULES, n=5, must_be_significant=True).estimate == -1
    assert judge_wins(4, [*lost[:3], gain(1e-9, -1)], RULES, n=5).estimate == -1
    too_few_finished = Verdict(status=Status.UNRESOLVED, explanation="", n=5, n_diverged=4)
    assert judge_wins(4, [*lost[:3], too_few_finished], RULES, n=5).estimate == -1, "neither side wins it"


def test_count_needs_all_comparisons_at_the_printed_replicates() -> None:
    indicated = Verdict(status=Status.AGREES, explanation="", estimate=0.01, n=5)
    for missing in (gain(None, n=0), gain(0.01, n=3), indicated):
        verdict = judge_wins(15, [*FIGURE_6[:-1], missing], RULES, n=5)
        assert (verdict.status, verdict.estimate) == (Status.NOT_TESTED, None)
        assert verdict.explanation.startswith("15 of 16 comparisons have 5 replicates")
    assert judge_wins(1, [], RULES, n=5).status is Status.NOT_TESTED


def test_correlated_orders_count_as_fewer() -> None:
    """Eight orders with equal gains count as one; nine wins of sixteen then don't differ from fifteen."""
    rng = np.random.default_rng(5)
    shared, own = rng.standard_normal((2, 1, 5)).repeat(8, axis=1).reshape(16, 5), rng.standard_normal((16, 5))
    effects = []
    for drawn in (own, shared):
        orders = [
            PrintedOrder(
                verdict=dataclasses.replace(gain(0.3), stderr=1.0),
                printed=1.0,
                dataset=str(number // 8),
                gains=dict(enumerate(row)),
            )
            for number, row in enumerate(drawn)
        ]
        effects.append(design_effect(orders))
    assert effects == [pytest.approx(1.2, abs=0.3), pytest.approx(8)]
    split = [*[gain(0.3)] * 9, *[gain(0.3, -1)] * 7]
    alone, together = (judge_wins(15, split, RULES, n=5, effect=effect) for effect in (1.0, 8.0))
    assert (alone.status, together.status) == (Status.NOT_REPRODUCED, Status.INCONCLUSIVE)
    assert together.low < alone.low and "as if 8 orders were one" in together.explanation


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
