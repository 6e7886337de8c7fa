"""Numbers as printed in the sentences of verdicts: as exact as their interval, with a typographical minus."""

from __future__ import annotations

import math

_MORE = 6
"""Places that an interval may have beyond those of its half-width; ends that are nearer to a limit print as it."""


def signed(number: float) -> str:
    """Three significant digits: −0.0358, +0.25."""
    return _minus(f"{number:+.3g}")


def in_percent(confidence: float) -> str:
    """As many digits as keep it from 100: 95 %, 96.7 %, 99.98 %."""
    digits = max(1, -math.floor(math.log10(100 * (1 - confidence))))
    return f"{100 * confidence:.{digits}f}".removesuffix(".0") + " %"


def with_interval(estimate: float, low: float, high: float, confidence: float, margin: float | None = None) -> str:
    """Format to two digits of the interval's half-width, or to three digits of the numbers where it has none.

    The interval is compared with ± `margin`, or with 0 if there is no margin: its ends get enough digits to be distinct
    from these, and the margin is at least as precise as they are.

    +0.214, 98 % interval +0.168 to +0.260
    """
    half, numbers = (high - low) / 2, (estimate, low, high)
    decimals = None
    if 0 < half < math.inf:
        fewest = max(0, 1 - math.floor(math.log10(half)))
        limits = (0.0,) if margin is None else (-margin, margin)
        decimals = next((more for more in range(fewest, fewest + _MORE) if _are_apart(limits, low, high, more)), fewest)
    middle, below, above = (
        signed(number) if decimals is None else _minus(f"{number:+.{decimals}f}") for number in numbers
    )
    sentence = f"{middle}, {in_percent(confidence)} interval {below} to {above}"
    return sentence if margin is None else f"{sentence}, margin ±{_margin(margin, decimals or 0)}"


def _are_apart(limits: tuple[float, ...], low: float, high: float, decimals: int) -> bool:
    """True if every end that differs from the limits also prints differently."""
    ends = [(end, limit) for end in (low, high) for limit in limits if end != limit]
    return all(f"{abs(end):.{decimals}f}" != f"{abs(limit):.{decimals}f}" for end, limit in ends)


def _margin(margin: float, decimals: int) -> str:
    """Three significant digits, and more where the interval has more decimals."""
    before = math.floor(math.log10(margin)) + 1 if margin > 0 else 0
    return f"{margin:.{max(3, before + decimals)}g}"


def _minus(text: str) -> str:
    return text.replace("-", "−")
