"""The rules of params.yaml, and an upper bound for simulated error rates."""

from stages.reported.judging import RULES

MARGINS = RULES.margins


def above(rate: float, trials: int) -> float:
    """Return the largest plausible simulated rate for a true `rate`: three standard errors more."""
    return rate + 3 * (rate * (1 - rate) / trials) ** 0.5
