"""Numbers as the sentences of verdicts have them: as exact as their interval, with a typographical minus."""

from __future__ import annotations

import math


def signed(number: float) -> str:
    """Three significant digits: −0.0358, +0.25."""
    return _minus(f"{number:+.3g}")


def with_interval(estimate: float, low: float, high: float, confidence: float) -> str:
    """To two digits of the interval's half-width, of the numbers to three where it has none.

    +0.214, 98 % interval +0.168 to +0.260
    """
    half, numbers = (high - low) / 2, (estimate, low, high)
    if 0 < half < math.inf:
        decimals = max(0, 1 - math.floor(math.log10(half)))
        middle, below, above = (_minus(f"{number:+.{decimals}f}") for number in numbers)
    else:
        middle, below, above = map(signed, numbers)
    return f"{middle}, {100 * confidence:.3g} % interval {below} to {above}"


def _minus(text: str) -> str:
    return text.replace("-", "−")
