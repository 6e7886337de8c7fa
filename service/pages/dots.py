"""Dots with intervals that compare our numbers with printed ones; coordinates of inline SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from service.pages.formats import in_terms_of, print_value
from service.pages.legend import COLOURS, word_of
from service.pages.plots import Axis
from service.pages.wording import print_ours, span_of
from stages.results import JudgedClaim, Word

WIDTH, MOST = 640.0, 1.5
"""Width of the drawing in pixels, and the largest share of a printed number that is drawn to scale."""
NARROW = 14.0  # pixels; the dot hides a shorter interval
LANE, DOT, MOST_LANES = 7.0, 5.0, 6
MOST_TICKS = 6
STACK = 17.0  # pixels between groups of different colours at one place
PLACE, LETTER = 14.0, 6.2  # pixels of a place, in which dots are one group, and of a label's letter
ROW = 22.0  # height in pixels of a claim with its own line


@dataclass(frozen=True, kw_only=True)
class ClaimDot:
    """One claim, or `count` claims of one colour that nearly coincide; `low` and `high` end its interval."""

    x: float
    y: float
    low: float | None
    high: float | None
    side: str
    count: int
    text: str
    claim: str
    label: str = ""

    @property
    def radius(self) -> float:
        return round(DOT + 1.8 * math.sqrt(self.count - 1), 1)


@dataclass(frozen=True, kw_only=True)
class ClaimStrip:
    """The dots of one paper; `text` describes them."""

    height: float
    dots: tuple[ClaimDot, ...]
    text: str


def share_of(row: JudgedClaim) -> tuple[float, float | None, float | None] | None:
    """Return our number and its interval as shares of the printed one; None without both numbers.

    A number within a printed range has the share 1.  Settings and data set sizes are excluded: they aren't results.
    """
    claim, verdict = row.claim, row.verdict
    if verdict.basis not in ("results", "finding") or not claim.value or verdict.ours is None or claim.factor:
        return None
    if claim.high is not None:
        nearest = min(max(verdict.ours, claim.value), claim.high)
        return verdict.ours / nearest, None, None
    if verdict.basis != "results" or verdict.low is None or verdict.high is None:
        return verdict.ours / claim.value, None, None
    start = 0.0 if claim.facts.is_gain else claim.value
    low, high = sorted((start + end) / claim.value for end in (verdict.low, verdict.high))
    return verdict.ours / claim.value, low, high


def _place(share: float) -> float:
    return round(WIDTH * min(max(share, 0.0), MOST) / MOST, 1)


def _describe(row: JudgedClaim, names: Mapping[str, str]) -> str:
    claim = row.claim
    return f"{names[claim.id]}: printed {print_value(claim)}, ours {print_ours(row.verdict, claim)}, {word_of(row)}"


def _dot(
    row: JudgedClaim,
    names: Mapping[str, str],
    y: float,
    share: float,
    low: float | None = None,
    high: float | None = None,
) -> ClaimDot:
    return ClaimDot(
        x=_place(share),
        y=y,
        low=None if low is None else _place(low),
        high=None if high is None else _place(high),
        side=COLOURS[word_of(row)],
        count=1,
        text=_describe(row, names),
        claim=row.claim.id,
    )


def draw_strip(rows: Iterable[JudgedClaim], names: Mapping[str, str]) -> ClaimStrip:
    """Draw a paper's numbers in one line: those with a visible interval alone, the others in groups."""
    alone: list[tuple[JudgedClaim, float, float, float]] = []
    together: dict[tuple[str, int], list[tuple[JudgedClaim, float]]] = {}
    for row in rows:
        if (found := share_of(row)) is None:
            continue
        share, low, high = found
        if low is not None and high is not None and _place(high) - _place(low) > NARROW:
            alone.append((row, share, low, high))
        else:
            place = round((_place(share) - _place(1.0)) / PLACE)
            together.setdefault((COLOURS[word_of(row)], place), []).append((row, share))
    alone.sort(key=lambda item: item[1])
    lanes = min(MOST_LANES, len(alone) + bool(together))
    height = 2 * DOT + LANE * max(1, lanes - 1) + 12
    dots = [
        _dot(row, names, DOT + 6 + LANE * ((number + bool(together)) % max(1, lanes)), share, low, high)
        for number, (row, share, low, high) in enumerate(alone)
    ]
    stacked = Counter[int]()
    for (side, place), group in together.items():
        first, share = group[0]
        label = f"{print_value(first.claim)} → {print_ours(first.verdict, first.claim)}" if side == "against" else ""
        taken = range(place, place + 1 + math.ceil(len(label) * LETTER / PLACE))  # the label is right of its dot
        level = max(stacked[near] for near in taken)
        stacked |= dict.fromkeys(taken, level + 1)
        dot = _dot(first, names, DOT + 8 + STACK * level, share)
        text = dot.text if len(group) == 1 else f"{len(group)} numbers, as {dot.text}"
        label = label or (f"{share:.2g} × ▸" if share > MOST else "")
        dots.append(replace(dot, count=len(group), text=text, label=label))
    height = max(height, 2 * (DOT + 8) + STACK * (max(stacked.values(), default=1) - 1))
    many = sum(dot.count for dot in dots)
    text = f"{many} printed numbers with ours" if dots else "no printed number to compare yet"
    return ClaimStrip(height=height, dots=tuple(dots), text=text)


