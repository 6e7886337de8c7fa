"""Numbers as papers print them: 97.5 %, 97.5 ± 0.2 %, 0.975(2), 4,300,000."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})(?:\((\d+)\))?(?:(?:±|\+/?-|\\pm)({_NUMBER}))?")
_COUNT = re.compile(r"(\d+)\s*(?:of|/)\s*(\d+)")
PERCENT = ("%", "percent", "pp", "points")


@dataclass(frozen=True)
class Printed:
    """A printed number.  `std` is what stands after ±, in the same unit; `precision` the unit of its last digit.

    A number in percent is a fraction here: 97.5 % is 0.975, with a precision of 0.001.
    """

    value: float
    std: float | None
    precision: float
    is_percent: bool

    @classmethod
    def parse(cls, text: object, unit: str = "") -> Printed:
        """Parse a number, or a text; `unit` may say that it is in percent.  What is parsed already stays as it is.

        Raises:
            ValueError: it isn't a number as papers print one.
        """
        if isinstance(text, cls):
            return text
        plain = re.sub(r"\s|\$", "", str(text)).replace("−", "-").lower()
        is_percent = "%" in plain or unit.strip().lower() in PERCENT
        found = _PRINTED.fullmatch(plain.replace("\\%", "").replace("%", ""))
        if found is None or not re.search(r"\d", found[1]):
            raise ValueError(f"{str(text)[:40]!r} is not a number; print it as 97.5 %, 97.5 ± 0.2 % or 0.975(2)")
        number = found[1].replace(",", "")
        mantissa, _, exponent = number.partition("e")
        last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) / (100 if is_percent else 1)
        std = int(found[2]) * last if found[2] else None
        if found[3]:
            std = float(found[3].replace(",", "")) / (100 if is_percent else 1)
        return cls(float(number) / (100 if is_percent else 1), std, last, is_percent)


def parse_count(text: object) -> tuple[int, int]:
    """Parse "15 of 16".

    Raises:
        ValueError: it isn't a count of a total.
    """
    found = _COUNT.fullmatch(str(text).strip())
    if found is None or not 0 <= int(found[1]) <= int(found[2]) or not int(found[2]):
        raise ValueError(f"{str(text)[:40]!r} is not a count; print it as 15 of 16")
    return int(found[1]), int(found[2])
