import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.verdicts import Failures, Status, fisher_p, judge_count, judge_proportion, judge_proportions
from stages.verdicts.others import newcombe
from tests.verdicts.simulation import RULES


def test_fishers_test_equals_the_papers() -> None:
    """DAC, section 5: 15 of 576 failed against 2 of 449, p = 0.0063."""
    assert round(fisher_p((15, 576), (2, 449)), 4) == 0.0063
    ours, theirs = Failures.spread(2, 449, 1), Failures.spread(15, 576, 1)
    verdict = judge_proportions(ours, theirs, rules=RULES)
    assert verdict.status is Status.SUPPORTED
    one_sided = stats.fisher_exact([[2, 447], [15, 561]], alternative="less").pvalue
    assert verdict.p_value == pytest.approx(2 * one_sided), "permuting trainings is Fisher's test"
    assert verdict.explanation == (
        "2 of 449 against 15 of 576: permutation of the 449 and 576 networks, two-sided p = 0.0102."
    )


def test_fisher_sums_tables_no_likelier_than_the_observed() -> None:
    failed, tried, trials = 5, 20, (20, 30)
    odds = [stats.hypergeom.pmf(k, sum(trials), 6, trials[0]) for k in range(7)]
    assert fisher_p((failed, tried), (1, 30)) == pytest.approx(sum(p for p in odds if p <= odds[5] * (1 + 1e-7)))


@pytest.mark.parametrize(
    ("proposed", "status"), [(1, Status.SUPPORTED), (30, Status.REVERSED), (10, Status.UNRESOLVED)]
)
def test_order_of_two_failure_rates(proposed: int, status: Status) -> None:
    verdict = judge_proportions(Failures.spread(proposed, 90, 5), Failures.spread(15, 115, 5), rules=RULES)
    assert verdict.status is status and verdict.low <= verdict.estimate <= verdict.high


def test_failures_within_a_network_count_as_one() -> None:
    """Ten failed trainings of ten networks, or of two; with two, one permutation in four has both on one side."""
    none = Failures.spread(0, 10, 5)
    apart, together = Failures.spread(10, 10, 5), Failures(counts=(5, 5, *[0] * 8), each=5)
    assert judge_proportions(none, apart, rules=RULES).status is Status.SUPPORTED
    verdict = judge_proportions(none, together, rules=RULES)
    assert verdict.status is Status.UNRESOLVED and verdict.p_value == pytest.approx(2 * 9 / 38)
    assert fisher_p((0, 50), (10, 50)) < 0.01


def test_newcombe_interval_equals_the_published_example() -> None:
    """56 of 70 minus 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, table II, method 10)."""
    assert newcombe((56, 70), (48, 80), 0.95) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize(
    ("ours", "margin", "status"),
    [
        (Failures.spread(2600, 100_000, 1), 0.02, Status.REPRODUCED),
        (Failures.spread(60, 40, 5), 0.01, Status.NOT_REPRODUCED),
        (Failures.spread(3, 18, 5), 0.05, Status.INCONCLUSIVE),
        (Failures.spread(3, 18, 5), 0.0026, Status.UNDECIDABLE),
    ],
)
def test_proportion_is_compared_with_the_printed_one(ours: Failures, margin: float, status: Status) -> None:
    assert judge_proportion((15, 576), ours, margin, rules=RULES).status is status


@pytest.mark.parametrize(("count", "status"), [(3830, Status.REPRODUCED), (4200, Status.NOT_REPRODUCED)])
def test_relative_margin_of_a_proportion_includes_its_error(count: int, status: Status) -> None:
    """Ours, 40 % of 10,000, is on the margin, within three standard errors of 20 % of 3,000 and its double."""
    claimed, ours = (600, 3000), Failures.spread(count, 10_000, 1)
    assert judge_proportion(claimed, ours, 0.2, rules=RULES).status is status
    assert judge_proportion(claimed, ours, 0.2, rules=RULES, slope=1.0).status is Status.INCONCLUSIVE


@given(st.integers(0, 50), st.integers(0, 50))
def test_swapping_proportions_reverses_the_order(a: int, b: int) -> None:
    one, other = (Failures.spread(count, 10, 5) for count in (a, b))
    there, back = (judge_proportions(*sides, rules=RULES) for sides in ((one, other), (other, one)))
    opposite = {Status.SUPPORTED: Status.REVERSED, Status.REVERSED: Status.SUPPORTED}
    assert back.status is opposite.get(there.status, there.status)
    assert there.low <= there.estimate <= there.high


@pytest.mark.parametrize(
    ("printed", "counted", "status"),
    [
        (298_730, 298_730, Status.HOLDS),
        *((298_731, 298_730, Status.FAILS), (10, 16, Status.FAILS), (7, 8, Status.FAILS)),
        *((25_330, 25_331, Status.HOLDS_UNDER_READING), (1_200, 1_249, Status.HOLDS_UNDER_READING)),
        *((25_330, 25_336, Status.FAILS), (1_200, 1_251, Status.FAILS)),
    ],
)
def test_counts_are_exact_and_printed_zeros_may_be_rounding(printed: int, counted: int, status: Status) -> None:
    verdict = judge_count(printed, counted)
    assert (verdict.status, verdict.estimate) == (status, counted - printed)
    unit = "10" if printed % 100 else "100"
    said = f"true if the printed number is rounded to {unit}."
    assert verdict.explanation.endswith(said) == (status is Status.HOLDS_UNDER_READING)
