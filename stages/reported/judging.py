"""Judge numbers that are reported with their replicates, by the same judges and rules as our own trainings.

    claimcheck.value(printed="97.5 ± 0.2 %", n=5, ours=[.971, .974, .969, .973, .972])
    claimcheck.order(a=[…], b=[…], better="higher")

Values of one arm are independent runs in the order in which they were planned; `None` or NaN is a run that diverged.
"""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import pandas as pd

from stages.rules import ANYTIME, Margins, Rules
from stages.verdicts import (
    ComparableClaim,
    GainClaim,
    Sample,
    Status,
    ValueClaim,
    Verdict,
    judge_comparable,
    judge_gain,
    judge_gap,
    judge_value,
    judge_wins,
    not_tested,
)
from stages.verdicts.anytime import explain_anytime

_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d+)?"
_PRINTED = re.compile(rf"({_NUMBER})(?:\((\d+)\))?(?:(?:±|\+/?-|\\pm)({_NUMBER}))?")
_COUNT = re.compile(r"(\d+)\s*(?:of|/)\s*(\d+)")
PERCENT = ("%", "percent", "pp", "points")


@dataclass(frozen=True)
class PrintedNumber:
    """A printed number.  `std` is the number after ±, in the same unit; `precision` the unit of its last digit.

    A number in percent is a fraction here: 97.5 % is 0.975, with a precision of 0.001.
    """

    value: float
    std: float | None
    precision: float
    is_percent: bool

    @classmethod
    def parse(cls, text: object, unit: str = "") -> PrintedNumber:
        """Parse a number, or a text; `unit` may say that it is in percent.  A parsed number stays as it is.

        Raises:
            ValueError: it isn't a number as papers print one.
        """
        if isinstance(text, cls):
            return text
        plain = re.sub(r"\s|\$", "", str(text)).replace("−", "-").lower()
        number, percent = re.subn(rf"\\?%|{'|'.join(PERCENT[1:])}", "", plain)
        is_percent = bool(percent) or unit.strip().lower() in PERCENT
        found = _PRINTED.fullmatch(number)
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


Better = Literal["higher", "lower"]
Values = Iterable[float | None]
RULES = Rules(
    margins=Margins(
        error_points=0.01,
        error_share=0.10,
        difference_points=0.001,
        difference_share=0.5,
        comparable_points=0.005,
        loss_share=0.02,
        log_mse_share=0.25,
        flops_share=0.05,
        memory_share=0.05,
    ),
    looks={3: 0.2, 5: 0.4, 10: 0.4},
    alpha_within=0.05,
    alpha_outside=0.05,
    minimum=5,
    minimum_with_error=3,
    indicative_share=0.30,
)
"""The rules of `params.yaml`, for results from elsewhere."""
RULES_ANYTIME = dataclasses.replace(RULES, looks=ANYTIME)
"""The same for replicates that arrive without a plan: their intervals are wider and hold at any number of them."""


@dataclass(frozen=True, kw_only=True)
class ReportedVerdict:
    """A verdict on reported results.  `ours` is the mean of the replicates, or the gain of one arm over the other."""

    claim: str
    printed: float | None
    ours: float | None
    verdict: Verdict

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def of_size(self) -> str:
        """The verdict on the size of an order, as a sentence; empty without one."""
        size = self.verdict.size
        return f"Its size: {size.status}. {size.explanation}" if size else ""

    def __str__(self) -> str:
        said = f"{self.claim}: {self.status} (reported, not retrained). {self.verdict.explanation} {self.of_size}"
        return said.rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain numbers, texts and None, ready for JSON."""
        numbers = ("estimate", "low", "high", "confidence", "margin", "n", "n_diverged", "p_value")
        size = self.verdict.size
        return {
            "claim": self.claim,
            "printed": self.printed,
            "ours": self.ours,
            "status": str(self.status),
            "explanation": self.verdict.explanation,
            **{name: getattr(self.verdict, name) for name in numbers},
            **self.verdict.ends,
            "size": None if size is None else {"status": str(size.status), "explanation": size.explanation},
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the verdict as a table of one row."""
        return pd.DataFrame([self.to_dict()])

    def to_svg(self) -> str:
        """Draw the estimate and its interval, with the margin as a band around zero; empty without an interval."""
        low, high, estimate = self.verdict.low, self.verdict.high, self.verdict.estimate
        if low is None or high is None or estimate is None or not math.isfinite(high - low):
            return ""
        margin = self.verdict.margin or 0.0
        reach = 1.1 * max(abs(low), abs(high), margin) or 1.0

        def x(number: float) -> str:
            return f"{120 + 110 * number / reach:.1f}"

        band = f'<rect x="{x(-margin)}" width="{220 * margin / reach:.1f}" y="4" height="16" fill="#dde5e5"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="240" height="24" role="img" aria-label="'
            f'{html.escape(f"{estimate:.4g}, from {low:.4g} to {high:.4g}")}">{band if margin else ""}'
            f'<path d="M{x(0)} 2V22" stroke="#777"/><path d="M{x(low)} 12H{x(high)}" stroke="#124" stroke-width="2"/>'
            f'<circle cx="{x(estimate)}" cy="12" r="4" fill="#124"/></svg>'
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(str(self))}</p>{self.to_svg()}"


