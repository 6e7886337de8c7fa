"""Judge numbers that are reported with their replicates, by the same judges and rules as our own trainings.

    claimcheck.value(printed="97.5 ± 0.2 %", n=5, ours=[.971, .974, .969, .973, .972])
    claimcheck.order(a=[…], b=[…], better="higher")

Values of one arm are independent runs in the order in which they were planned; `None`, NaN or infinity is a run that
diverged.  Each function raises ValueError if an argument isn't what it expects.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, cast

import numpy as np
import pandas as pd

from stages.reported.units import ROUNDING, PrintedNumber, is_number, parse_count
from stages.rules import ANYTIME, Margins, Rules
from stages.verdicts import (
    ComparableClaim,
    ComparedArms,
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


def name_changes(rules: Rules) -> tuple[str, ...]:
    """Return the fields in which these rules differ from the usual ones; `families` change no verdict here."""
    names = [field.name for field in dataclasses.fields(rules) if field.name != "families"]
    return tuple(name for name in names if getattr(rules, name) != getattr(RULES, name))


@dataclass(frozen=True, kw_only=True)
class ReportedVerdict:
    """A verdict on reported results.  `ours` is the mean of the replicates, or the gain of one arm over the other.

    `changed_rules` are the fields of other rules than `RULES` that differ from these.
    """

    claim: str
    printed: float | None
    ours: float | None
    verdict: Verdict
    changed_rules: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def of_size(self) -> str:
        """The verdict on the size of an order, as a sentence; empty without one."""
        size = self.verdict.size
        return f"Its size: {size.status}. {size.explanation}" if size else ""

    def __str__(self) -> str:
        by = f"; by rules with other {', '.join(self.changed_rules)}" if self.changed_rules else ""
        said = f"{self.claim}: {self.status} (reported, not retrained{by}). {self.verdict.explanation} {self.of_size}"
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
            "changed_rules": list(self.changed_rules),
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
    std: float | str | None = None,
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
        std: the standard deviation, if it is printed elsewhere; "0.2 %" if `printed` is in percent.
        n: the number of the paper's runs; None if it doesn't say.
        better: which direction of the metric is better; it decides the margin of an accuracy or an error.
        is_share: True for an accuracy or an error in [0, 1], False for a loss, a time and the like.
        margin: the distance from the printed number that still counts as equal; by default that of the rules.
        rules: levels, interim analyses and margins.
        claim: the name shown in the verdict.
    """
    _check_options(better, margin, rules, claim, is_share=is_share, n=n)
    number, sample = _parse(printed, std), _sample(ours)
    margins = rules.margins
    if is_share:
        _check_shares(number, sample)
        is_coarse = number.rounding > (1 + ROUNDING) * margins.error_points
    else:
        is_coarse = number.rounding > _COARSE * abs(number.value)

    def margin_at(level: float) -> float:
        if not is_share:
            return margins.loss(abs(level), number.rounding)
        return (margins.accuracy if better == "higher" else margins.error)(level, number.rounding)

    judged = ValueClaim(
        value=number.value,
        margin=margin_at(number.value) if margin is None else margin,
        stderr=_stderr(number, n),
        n=n,
        slope=_slope(margin_at, number.value) if margin is None else 0.0,
    )
    is_coarse = is_coarse and margin is None
    planned = None if rules.is_anytime else sample.n
    size = 0.0 if is_coarse else math.inf
    covering = _cover(rules, sample.n)
    verdict = judge_value(judged, sample, rules=covering, planned=planned, size=size, as_large=_FEW_DIGITS)
    mean = fmean(sample.values) if sample.values else None
    return _reported(claim, number.value, mean, verdict, rules, sample.n)


