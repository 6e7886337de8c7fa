import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verdicts.simulation import MARGINS


@pytest.mark.parametrize(
    ("error", "margin"),
    [
        (0.4710, 0.0100),  # at most one point
        (0.0864, 0.00864),  # a tenth of the paper's error
        (0.0005, 0.0001),  # at least the printed rounding
    ],
)
def test_margin_of_an_error_is_the_smaller_of_a_point_and_a_tenth(error: float, margin: float) -> None:
    assert MARGINS.error(error, 0.0001) == pytest.approx(margin)
    assert MARGINS.accuracy(1 - error, 0.0001) == pytest.approx(margin)


@pytest.mark.parametrize(("gain", "margin"), [(0.0268, 0.0134), (-0.0049, 0.00245), (0.0004, 0.001), (0.0, 0.001)])
def test_margin_of_a_difference_is_half_of_it_or_a_tenth_of_a_point(gain: float, margin: float) -> None:
    assert MARGINS.difference(gain) == pytest.approx(margin)


def test_other_margins_are_shares_of_the_printed_number() -> None:
    assert MARGINS.comparable(0.001) == 0.005 and MARGINS.comparable(0.0625) == 0.0625
    assert MARGINS.loss(3.03, 0.01) == pytest.approx(0.0606)
    assert MARGINS.loss(0.2, 0.01) == pytest.approx(0.01)
    assert MARGINS.log_mse(-0.25) == pytest.approx(0.0625)
    assert MARGINS.flops(0.509e9, 0.001e9) == pytest.approx(0.02545e9)
    assert MARGINS.memory(100.0, 1.0) == pytest.approx(5.0)


@given(st.floats(0, 1), st.floats(0, 0.01))
def test_margin_of_an_error_is_between_the_rounding_and_a_point(error: float, precision: float) -> None:
    assert precision <= MARGINS.error(error, precision) <= 0.01
