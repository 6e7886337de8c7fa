"""Reads printed numbers and the name of a metric, and decides once on the unit of its results on a data set.

A share, such as an accuracy, may be a fraction or in percent.  Numbers that say their unit are taken at their word.  A
number above 1 can only be in percent.  Other numbers have several readings; a claim is judged only if these agree.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stages.texts import plain

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
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+|\d{1,3}(?:(?:,\d{3}){2,}|,\d{3}\.\d+))(?:e[+-]?\d{1,2})?"
_PRINTED = re.compile(
    rf"([+-]?{_NUMBER})\s*(%?)\s*(?:\((\d{{1,9}})\))?\s*(?:(?:±|\+/?-|\\pm)\s*({_NUMBER}))?\s*(%?)", re.ASCII
)
_COUNT = re.compile(r"(\d+)\s*(?:of|/)\s*(\d+)", re.ASCII)


def is_number(given: object, least: float = -math.inf) -> bool:
    """Return True for a number that can be judged and is larger than `least`."""
    if not isinstance(given, int | float | np.integer | np.floating) or isinstance(given, bool):
        return False
    return bool(max(least, -LARGEST) < given <= LARGEST)


@dataclass(frozen=True)
class PrintedNumber:
    """A printed number.  `std` is the number after ±, in the same unit; `precision` the unit of its last digit.

    A number in percent is a fraction here: 97.5 % is 0.975, with a precision of 0.001.  `is_text` is False if it came
    as a number, which keeps no trailing zeros, so that its precision is only an upper bound.
    """

    value: float
    std: float | None
    precision: float
    is_percent: bool
    is_text: bool = True

    @property
    def rounding(self) -> float:
        """The unit of the last printed digit, 0 if that isn't known."""
        return self.precision if self.is_text else 0.0

    @classmethod
    def parse(cls, text: object, unit: str = "") -> PrintedNumber:
        """Parse a number, or a text; `unit` may say that it is in percent.  A parsed number stays as it is.

        Raises:
            ValueError: it isn't a number as papers print one.
        """
        if isinstance(text, cls):
            return text
        in_percent = unit.strip().lower() in PERCENT
        bare = plain(str(text)).lower().translate({0x2212: "-", 0xFF05: "%"})
        bare = re.sub("|".join(PERCENT[1:]), "%", re.sub(r"[_^]?\{|[}$]|\\(?=%)", "", bare)).strip()
        found = _PRINTED.fullmatch(bare)
        if found is None:
            raise ValueError(f"{str(text)[:40]!r} is not a number{explain_number(bare)}; {_EXAMPLES}")
        first, sign, digits, spread, last_sign = found.groups()
        number = first.replace(",", "")
        is_mixed = bool(sign) != bool(last_sign) and (bool(sign) or abs(float(number)) <= 1)
        if spread and is_mixed and not in_percent:
            raise ValueError(f"{str(text)[:40]!r} may have one number in percent or two; write % after both")
        is_percent = bool(sign or last_sign) or in_percent
        divisor = 100 if is_percent else 1
        mantissa, _, exponent = number.partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) / divisor
        std = int(digits) * last if digits else float(spread.replace(",", "")) / divisor if spread else None
        if not max(abs(float(number)), std or 0.0) <= LARGEST:
            raise ValueError(f"{str(text)[:40]!r} is too large; {_EXAMPLES}")
        return cls(float(number) / divisor + 0.0, std, last, is_percent, not is_number(text))  # -0.0 becomes 0.0

    def divided(self, by: float) -> PrintedNumber:
        """Return the number in a unit that is larger by this factor."""
        std = None if self.std is None else self.std / by
        return dataclasses.replace(self, value=self.value / by, std=std, precision=self.precision / by)


_EXAMPLES = "print it as 97.5 %, 97.5 ± 0.2 % or 0.975(2)"


def explain_number(text: str) -> str:
    """Return what probably is wrong with a number's text."""
    if re.search(r"\d,\d", text):
        choice = f": write {text.replace(',', '.')} or {text.replace(',', '')}" if text.count(",") == 1 else ""
        return f", because its comma may be a decimal point or separate thousands{choice}"
    if re.search(r"\(\s*\d*\.\d+\s*%?\s*\)", text):
        return ", because the brackets may hold a standard deviation, an error or a range"
    return " alone; leave out marks such as *, ~ or >, and ranges" if re.search(r"\d", text) else ""


def parse_count(text: object) -> tuple[int, int]:
    """Parse "15 of 16".

    Raises:
        ValueError: it isn't a count of a total.
    """
    found = _COUNT.fullmatch(plain(str(text)))
    if found is None or not 0 <= int(found[1]) <= int(found[2]) or not int(found[2]):
        raise ValueError(f"{str(text)[:40]!r} is not a count; print it as 15 of 16")
    return int(found[1]), int(found[2])


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
