"""Would the paper's own rerun give its number?  A prediction interval from our replicates, beside the equivalence test.

    ours ± t_{1 − α/2} √(s²/n + s²/m)        where the paper ran m times; m = 1 where it doesn't say
    ours ± t_{1 − α/2} √(s²/n + stderr²)     where it prints its error

(Patil, Peng and Leek 2016; Spence and Stanley 2016.)  It has no margin, so it answers even where the margin is too
narrow for the paper's own random error; but it decides nothing: a wide interval holds any number.  α isn't shared
among looks.
"""

from __future__ import annotations

from stages.verdicts.intervals import half_width
from stages.verdicts.verdict import Prediction


def predict(
    ours: float, printed: float, *, variance: float, df: float, alpha: float, widening: float = 0.0
) -> Prediction | None:
    """The interval, given the `variance` of ours − paper for the same procedure; None where it is 0: spread unknown."""
    if not variance:
        return None
    half = float(half_width(variance, df, alpha / 2)) + widening
    return Prediction(low=ours - half, high=ours + half, confidence=1 - alpha, holds=bool(abs(ours - printed) <= half))
