"""Reads the name of a metric, and decides once on the unit of its results on a data set.

A share, such as an accuracy, may be a fraction or in percent.  Numbers that say their unit are taken at their word.  A
number above 1 can only be in percent.  Other numbers have several readings; a claim is judged only if these agree.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pandas as pd

HIGHER = ("accuracy", "acc", "top", "f1", "auc", "auroc", "map", "bleu", "precision", "recall", "iou", "psnr")
LOWER = ("error", "loss", "mse", "mae", "rmse", "perplexity", "fid", "wer")
SHARES = ("accuracy", "acc", "top", "error", "f1", "auc", "auroc", "map", "precision", "recall", "iou")
NO_SHARES = ("loss", "mse", "mae", "rmse", "perplexity", "fid", "psnr")
"""Metrics that never are a share.  Others, such as `bleu`, are one if a claim or result of them is in percent."""
PERCENT = ("%", "percentage points", "percent", "pp", "points")
LARGEST = 1e100
"""Largest number that is judged; squares of larger ones overflow."""
ROUNDING = 1e-9
"""Excess over 1 that a share may have by rounding."""
_GENERIC = ("rate", "score")
_NEAR = 10.0
"""Factor between ours and the printed number beyond which another unit is likelier than another result."""

Reading = tuple[float, float]
"""Divisors of a claim's numbers, and of results without a unit."""


def last_word(metric: str) -> str:
    """Return the last word of a metric's name, which says what it is: `accuracy` of `val/top1_accuracy`."""
    words = re.findall(r"[a-z0-9]+", metric.lower())
    for word in reversed(words):
        plain = word if word in HIGHER else word.rstrip("0123456789")  # acc@1, top5, mAP50
        if plain and plain not in _GENERIC:
            return plain
    return ""


def find_divisors(cells: pd.DataFrame, better: str) -> Sequence[float]:
    """Return the possible divisors of the results of a share that have no unit; the first one is the likeliest.

    `cells` are all results of the metric on one data set, with `value` and `divisor`, which is NaN without a unit.  An
    accuracy below 1 isn't below 1 %, but an error may be.

    Raises:
        ValueError: a result isn't a share, or results above 1 and below are mixed.
    """
    size = cells["value"].abs()
    if (size / cells["divisor"].fillna(100) > 1 + ROUNDING).any() or (cells["value"] < 0).any():
        worst = cells["value"].min() if (cells["value"] < 0).any() else size.max()
        raise ValueError(f"{worst:g} in the results isn't a share; expected 0 to 1, or 0 to 100 %")
    bare = size[cells["divisor"].isna() & (size > 0)]
    above, below = bare[bare > 1 + ROUNDING], bare[bare <= 1 + ROUNDING]
    if len(above) and len(below):
        raise ValueError(
            f"the results have {below.iloc[0]:g} and {above.iloc[0]:g}, so some may be fractions and some in percent; "
            "add a column unit to them, with % or fraction"
        )
    if len(above):
        return (100.0,)
    return (1.0,) if better == "higher" or bare.empty else (1.0, 100.0)


def find_readings(
    printed: float | None,
    ours: Sequence[float],
    divisors: Sequence[float],
    *,
    has_unit: tuple[bool, bool],
    is_share: bool,
) -> list[Reading]:
    """Return the readings under which a claim is judged; all have to agree.

    `printed` is None if the claim's number can't be compared, and `ours` the result at divisors of 1 and of 100.
    `has_unit`: whether the claim's number, and every result, says its unit.

    Raises:
        ValueError: another reading than the likeliest comes near the printed number.
    """
    of_claim, of_results = ((1.0,) if known else (1.0, 100.0) for known in has_unit)
    default = (1.0, divisors[0])
    near = []
    if printed:
        for claim, divisor in itertools.product(of_claim, of_results):
            ratio = ours[0 if divisor == 1 else 1] / (printed / claim)
            if 1 / _NEAR < ratio < _NEAR:
                near.append((claim, divisor))
    if near and default not in near:
        raise ValueError(
            f"{ours[0 if divisors[0] == 1 else 1]:.4g} of the results is far from the printed {printed:.4g}: if one of "
            "them is in percent, say so: 0.4 % in the claim, % in a column unit of the results; otherwise write "
            "fraction in the columns unit"
        )
    if not is_share:
        return [default]
    return [each for each in near or itertools.product(of_claim, divisors) if each[1] in divisors]