def draw_lines(rows: Iterable[JudgedClaim], names: Mapping[str, str]) -> list[tuple[JudgedClaim, ClaimStrip]]:
    """Draw a line for each number of a paper: failed claims first, then trained before computed ones."""
    order = (Word.FAILS, Word.OPEN, Word.HOLDS, Word.NOT_TESTED)
    found = sorted(
        (row for row in rows if share_of(row)),
        key=lambda row: (word_of(row) is not Word.FAILS, row.verdict.basis != "results", order.index(word_of(row))),
    )
    lines = []
    for row in found:
        share, low, high = share_of(row) or (0.0, None, None)
        dot = _dot(row, names, ROW / 2, share, low, high)
        dot = replace(dot, label=f"{share:.2g} × ▸") if share > MOST else dot
        lines.append((row, ClaimStrip(height=ROW, dots=(dot,), text=dot.text)))
    return lines


Write = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Our number and its interval on an axis, with the printed number and the `margin` around it.

    `has_zero`: the axis includes zero.
    """

    ours: float
    low: float
    high: float
    write: Write
    side: str
    text: str
    printed: float | None = None
    margin: float | None = None
    has_zero: bool = False

    @property
    def same(self) -> tuple[float, float] | None:
        """Return the ends of the margin."""
        return (
            (self.printed - self.margin, self.printed + self.margin)
            if self.printed is not None and self.margin
            else None
        )

    @cached_property
    def axis(self) -> Axis:
        shown = [self.ours, self.low, self.high, *(self.same or ()), *([0.0] if self.has_zero else [])]
        return Axis(
            shown + ([] if self.printed is None else [self.printed]), self.write, most=MOST_TICKS, is_linear=True
        )


def draw_claim(record: JudgedClaim, name: str) -> Interval | None:
    """Draw the claim's printed number and ours; a gain without a printed size is drawn against zero.

    For a claim that gains or numbers are alike, draw their difference.  None without an interval.
    """
    claim, verdict = record.claim, record.verdict
    if verdict.basis != "results" or verdict.estimate is None or verdict.low is None or verdict.high is None:
        return None
    margin = verdict.margin or (verdict.size or {}).get("margin")
    facts = claim.facts
    start = (claim.value or 0.0) if facts.number in ("model", "ours") else 0.0
    printed = 0.0 if facts.is_alike else None if claim.factor or facts.at_size else claim.value
    return Interval(
        ours=start + verdict.estimate,
        low=start + verdict.low,
        high=start + verdict.high,
        write=lambda number: in_terms_of(number, claim, lambda value: f"{value:.4g}".replace("-", "−")),
        side=COLOURS[word_of(record)],
        text=f"{_describe(record, {claim.id: name})}, with the interval {span_of(verdict.low, verdict.high, claim)}",
        printed=printed,
        margin=margin,
        has_zero=facts.is_gain or bool(facts.at_size or claim.factor),
    )