def order(
    a: Values,
    b: Values,
    *,
    better: Better,
    printed: float | str | PrintedNumber | None = None,
    std: float | str | None = None,
    n: int | None = None,
    is_share: bool = True,
    paired: bool = False,
    folds: int | None = None,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "order",
) -> ReportedVerdict:
    """Judge whether `a` is better than `b`; with `printed`, also whether its gain over b is the printed one.

    `paired`: equal positions share a fold, or something else that makes them alike.  `folds`: how many folds of one
    data set there are, if each position holds out one; the verdict then also shows an interval for other training data.
    With `RULES_ANYTIME`, equal positions are compared in any case.  Other arguments are as in `value`.
    """
    how = _Comparison(better, margin, rules, claim, is_share, paired, folds, n)
    _require("std", std, std is None or printed is not None, "None, because nothing is printed")
    number = None if printed is None else _parse(printed, std)
    if number is not None and number.value <= 0:
        raise ValueError(
            f"the printed gain is {number.value:g}; expected more than 0, which is in favour of the first model "
            "also if lower is better. Swap the models, or use `gap` for a worse model and `comparable` for 0"
        )
    return how.judge(judge_gain, a, b, number)


def gap(
    a: Values,
    b: Values,
    *,
    printed: float | str | PrintedNumber,
    better: Better,
    std: float | str | None = None,
    n: int | None = None,
    is_share: bool = True,
    paired: bool = False,
    folds: int | None = None,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "gap",
) -> ReportedVerdict:
    """Judge the size of a printed gain of `a` over `b` without a claimed order, negative if a is worse; as `order`."""
    how = _Comparison(better, margin, rules, claim, is_share, paired, folds, n)
    number = _parse(printed, std)
    if not number.value:
        raise ValueError("a printed difference of 0 has no size to compare with; use `comparable`")
    return how.judge(judge_gap, a, b, number)


def comparable(
    a: Values,
    b: Values,
    *,
    better: Better,
    printed: float | str | PrintedNumber | None = None,
    is_share: bool = True,
    paired: bool = False,
    folds: int | None = None,
    margin: float | None = None,
    rules: Rules = RULES,
    claim: str = "comparable",
) -> ReportedVerdict:
    """Judge whether `a` is worse than `b` by no more than the margin; `printed` is a loss that the paper accepts.

    The margin of a metric that isn't a share is relative to the mean of `b`.  Other arguments are as in `order`.
    """
    how = _Comparison(better, margin, rules, claim, is_share, paired, folds)
    number = None if printed is None else _parse(printed)
    return how.judge(judge_comparable, a, b, number)


def wins(
    pairs: Sequence[tuple[Values, Values]],
    *,
    printed: str,
    better: Better,
    rules: Rules = RULES,
    claim: str = "wins",
) -> ReportedVerdict:
    """Judge a printed count of comparisons that the first arm wins, "15 of 16", by the pairs (a, b) of each comparison.

    The rules have to plan the numbers of replicates.
    """
    _check_options(better, None, rules, claim)
    claimed, total = parse_count(printed)
    if rules.is_anytime:
        raise ValueError("with `looks: anytime` wins can't be counted; use rules that plan the numbers of replicates")
    arms = [_items("a pair", pair) for pair in _items("pairs", pairs)]
    _require("pairs", pairs, all(len(pair) == 2 for pair in arms), "pairs (a, b) of replicates")
    gains = [order(a, b, better=better, rules=rules).verdict for a, b in arms]
    if len(gains) != total:
        why = f"{len(gains)} of {total} comparisons have results; the count is taken of them all."
        return unjudged(claim, why, claimed)
    verdict = judge_wins(claimed, gains, rules, n=min(gain.n for gain in gains))
    count = None if verdict.estimate is None else claimed + verdict.estimate
    return _reported(claim, claimed, count, verdict, rules, verdict.n)


_COARSE = 0.1
"""Largest last digit, relative to the number, with which a loss can be compared."""
_FEW_DIGITS = "the number is printed with too few digits to tell whether ours equals it"


def _require(name: str, given: object, is_valid: object, expected: str) -> None:
    if not is_valid:
        raise ValueError(f"{name} is {repr(given)[:60]}; expected {expected}")


def _is_count(given: object, least: int) -> bool:
    return isinstance(given, int | np.integer) and is_number(given, least - 1)


