"""Number formatting in sentences."""

import math

import pytest

from stages.verdicts.intervals import signed, with_interval


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