def value(
    *,
    printed: float | str | PrintedNumber,
    ours: Values,
    std: float | None = None,
    n: int | None = None,
    better: Better = "higher",
    is_share: bool = True,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "value",
) -> ReportedVerdict:
    """Judge whether `ours` reproduce a printed number.

    Args:
        printed: the number, or its text; the number after ± is the standard deviation of its `n` runs.
        ours: the replicates.
        std: the standard deviation, if it is printed elsewhere.
        n: the number of the paper's runs; None if it doesn't say.
        better: which direction of the metric is better; it decides the margin of an accuracy or an error.
        is_share: True for an accuracy or an error in [0, 1], False for a loss, a time and the like.
        margin: the distance from the printed number that still counts as equal; by default that of the rules.
        rules: levels, interim analyses and margins.
        claim: the name shown in the verdict.

    Raises:
        ValueError: `printed` isn't a number, or a share isn't in [0, 1].
    """
    number, sample = PrintedNumber.parse(printed), _sample(ours)
    if is_share and not all(0 <= each <= 1 for each in (number.value, *sample.values)):
        raise ValueError("a share must lie in [0, 1]; write percent as '97.5 %', or say is_share=False")

    def margin_at(level: float) -> float:
        if not is_share:
            return rules.margins.loss(abs(level), number.precision)
        return (rules.margins.accuracy if better == "higher" else rules.margins.error)(level, number.precision)

    spread = number.std if std is None else std
    judged = ValueClaim(
        value=number.value,
        margin=margin_at(number.value) if margin is None else margin,
        stderr=None if spread is None else spread / math.sqrt(n or 1),
        n=n,
        slope=_slope(margin_at, number.value) if margin is None else 0.0,
    )
    verdict = judge_value(judged, sample, rules=rules, planned=None if rules.is_anytime else sample.n)
    mean = fmean(sample.values) if sample.values else None
    return _reported(claim, number.value, mean, verdict, rules)


def order(
    a: Values,
    b: Values,
    *,
    better: Better,
    printed: float | str | PrintedNumber | None = None,
    paired: bool = False,
    folds: int | None = None,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "order",
) -> ReportedVerdict:
    """Judge whether `a` is better than `b`; with `printed`, also whether its gain over b is the printed one.

    `paired`: equal positions share a fold, or something else that makes them alike.  `folds`: how many folds of one
    data set there are, if each position holds out one; the verdict then also shows an interval for other training data.
    With `RULES_ANYTIME`, equal positions are compared in any case.

    Raises:
        ValueError: `printed` isn't a number, or is 0; or there are fewer than two `folds`.
    """
    number = None if printed is None else PrintedNumber.parse(printed)
    return _compare(judge_gain, _gain(number, better, margin, rules), a, b, number, claim, paired, folds, rules)


def gap(
    a: Values,
    b: Values,
    *,
    printed: float | str | PrintedNumber,
    better: Better,
    paired: bool = False,
    folds: int | None = None,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "gap",
) -> ReportedVerdict:
    """Judge the size of a printed gain of `a` over `b` without a claimed order, negative if a is worse; as `order`."""
    number = PrintedNumber.parse(printed)
    return _compare(judge_gap, _gain(number, better, margin, rules), a, b, number, claim, paired, folds, rules)