def _check_options(
    better: object,
    margin: object,
    rules: object,
    claim: object,
    is_share: object = True,
    paired: object = False,
    folds: object = None,
    n: object = None,
) -> None:
    """Check the arguments that say how to judge."""
    _require("better", better, isinstance(better, str) and better in ("higher", "lower"), "'higher' or 'lower'")
    _require("margin", margin, margin is None or is_number(margin, 0), "a number above 0, such as 0.01 for 1 %")
    _require("rules", rules, isinstance(rules, Rules), "Rules, such as claimcheck.RULES")
    _require("claim", claim, isinstance(claim, str), "a text")
    _require("is_share", is_share, isinstance(is_share, bool), "True or False")
    _require("paired", paired, isinstance(paired, bool), "True or False")
    _require("n", n, n is None or _is_count(n, 1), "the number of the paper's runs, 1 or more")
    _require("folds", folds, folds is None or _is_count(folds, 2), "the number of folds, 2 or more")


def _parse(printed: object, std: object = None) -> PrintedNumber:
    """Return the printed number with its standard deviation."""
    number = PrintedNumber.parse(printed)
    if std is None:
        return number
    spread = PrintedNumber.parse(std)
    _require("std", std, spread.value >= 0 and spread.std is None, "a standard deviation, 0 or more")
    _require("std", std, number.std is None, "None, because `printed` has one after ±")
    _require("std", std, spread.is_percent == number.is_percent, "the unit of `printed`; write % after both or neither")
    return dataclasses.replace(number, std=spread.value)


def _check_shares(number: PrintedNumber | None, *samples: Sample) -> None:
    values = [each for sample in samples for each in sample.values]
    if not all(0 <= each <= 1 + ROUNDING for each in values) or (number and abs(number.value) > 1):
        raise ValueError("a share must lie in [0, 1]; write percent as '97.5 %', or say is_share=False")


def _cover(rules: Rules, n: int) -> Rules:
    """Return the rules with the last analysis at `n` replicates if there are more than they plan: all are there."""
    if rules.is_anytime or n <= max(rules.looks):
        return rules
    *earlier, (_, share) = rules.looks.items()
    return dataclasses.replace(rules, looks=dict([*earlier, (n, share)]))


def _stderr(number: PrintedNumber, n: int | None) -> float | None:
    return None if number.std is None else number.std / math.sqrt(n or 1)


def _slope(margin_at: Callable[[float], float], printed: float) -> float:
    """Slope of the margin with respect to the printed number."""
    step = 1e-6 * abs(printed)
    return (margin_at(printed + step) - margin_at(printed)) / step if step else 0.0


@dataclass(frozen=True)
class _Comparison:
    """How two arms are compared; the fields are arguments of `order`.

    Raises:
        ValueError: one isn't what is expected.
    """

    better: Better
    margin: float | None
    rules: Rules
    claim: str
    is_share: bool
    paired: bool
    folds: int | None
    n: int | None = None

    def __post_init__(self) -> None:
        _check_options(**vars(self))

    def judge(
        self, judge: Callable[..., Verdict], a: Values, b: Values, printed: PrintedNumber | None
    ) -> ReportedVerdict:
        """Return the judge's verdict on two arms, whose plan ends with their runs."""
        one, other = _sample(a), _sample(b)
        rules = _cover(self.rules, min(one.n, other.n))
        if self.is_share and (printed or judge is judge_comparable):
            _check_shares(printed, one, other)
        if printed and printed.is_percent and not self.is_share:
            raise ValueError(
                "percent of a number that isn't a share is a ratio; print the difference in the metric's unit"
            )
        mean_a, mean_b = (fmean(sample.values) if sample.values else math.nan for sample in (one, other))
        precision = printed.rounding if printed else 0.0
        asked: ComparableClaim | GainClaim
        if judge is judge_comparable:
            is_coarse = self.is_share and precision > rules.margins.error_points
            level = mean_b if math.isfinite(mean_b) else 0.0
            widest = rules.margins.comparable(level, 0.0 if is_coarse else precision, is_share=self.is_share)
            accepted = abs(printed.value) if printed else None
            asked = ComparableClaim(
                margin=widest if self.margin is None else self.margin, better=self.better, accepted=accepted
            )
        elif printed is None:
            asked = GainClaim(gain=1.0, margin=None, better=self.better)
        else:

            def margin_at(gain: float) -> float:
                return rules.margins.difference(gain, precision, is_share=self.is_share)

            asked = GainClaim(
                gain=printed.value,
                margin=margin_at(printed.value) if self.margin is None else self.margin,
                better=self.better,
                stderr=_stderr(printed, self.n),
                n=self.n,
                slope=_slope(margin_at, printed.value) if self.margin is None else 0.0,
            )
        arms = ComparedArms(
            one,
            other,
            rules=rules,
            pairing="fold" if self.paired or self.folds else "none",
            planned=None if rules.is_anytime else min(one.n, other.n),
            folds=self.folds,
        )
        verdict = judge(asked, arms)
        number = None if printed is None else printed.value
        if printed and verdict.size and verdict.size.status is Status.NOT_REPRODUCED:
            share = rules.margins.difference_share
            if why := _find_other_reading(
                printed, mean_a, mean_b, self.better, self.is_share, judge is judge_gap, share
            ):
                if judge is judge_gap:
                    return unjudged(self.claim, why, number)
                verdict = dataclasses.replace(verdict, size=not_tested(why))
        return _reported(self.claim, number, verdict.estimate, verdict, self.rules, min(one.n, other.n))


