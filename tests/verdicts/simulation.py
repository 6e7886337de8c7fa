"""Rules as in params.yaml, and the highest rate that a simulation may give."""

from stages.reported.judging import RULES

MARGINS = RULES.margins


def above(rate: float, trials: int) -> float:
    """The highest that a simulated rate may be when the true one is `rate`: three standard errors more."""
    return rate + 3 * (rate * (1 - rate) / trials) ** 0.5