def comparable(
    a: Values,
    b: Values,
    *,
    better: Better,
    printed: float | str | PrintedNumber | None = None,
    paired: bool = False,
    folds: int | None = None,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "comparable",
) -> ReportedVerdict:
    """Judge whether `a` is worse than `b` by no more than the margin; `printed` is a loss that the paper accepts."""
    number = None if printed is None else PrintedNumber.parse(printed)
    widest = rules.margins.comparable(number.precision if number else 0.0) if margin is None else margin
    accepted = ComparableClaim(margin=widest, better=better, accepted=None if number is None else abs(number.value))
    return _compare(judge_comparable, accepted, a, b, number, claim, paired, folds, rules)


def wins(
    pairs: Sequence[tuple[Values, Values]],
    *,
    printed: str,
    better: Better,
    rules: Rules = RULES,
    claim: str = "wins",
) -> ReportedVerdict:
    """Judge a printed count of comparisons that the first arm wins, "15 of 16", by the pairs (a, b) of each comparison.

    Raises:
        ValueError: `printed` isn't such a count, or the rules plan no number of replicates.
    """
    claimed, total = parse_count(printed)
    if rules.is_anytime:
        raise ValueError("with `looks: anytime` wins can't be counted; use rules that plan the numbers of replicates")
    gains = [order(a, b, better=better, rules=rules).verdict for a, b in pairs]
    if len(gains) != total:
        why = f"{len(gains)} of {total} comparisons have results; the count is taken of them all."
        return unjudged(claim, why, claimed)
    verdict = judge_wins(claimed, gains, rules, n=min(gain.n for gain in gains))
    count = None if verdict.estimate is None else claimed + verdict.estimate
    return ReportedVerdict(claim=claim, printed=claimed, ours=count, verdict=verdict)


def _gain(number: PrintedNumber | None, better: Better, margin: float | None, rules: Rules) -> GainClaim:
    if number is None:
        return GainClaim(gain=1.0, margin=None, better=better)
    if not number.value:
        raise ValueError("a printed gain of 0 has no order; use `comparable`")
    margin_at = rules.margins.difference
    return GainClaim(
        gain=number.value,
        margin=margin_at(number.value) if margin is None else margin,
        better=better,
        stderr=number.std,
        slope=_slope(margin_at, number.value) if margin is None else 0.0,
    )


def _slope(margin_at: Callable[[float], float], printed: float) -> float:
    """Slope of the margin with respect to the printed number."""
    step = 1e-6 * abs(printed)
    return (margin_at(printed + step) - margin_at(printed)) / step if step else 0.0


def _compare(
    judge: Callable[..., Verdict],
    asked: object,
    a: Values,
    b: Values,
    printed: PrintedNumber | None,
    claim: str,
    paired: bool,
    folds: int | None,
    rules: Rules,
) -> ReportedVerdict:
    """Return the judge's verdict on two arms, whose plan ends with their runs."""
    if folds is not None and folds < 2:
        raise ValueError(f"folds is {folds}; expected the number of folds, 2 or more")
    one, other = _sample(a), _sample(b)
    pairing = "fold" if paired or folds else "none"
    verdict = judge(
        asked,
        one,
        other,
        rules=rules,
        pairing=pairing,
        planned=None if rules.is_anytime else max(one.n, other.n),
        folds=folds,
    )
    number = None if printed is None else printed.value
    return _reported(claim, number, verdict.estimate, verdict, rules)


def _reported(claim: str, printed: float | None, ours: float | None, verdict: Verdict, rules: Rules) -> ReportedVerdict:
    verdict = explain_anytime(verdict, "replicates") if rules.is_anytime else verdict
    return ReportedVerdict(claim=claim, printed=printed, ours=ours, verdict=verdict)


def _sample(values: Values) -> Sample:
    return Sample.of([None if each is None or math.isnan(each) else float(each) for each in values])


def unjudged(claim: str, why: str, printed: float | None = None) -> ReportedVerdict:
    """Return the verdict on a claim without results."""
    return ReportedVerdict(claim=claim, printed=printed, ours=None, verdict=not_tested(why))