def measure_gains(a: float, b: float, better: Better, is_share: bool) -> tuple[float, float, float]:
    """Return the difference, the ratio minus 1, and an error's relative fall: better positive; NaN if undefined."""
    if better == "lower":
        a, b = b, a
    errors = (1 - a, 1 - b) if better == "higher" else (b, a)
    fall = 1 - errors[0] / errors[1] if errors[1] and (is_share or better == "lower") else math.nan
    return a - b, a / b - 1 if b else math.nan, fall


def _find_other_reading(
    printed: PrintedNumber, a: float, b: float, better: Better, is_share: bool, may_be_signed: bool, share: float
) -> str:
    """Return why a printed gain, which isn't the difference, may be true in another sense; empty if it can't."""
    difference, *relative = measure_gains(a, b, better, is_share)
    margin = max(share * abs(printed.value), printed.rounding)
    for found, name in zip(relative, ("ratio minus 1", "relative fall of the error"), strict=True):
        if abs(found - printed.value) <= margin:
            return (
                f"{printed.value:.4g} isn't the difference, {difference:.4g}, but fits as a {name}, {found:.4g}. "
                "Only differences are judged: print the difference, or leave printed empty."
            )
    if may_be_signed and better == "lower" and abs(difference + printed.value) <= margin:
        return (
            f"{printed.value:.4g} has the wrong sign: ours is {difference:.4g}, because a gap is positive if the "
            "first model is better, also if lower is better."
        )
    return ""


def _reported(
    claim: str, printed: float | None, ours: float | None, verdict: Verdict, rules: Rules, n: int
) -> ReportedVerdict:
    """Return the verdict on `n` replicates by these rules, before they were made to cover `n`."""
    verdict = explain_anytime(verdict, "replicates") if rules.is_anytime else verdict
    if rules.is_anytime and n > (most := max(rules.looks)):
        why = f"With `looks: anytime` only the first {most:,} of the {n:,} replicates are judged."
        verdict = dataclasses.replace(verdict, explanation=f"{verdict.explanation} {why}")
    changes = name_changes(rules)
    return ReportedVerdict(claim=claim, printed=printed, ours=ours, verdict=verdict, changed_rules=changes)


def _items(name: str, given: object) -> list[Any]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | Set | pd.DataFrame)
    _require(name, given, is_list, "a list")
    return list(cast("Iterable[Any]", given))


def _sample(values: Values) -> Sample:
    replicates: list[float | None] = []
    for each in _items("an arm", values):
        number = each.item() if getattr(each, "ndim", None) == 0 else each  # of NumPy or PyTorch
        is_missing = number is None or number is pd.NA or (isinstance(number, float) and not math.isfinite(number))
        _require("a replicate", each, is_missing or is_number(number), "a number up to 1e100, or None if it diverged")
        replicates.append(None if is_missing else float(number) + 0.0)
    return Sample.of(replicates)


def unjudged(claim: str, why: str, printed: float | None = None) -> ReportedVerdict:
    """Return the verdict on a claim without results."""
    return ReportedVerdict(claim=claim, printed=printed, ours=None, verdict=not_tested(why))
