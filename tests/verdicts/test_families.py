from __future__ import annotations

import numpy as np
import pytest

from stages.verdicts import Status, Verdict, judge_table, judge_tally
from tests.verdicts.simulation import RULES

RNG = np.random.default_rng(0)


def order(p: float | None, *, n: int = 5, status: Status = Status.SUPPORTED) -> Verdict:
    return Verdict(status=status, explanation="", p_value=p, n=n)


def holm(p_values: list[float], alpha: float) -> list[bool]:
    """Holm (1979) as it stands: ascending, p_(j) against α/(m − j + 1), stop at the first that fails."""
    held = [False] * len(p_values)
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] > alpha / (len(p_values) - rank):
            break
        held[place] = True
    return held


def test_table_is_holms_procedure_at_the_level_of_the_look() -> None:
    for _ in range(200):
        p_values = list(RNG.uniform(0, 0.03, RNG.integers(1, 9)))
        sentence = judge_table([order(p) for p in p_values], RULES)
        assert list(sentence.holds) == holm(p_values, 0.05 * RULES.looks[5])


def test_a_hand_worked_table() -> None:
    """Level 0.02 at five replicates: 0.006 against 0.02/3, 0.009 against 0.02/2, then 0.021 against 0.02."""
    sentence = judge_table([order(0.009), order(0.006), order(0.021)], RULES)
    assert sentence.holds == (True, True, False)
    assert sentence.text == "2 of 3 orders hold (Holm-adjusted, α = 0.05)."


def test_adjusting_only_ever_takes_away() -> None:
    p_values = [0.015, 0.016, 0.017]
    assert judge_table([order(p) for p in p_values], RULES).holds == (False,) * 3
    assert all(judge_table([order(p)], RULES).holds == (True,) for p in p_values)


def test_untested_and_reversed_orders_count_against_the_table() -> None:
    orders = [order(1e-6), order(1e-6, status=Status.REVERSED), order(None, status=Status.NOT_TESTED)]
    sentence = judge_table(orders, RULES)
    assert (sentence.holds, sentence.tested) == ((True, False, False), 2)
    assert sentence.text == "1 of 3 orders hold (Holm-adjusted, α = 0.05, 1 without enough replicates)."
    assert judge_table([], RULES).text.startswith("0 of 0")


def test_each_order_is_held_to_its_own_look() -> None:
    """0.008 is below the share of five replicates and above that of three in a table of two."""
    assert judge_table([order(0.008), order(0.008)], RULES).holds == (True, True)
    assert judge_table([order(0.008, n=3), order(0.008, n=3)], RULES).holds == (False, False)


def test_the_family_errs_with_at_most_alpha() -> None:
    """Eight equal pairs of arms: any order that holds, in either direction, is an error."""
    trials = 4000
    p_values = RNG.uniform(0, 1, (trials, 8))
    wrong = sum(any(judge_table([order(p) for p in row], RULES).holds) for row in p_values.tolist())
    assert wrong / trials <= 0.05 * RULES.looks[5] + 3 * (0.02 * 0.98 / trials) ** 0.5


@pytest.mark.parametrize(
    ("supported", "reversed_", "status"),
    [(15, 0, Status.SUPPORTED), (16, 0, Status.SUPPORTED), (9, 1, Status.UNRESOLVED), (9, 2, Status.REVERSED)],
)
def test_a_printed_tally_of_15_of_16(supported: int, reversed_: int, status: Status) -> None:
    orders = [
        *[order(0.01)] * supported,
        *[order(0.01, status=Status.REVERSED)] * reversed_,
        *[order(0.5, status=Status.UNRESOLVED)] * (16 - supported - reversed_),
    ]
    verdict = judge_tally(15, orders)
    assert verdict.status is status
    assert verdict.explanation.startswith(f"Claimed: 15 of 16. Ours: {supported} supported, {reversed_} reversed")


def test_a_tally_without_evidence_is_not_tested() -> None:
    assert judge_tally(15, [order(None, status=Status.NOT_TESTED)] * 16).status is Status.NOT_TESTED
