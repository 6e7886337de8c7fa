"""Formatting of numbers for pages, the only place that uses percent."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from service.database.comparing import name_quantity
from stages.results import METRICS, Claim

NONE = "–"


def read_table(name: str) -> list[dict[str, str]]:
    """Read a CSV file of this folder."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def percent(fraction: float | None, digits: int = 2) -> str:
    """0.5378 → 53.78 %"""
    return NONE if fraction is None else f"{100 * fraction:.{digits}f} %"


def as_confidence(level: float | None) -> str:
    """Format with as many digits as keep it below 100: 95 %, 96.7 %, 99.98 %."""
    if level is None:
        return NONE
    digits = max(1, -math.floor(math.log10(100 * (1 - level))))
    return percent(level, digits).replace(".0 %", " %")


def points(fraction: float | None) -> str:
    """Write a difference of fractions in percentage points, with its sign: −13.45 pp"""
    return NONE if fraction is None else f"{100 * fraction:+.2f} pp".replace("-", "−")


def count(number: float | None, unit: str = "") -> str:
    """2143588 → 2.14 M: three significant digits with a decimal prefix, and the unit."""
    if number is None:
        return NONE
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}".strip()
    return f"{number:.3g} {unit}".strip()


def flops(number: float | None) -> str:
    return count(number, "FLOP")


def memory(size_bytes: float | None) -> str:
    return count(size_bytes, "B")


def energy(joules: float | None) -> str:
    return count(joules, "J")


def duration(seconds: float | None, digits: int = 3) -> str:
    """842.5 → 14 min 2 s; below a minute with this many significant digits"""
    if seconds is None:
        return NONE
    if seconds == 0:
        return "0 s"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if size <= seconds < 60:
            return f"{float(f'{seconds / size:.{digits}g}'):g} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def as_cost(number: float, column: str) -> str:
    """Write a cost of a model, a field of `CostSummary`, in its unit."""
    of_column = {"parameters": count, "flops_per_image": flops, "peak_memory_bytes": memory}
    if column == "latency_seconds_per_sample":
        return duration(number, 2)  # a median on one machine has no third significant digit
    return of_column.get(column, duration)(number)


def ratio(number: float | None) -> str:
    return NONE if number is None else f"{number:.2f} ×"


def plain(number: float | None) -> str:
    """60000 → 60,000; 15327.6 → 15,328; −0.00123456 → −0.001235"""
    if number is None:
        return NONE
    is_whole = float(number).is_integer() or abs(number) >= 1000
    text = f"{number:,.0f}" if is_whole and abs(number) < 1e15 else f"{number:.4g}"
    return text.replace("-", "−")


def exact(number: float) -> str:
    """Format with all the digits that a paper prints: 3397.08 → 3,397.08"""
    return f"{number:,.10g}".replace("-", "−")


def value_in(unit: str, write: Callable[[float], str] = plain) -> Callable[[float | None], str]:
    """Return the formatter of a unit; `write` formats numbers whose unit has none."""
    kind, _, of = unit.partition(" ")
    if kind == "relative":  # relative gain, relative increase
        return lambda number: NONE if number is None else _relative(number, of, write)
    if kind == "of":  # of the baseline
        whose = _OF.get(of, of)
        return lambda number: (
            NONE if number is None else f"equal to {whose}" if number == 1 else f"{write(number)} times {whose}"
        )
    suffix = f" {unit}" if unit else ""
    known: dict[str, Callable[[float | None], str]] = {
        "fraction": percent,
        "seconds": duration,
        "bytes": memory,
        "flop": flops,
        "count": count,
    }
    return known.get(unit, lambda number: NONE if number is None else f"{write(number)}{suffix}")


_OF = {"the baseline": "the baseline’s", "linear with ReLU": "a linear layer’s with ReLU"}


def _relative(share: float, of: str, write: Callable[[float], str]) -> str:
    """36 % gain; a negative gain is a loss: 1 % loss"""
    is_loss = of == "gain" and share < 0
    return f"{write(-100 * share)} % loss" if is_loss else f"{write(100 * share)} % {of}"


def span(low: float, high: float, unit: str) -> str:
    """Write an interval with its unit once: 96.47 to 97.97 %"""
    write = value_in(unit, as_precise_as(low, high))
    return from_to(write(low), write(high))


def as_precise_as(low: float | None, high: float | None) -> Callable[[float], str]:
    """Return the formatter of an interval and its number: two digits of its half-width, one of an end near 0."""
    if low is None or high is None or not 0 < high - low < 20 or max(abs(low), abs(high)) >= 1000:
        return plain
    digits = max(0, 1 - math.floor(math.log10((high - low) / 2)))
    of_an_end = -math.floor(math.log10(min(abs(end) for end in (low, high) if end)))
    digits = max(digits, min(of_an_end, digits + 2))
    return lambda number: f"{number:z.{digits}f}".replace("-", "−")


def value_with(low: float | None, high: float | None, unit: str) -> Callable[[float | None], str]:
    """Return the formatter of a number and its error, given its interval."""
    return value_in(unit, as_precise_as(low, high))


