import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.verdicts.intervals import (
    UnplannedLook,
    complete_look,
    level,
    looks_from,
    looks_of_part,
    looks_of_plan,
    signed,
    with_interval,
)
from tests.verdicts.simulation import RULES


@given(st.integers(2, 100))
def test_parts_of_a_grid_spend_alpha_in_any_order_of_arrival(planned: int) -> None:
    """Each arrival adds at least one pair, so there are at most as many analyses as pairs."""
    parts = [looks_of_part(RULES.looks, ran, planned) for ran in range(1, planned + 1)]
    assert sum(level(part, n, 0.05) for part in parts for n in part) == pytest.approx(0.05)
    assert looks_of_part(RULES.looks, planned, planned)[5] == pytest.approx(0.8 * RULES.looks[5])
    assert looks_of_part(RULES.looks, 1, 1) == RULES.looks


@pytest.mark.parametrize("n", [0, 1, 2, 4, 6, 9, 11, 100])
def test_unplanned_analysis_is_refused(n: int) -> None:
    with pytest.raises(UnplannedLook, match=f"{n} replicates are not a planned analysis; planned: 3, 5, 10"):
        level(RULES.looks, n, 0.05)


@pytest.mark.parametrize(
    ("indices", "look"),
    [
        ([], None),
        ([0, 1], None),
        ([1, 2, 3], None),
        ([2, 0, 1], 3),
        ([0, 1, 2, 3], 3),
        ([0, 1, 2, 4, 5, 6], 3),
        (range(5), 5),
        (range(9), 5),
        (range(30), 10),
    ],
)
def test_analysis_needs_the_first_planned_replicates(indices: list, look: int | None) -> None:
    assert complete_look(indices, RULES.looks) == look


@given(st.sets(st.integers(0, 14)), st.integers(0, 14))
def test_another_replicate_never_undoes_an_analysis(indices: set, more: int) -> None:
    assert (complete_look(indices, RULES.looks) or 0) <= (complete_look(indices | {more}, RULES.looks) or 0)


@pytest.mark.parametrize(
    ("planned", "looks"),
    [
        (2, {}),
        (3, {3: 1}),
        (4, {3: 1 / 3, 4: 2 / 3}),
        (5, {3: 1 / 3, 5: 2 / 3}),
        (7, {3: 0.2, 5: 0.4, 7: 0.4}),
        (10, RULES.looks),
        (12, RULES.looks),
        (None, RULES.looks),
    ],
)
def test_last_analysis_is_at_the_end_of_the_plan(planned: int | None, looks: dict) -> None:
    assert looks_of_plan(RULES.looks, planned) == pytest.approx(looks)


def test_plan_shorter_than_the_minimum_has_no_analysis() -> None:
    assert looks_of_plan(looks_from(RULES.looks, RULES.minimum), 4) == {}


@given(st.integers(3, 40), st.sampled_from([RULES.minimum, RULES.minimum_with_error]))
def test_analyses_of_any_plan_spend_alpha_and_include_the_last_replicate(planned: int, minimum: int) -> None:
    looks = looks_of_plan(looks_from(RULES.looks, minimum), planned)
    if planned >= minimum:
        assert sum(looks.values()) == pytest.approx(1)
        assert max(looks) == min(planned, max(RULES.looks))
        assert list(looks) == sorted(looks)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((0.21416, 0.1684, 0.2598, 0.98), "+0.214, 98 % interval +0.168 to +0.260"),
        ((-0.0025, -0.00881, 0.00381, 0.95), "−0.0025, 95 % interval −0.0088 to +0.0038"),
        ((120.0, 80.0, 160.0, 0.975), "+120, 97.5 % interval +80 to +160"),
        ((0.5, 0.5, 0.5, 0.95), "+0.5, 95 % interval +0.5 to +0.5"),
        ((0.5, -math.inf, math.inf, 0.95), "+0.5, no 95 % interval yet"),
        ((0.5, 0.0004, 0.9996, 0.98), "+0.5000, 98 % interval +0.0004 to +0.9996"),  # distinguishable from no gain
        ((-0.25, -0.4996, -0.0004, 0.98), "−0.2500, 98 % interval −0.4996 to −0.0004"),
        ((0.5, 0.0, 1.0, 0.98), "+0.50, 98 % interval +0.00 to +1.00"),
        ((0.5, 1e-12, 1.0, 0.98), "+0.50, 98 % interval +0.00 to +1.00"),  # no number has ten digits
    ],
)
def test_estimate_has_the_precision_of_its_interval(numbers: tuple[float, float, float, float], sentence: str) -> None:
    assert with_interval(*numbers) == sentence


@pytest.mark.parametrize(
    ("low", "high", "margin", "sentence"),
    [
        (-0.080, 0.008, 0.0625, "−0.036, 95 % interval −0.080 to +0.008, margin ±0.0625"),
        (0.00353, 0.003711, 0.003712, "+0.003621, 95 % interval +0.003530 to +0.003711, margin ±0.003712"),
        (0.00302, 0.00498, 0.005, "+0.00400, 95 % interval +0.00302 to +0.00498, margin ±0.005"),
        (-348.15, -338.0, 348.2, "−343.1, 95 % interval −348.1 to −338.0, margin ±348.2"),
        (0.01, 0.03, 0.0, "+0.020, 95 % interval +0.010 to +0.030, margin ±0"),
    ],
)
def test_interval_ends_differ_from_the_margin(low: float, high: float, margin: float, sentence: str) -> None:
    assert with_interval((low + high) / 2, low, high, 0.95, margin) == sentence


def test_number_has_its_sign() -> None:
    assert [signed(number) for number in (-0.03584, 0.25, 1e-7)] == ["−0.0358", "+0.25", "+1e−07"]
