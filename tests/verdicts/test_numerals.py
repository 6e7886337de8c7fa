"""How sentences have their numbers."""

from __future__ import annotations

import math

import pytest

from stages.verdicts.numerals import signed, with_interval


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((0.21416, 0.1684, 0.2598, 0.98), "+0.214, 98 % interval +0.168 to +0.260"),
        ((-0.0025, -0.00881, 0.00381, 0.95), "−0.0025, 95 % interval −0.0088 to +0.0038"),
        ((120.0, 80.0, 160.0, 0.975), "+120, 97.5 % interval +80 to +160"),
        ((0.5, 0.5, 0.5, 0.95), "+0.5, 95 % interval +0.5 to +0.5"),
        ((0.5, -math.inf, math.inf, 0.95), "+0.5, 95 % interval −inf to +inf"),
    ],
)
def test_an_estimate_is_as_exact_as_its_interval(numbers: tuple[float, float, float, float], sentence: str) -> None:
    assert with_interval(*numbers) == sentence


def test_a_number_has_its_sign() -> None:
    assert [signed(number) for number in (-0.03584, 0.25, 1e-7)] == ["−0.0358", "+0.25", "+1e−07"]