def from_to(first: str, last: str) -> str:
    """Join two written numbers, with a shared unit once."""
    number, _, unit = first.partition(" ")
    return f"{number if unit and last.endswith(f' {unit}') else first} to {last}"


def listed(parts: Sequence[str]) -> str:
    """Join as "", "a", "a and b", or "a, b and c"."""
    if not parts:
        return ""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def lower_first(text: str) -> str:
    """Write text for the middle of a sentence; FLOPs and SGEMM stay as they are."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Capitalise text at the beginning of a line; formulas and signs stay as they are."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z][a-z ]", text) else text


def prose(text: str) -> Markup:
    """Escape a docstring for a page, with backticks as code and typographic apostrophes."""
    said = re.sub(r"(?<=[A-Za-z])'(?=[a-z])|(?<=s)'(?= )", "’", text)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(said))))


def is_web_address(text: str | None) -> bool:
    """Return True if the text may become a link; a `javascript:` address would run on a click."""
    return (text or "").startswith(("https://", "http://"))


RELATIVE = ("relative gain", "relative reduction")

_OBSERVED = {"kernel_width_gap": "ln σ(feed-forward) − ln σ(attention)"}
_TALLIED = {"orders": "comparisons"}


def unit_of(claim: Claim) -> str:
    """Return the unit of our result; for a claim about sizes, that of its metric."""
    if claim.facts.at_size:
        return METRICS[claim.metric].unit if claim.metric in METRICS else ""
    return claim.unit or ""


def in_terms_of(value: float | None, claim: Claim, write: Callable[[float], str] = plain) -> str:
    """Write a number in the terms of `claim`: gains and ranges of fractions in points, others in its unit."""
    unit = unit_of(claim)
    is_gain = claim.facts.is_gain and unit == "fraction"
    if claim.facts.is_spread and unit == "fraction":
        return points(value).removeprefix("+")
    return points(value) if is_gain else value_in(unit, write)(value)


def names_baseline_first(claim: Claim) -> bool:
    """Return True if a claim names the baseline first: a gain in time is how much longer the baseline takes."""
    return claim.unit == "relative gain" and claim.better == "lower"


def format_signed_change(value: float | None, claim: Claim, write: Callable[[float], str] = plain) -> str:
    """Write a number in the claim's terms, a difference with its direction: "0.36 pp lower", "36 % longer".

    The direction is that of the metric of the model named first (see `names_baseline_first`), better or not.
    """
    is_relative = claim.unit in RELATIVE
    if value is None or not (claim.facts.is_gain or is_relative):
        return in_terms_of(value, claim, write)
    size = value_in("relative", write)(abs(value)).strip() if is_relative else in_terms_of(abs(value), claim, write)
    if not value:
        return f"{size.removeprefix('+')}: no difference"
    is_up = (value > 0) == (claim.better != "lower" or names_baseline_first(claim))
    is_time = claim.metric in METRICS and METRICS[claim.metric].unit == "seconds"
    ways = {(True, False): "higher", (False, False): "lower", (True, True): "longer", (False, True): "shorter"}
    return f"{size.removeprefix('+')} {ways[is_up, is_time]}"


def print_value(claim: Claim) -> str:
    """Write the paper's number as printed: with its error, as a range, or as k of n; "–" if the paper prints none."""
    if claim.facts.is_alike:
        loss = None if claim.value is None else in_terms_of(claim.value, claim).removeprefix("+")
        return f"comparable, with losses up to {loss}" if loss else "comparable"
    if claim.value is None or claim.facts.is_implied:
        return NONE
    if claim.facts.at_size:
        return claim.facts.at_size.format(value_in(claim.unit or "", exact)(claim.value))
    value = format_signed_change(claim.value, claim, exact)
    if claim.facts.is_spread:
        return f"{value} between the largest and the smallest of {claim.trials:g}"
    if claim.trials is not None:
        return f"{claim.value:g} of {claim.trials:g} {_TALLIED.get(claim.unit or '', claim.unit or '')}".rstrip()
    if claim.high is not None:
        return from_to(value, format_signed_change(claim.high, claim, exact))
    if claim.stderr is not None:
        error = in_terms_of(claim.stderr, claim, exact).removeprefix("+")
        number, unit, way = value.partition(" pp ")
        return f"{number} ± {error} {way}" if unit else f"{value} ± {error}"
    return value


def by_reading(claim: Claim) -> list[tuple[str, str]]:
    """Return (reading, result) pairs of a claim whose readings give different results; else []."""
    finding = claim.finding or {}
    if finding.get("status") not in ("holds", "holds under a reading"):
        return []
    found = [
        (row["name"], row["brief"] or "" if row["ours"] is None else format_signed_change(row["ours"], claim))
        for row in finding["readings"]
    ]
    results = [(name, text) for name, text in found if text]
    return results if len({text for _, text in results}) > 1 else []


def expected_observation(claim: Claim) -> str | None:
    """Describe the observation that the paper's words imply without printing a number; None for other claims."""
    if not claim.facts.is_implied or claim.value is None:
        return None
    side = {"higher": "above ", "lower": "below "}.get(claim.better or "", "equal to ")
    return f"{_OBSERVED.get(claim.metric) or name_quantity(claim.metric)} {side}{plain(claim.value)}"
