"""Charts of the pages: curves, costs, numbers inside networks, confusion matrices, and our numbers by printed ones."""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image
from pydantic import BeforeValidator

from service.database.comparing import (
    COSTS,
    SIDES,
    Cost,
    Curve,
    ObservedPointOut,
    name_curve,
    name_quantity,
    points_of,
    unit_of_curve,
)
from service.database.schemas import CurvePointOut
from service.pages.concluding import Trend
from service.pages.formats import (
    as_cost,
    as_precise_as,
    count,
    duration,
    flops,
    in_terms_of,
    memory,
    plain,
    print_value,
    span,
    value_in,
)
from service.pages.plots import DASHES, PALETTE, ROLES, Axis, Dot, Drawing, Ink, Line, Mark, Point, tick_in
from service.pages.wording import COLOURS, print_ours, span_of, word_of
from stages.results import Claim, ClaimRecord, ExperimentComparison, JudgedClaim, PairGain, Result, Word

MANY_EPOCHS, LONG_MEAN = 200, 15
"""Number of epochs beyond which lines are running means, and the length of these."""
Smooth = Annotated[Literal[1, 5, 15], BeforeValidator(int)]
"""Epochs of a running mean; 1 for none."""


def draw_overlay(
    points: Sequence[CurvePointOut],
    titles: Mapping[str, str],
    inks: Mapping[str, Ink],
    unit: str,
    *,
    title: str = "",
    smooth: int | None = None,
) -> Drawing | None:
    """Draw lines of means with bands from the lowest to the highest replicate; None without points.

    Over many epochs, lines are running means unless `smooth` says otherwise, because scatter would hide them.
    """
    by_arm: dict[str, list[CurvePointOut]] = {}
    for point in points:
        if math.isfinite(point.high - point.low):  # diverged runs have no position
            by_arm.setdefault(point.arm, []).append(point)
    if not by_arm:
        return None
    smooth = smooth or (LONG_MEAN if max(map(len, by_arm.values())) > MANY_EPOCHS else 1)
    write, best = value_in(unit), max if unit == "fraction" else min
    rows = []
    for arm, own in by_arm.items():
        means = [point.mean for point in own]
        numbers = (write(means[0]), write(best(means)), write(means[-1]), span(own[-1].low, own[-1].high, unit))
        rows.append((titles[arm], plain(own[-1].epoch), *numbers, plain(own[-1].replicates)))
    smoothed = {arm: _running_means(own, smooth) for arm, own in by_arm.items()}
    every = [point for own in smoothed.values() for point in own]
    ends = [end for point in every for end in (point.low, point.high)]
    lines = tuple(
        Line(
            name=titles[arm],
            ink=inks[titles[arm]],
            points=tuple(
                Point(
                    x=point.epoch,
                    y=point.mean,
                    low=point.low,
                    high=point.high,
                    text=f"epoch {point.epoch}: {write(point.mean)}"
                    + (f" ({span(point.low, point.high, unit)})" if point.replicates > 1 else ""),
                )
                for point in own
            ),
            has_band=any(point.replicates > 1 for point in own),
        )
        for arm, own in smoothed.items()
    )
    return Drawing(
        x=Axis([point.epoch for point in every], "{:g}".format, title="epoch", is_linear=True, is_whole=True),
        y=Axis(ends, tick_in(unit), title=title, is_linear=unit == "fraction", is_upright=True),
        lines=lines,
        smooth=smooth,
        head=("Model", "Epochs", "First", "Best", "Last", "Last, lowest to highest", "Replicates"),
        rows=tuple(rows),
    )


def draw_curve(
    points: Sequence[CurvePointOut],
    titles: Mapping[str, str],
    inks: Mapping[str, Ink],
    curve: Curve,
    kind: str,
    smooth: int | None = None,
) -> Drawing | None:
    """Draw one curve of a data set of this kind, with the curve's name on its axis."""
    unit = unit_of_curve(curve, kind)
    return draw_overlay(points, titles, inks, unit, title=_axis_title(name_curve(curve, kind), unit), smooth=smooth)


def _running_means(points: Sequence[CurvePointOut], epochs: int) -> list[CurvePointOut]:
    """Return running means; of 15 epochs at every third point only, because the line looks the same."""
    half, step, last = epochs // 2, max(epochs // 5, 1), len(points) - 1
    return [
        points[place].model_copy(
            update={name: fmean(getattr(near, name) for near in window) for name in ("mean", "low", "high")}
        )
        for place in [*range(0, last, step), last]
        if (window := points[max(0, place - half) : place + half + 1])
    ]


def draw_costs(
    comparison: ExperimentComparison, cost: Cost, inks: Mapping[str, Ink], *, printed: float | None = None
) -> Drawing | None:
    """Draw a point for each model: its cost on x, our result with its interval on y; None if no model has both.

    `printed`: a cost that the paper prints.
    """
    metric, unit = comparison.metric, comparison.metric.unit
    write, dots, rows = value_in(unit), [], []
    for arm in comparison.arms:
        spent, ours = getattr(arm.cost, cost), arm.ours
        if spent is None or ours is None:
            continue
        interval = span(ours.low, ours.high, unit) if ours.low is not None and ours.high is not None else ""
        rows.append((arm.title, as_cost(spent, cost), write(ours.value), interval))
        text = f"{arm.title}: {write(ours.value)}{f' ({interval})' if interval else ''}, {as_cost(spent, cost)}"
        low, high = (ours.low, ours.high) if interval else (None, None)
        ends = {"x": spent, "y": ours.value, "low": low, "high": high}
        dots.append(Dot(**ends, text=text, name=arm.title, ink=inks[arm.title], role=arm.role))
    writers = {"parameters": count, "flops_per_image": flops, "peak_memory_bytes": memory, "train_seconds": plain}
    title = COSTS[cost] + (" (seconds)" if cost == "train_seconds" else "")
    head = ("Model", title.capitalize(), metric.title, "95 % interval")
    return _scatter(
        dots, printed, (title, writers.get(cost, duration)), (_axis_title(metric.title, unit), unit), head, rows
    )


def draw_arms(record: ClaimRecord, titles: Mapping[str, str], inks: Mapping[str, Ink]) -> dict[str, Drawing]:
    """Draw DAC's Figures 5 and 6 by experiment: FLOP of a forward pass on x, error with its interval on y.

    An experiment with fewer than two such arms is left out.
    """
    found: dict[str, list[Dot]] = {}
    for arm in record.arms:
        if arm.flops:
            name = titles[arm.arm]
            interval = span(arm.low, arm.high, "fraction")
            text = f"{name}: {value_in('fraction')(arm.value)} ({interval}), {flops(arm.flops)}"
            ends = {"x": arm.flops, "y": arm.value, "low": arm.low, "high": arm.high}
            found.setdefault(arm.experiment, []).append(
                Dot(**ends, text=text, name=name, ink=inks[name], role=arm.role)
            )
    drawn = {
        name: _scatter(dots, None, ("FLOP per forward pass", flops), ("test error", "fraction"))
        for name, dots in found.items()
        if len(dots) > 1
    }
    return {name: drawing for name, drawing in drawn.items() if drawing}


def _scatter(
    dots: Sequence[Dot],
    printed: float | None,
    x: tuple[str, Callable[[float], str]],
    y: tuple[str, str],
    head: tuple[str, ...] = (),
    rows: Sequence[tuple[str, ...]] = (),
) -> Drawing | None:
    """Draw points on two axes; `x` is a title and a formatter, `y` a title and a unit."""
    dots = [dot for dot in dots if math.isfinite(dot.y)]
    if not dots:
        return None
    if len(dots) > len(PALETTE):  # too few colours, so they show roles
        dots = [replace(dot, ink=ROLES[dot.role]) for dot in dots]
    spent = [dot.x for dot in dots] + ([] if printed is None else [printed])
    ends = [end for dot in dots for end in (dot.y, dot.low, dot.high) if end is not None]
    return Drawing(
        x=Axis(spent, x[1], title=x[0]),
        y=Axis(ends, tick_in(y[1]), title=y[0], is_linear=y[1] == "fraction", is_upright=True),
        dots=tuple(dots),
        printed=printed,
        head=head,
        rows=tuple(rows),
    )


def _axis_title(title: str, unit: str) -> str:
    return title + (f" ({unit})" if unit not in ("", "fraction", "seconds", "bytes", "count", "flop") else "")


def draw_blocks(points: Sequence[ObservedPointOut], arms: Mapping[str, str], inks: Mapping[str, Ink]) -> Drawing | None:
    """Draw a line per arm and quantity over the blocks, dashed for initial weights; `arms` are titles.

    A line has its model's colour unless lines also differ in something else.  None without points.
    """
    if not points:
        return None
    several = {name: len({getattr(point, name) for point in points}) > 1 for name in ("experiment", "arm", "quantity")}
    series: dict[tuple[str, str, str], list[ObservedPointOut]] = {}
    for point in points:
        parts = {"experiment": point.experiment, "arm": arms[point.arm], "quantity": name_quantity(point.quantity)}
        name = ", ".join(text for part, text in parts.items() if several[part]) or parts["arm"]
        series.setdefault((name, point.arm, point.moment), []).append(point)
    colours = dict(zip(dict.fromkeys(name for name, _, _ in series), itertools.cycle(PALETTE)))
    if not (several["experiment"] or several["quantity"]):
        colours = {name: inks[arms[arm]].colour for name, arm, _ in series}
    trained = {name for name, _, moment in series if moment == "trained"}
    lines = tuple(
        Line(
            name=name,
            ink=Ink(colours[name], "" if moment == "trained" else DASHES[1]),
            points=tuple(
                Point(
                    x=point.block,
                    y=point.mean,
                    text=f"{moment}, block {point.block}: {plain(point.mean)}"
                    + (f" ({plain(point.low)} to {plain(point.high)})" if point.low < point.high else ""),
                )
                for point in own
            ),
            is_named=moment == "trained" or name not in trained,
        )
        for (name, _, moment), own in series.items()
    )
    quantities = dict.fromkeys(name_quantity(point.quantity) for point in points)
    title = next(iter(quantities)) if len(quantities) == 1 else "mean over heads and replicates"
    return Drawing(
        x=Axis([point.block for point in points], "{:g}".format, title="block", is_linear=True, is_whole=True),
        y=Axis([point.mean for point in points], tick_in(""), title=title, is_upright=True),
        lines=lines,
        head=("Model", "Quantity", "When", "Block", "Mean", "Lowest to highest", "Replicates"),
        rows=tuple(
            (
                *(arms[point.arm], name_quantity(point.quantity), point.moment, str(point.block), plain(point.mean)),
                *(f"{plain(point.low)} to {plain(point.high)}", str(point.replicates)),
            )
            for point in points
        ),
    )


def draw_inside(result: Result, titles: Mapping[str, str], inks: Mapping[str, Ink]) -> dict[str, Drawing]:
    """Draw each quantity of one result."""
    drawn = {
        quantity: draw_blocks(points_of(result, quantity), titles, inks)
        for quantity in dict.fromkeys(row.quantity for row in result.observations)
    }
    return {quantity: drawing for quantity, drawing in drawn.items() if drawing}


def draw_trend(trend: Trend, titles: Mapping[str, str], claim: Claim) -> Drawing:
    """Draw each pair's gain and interval by the level of the factor, and the mean at each level."""
    dots = [
        Dot(
            x=level,
            y=pair.value,
            low=pair.low,
            high=pair.high,
            text=f"{titles[pair.arm]}: {_tell_gain(pair, claim)}",
            name=titles[pair.arm],
            ink=Ink("currentcolor", ""),
            role="baseline",
        )
        for level, pair in trend.pairs
    ]
    means = tuple(
        Point(x=level, y=gain, text=f"{trend.factor} {level:g}: {in_terms_of(gain, claim)}")
        for level, gain in trend.gains.items()
    )
    ends = [end for dot in dots for end in (dot.low, dot.high) if end is not None]
    return Drawing(
        x=Axis(trend.gains, "{:g}".format, title=trend.factor, marked=list(trend.gains)),
        y=Axis([0.0, *ends], lambda gain: in_terms_of(gain, claim), title="Gain", is_linear=True, is_upright=True),
        lines=(Line(name="mean", ink=Ink(PALETTE[3], ""), points=means),),
        dots=tuple(dots),
    )


def mark_pairs(
    pairs: Iterable[PairGain], titles: Mapping[str, str], claim: Claim
) -> tuple[Axis, list[tuple[PairGain, Mark]]] | None:
    """Mark each pair's gain and interval, and the paper's overall gain, on one axis; None without pairs."""
    pairs = list(pairs)
    if not pairs:
        return None
    shown = [0.0, *(end for pair in pairs for end in (pair.low, pair.high))]
    shown += [] if claim.value is None else [claim.value]
    axis = Axis(shown, lambda gain: in_terms_of(gain, claim), is_linear=True, most=5)
    return axis, [
        (
            pair,
            axis.mark(
                *(pair.value, pair.low, pair.high),
                paper=claim.value,
                text=f"{titles[pair.arm]} against {titles[pair.against]}: {_tell_gain(pair, claim)}",
            ),
        )
        for pair in pairs
    ]


def mark_labs(record: JudgedClaim) -> tuple[Axis, list[tuple[Mapping[str, Any], Mark]]] | None:
    """Each lab's number with its interval, then the pooled one, next to the printed number; None without other labs."""
    claim, facts, pooled = record.claim, record.claim.facts, record.verdict.pooled
    rows = [row | {"lab": row["lab"] or "this project"} for row in record.verdict.labs]
    if pooled and pooled["low"] is not None:
        rows.append(pooled | {"lab": f"{pooled['n']} labs together"})
    start = (claim.value or 0.0) if facts.number in ("model", "ours") else 0.0
    printed = None if facts.is_alike or claim.factor or facts.at_size else claim.value
    places = [[None if row[end] is None else start + row[end] for end in ("estimate", "low", "high")] for row in rows]
    shown = [place for row in places for place in (*row, printed) if place is not None]
    if not shown:
        return None
    axis = Axis(
        [*shown, *([0.0] if facts.is_gain else [])], lambda end: in_terms_of(end, claim), is_linear=True, most=3
    )
    return axis, [
        (row, axis.mark(*numbers, paper=printed, text=f"{row['lab']}: {in_terms_of(row['ours'], claim)}"))
        for row, numbers in zip(rows, places, strict=True)
    ]


def _tell_gain(pair: PairGain, claim: Claim) -> str:
    return (
        f"{in_terms_of(pair.value, claim, as_precise_as(pair.low, pair.high))} ({span_of(pair.low, pair.high, claim)})"
    )


MOST_CELLS = 12  # classes; a larger matrix is shown as a picture
TEAL = (38, 140, 143)  # legible on light and dark pages
INKS = {"test": Ink("#268c8f", ""), "validation": Ink("#8a62c4", "6 4"), "training": Ink("#7d8380", "2 3")}
"""Inks of the parts of the data; dashes tell them apart without colours."""


def draw_curves(curves: Mapping[Curve, Sequence[CurvePointOut]], kind: str) -> list[tuple[str, Drawing]]:
    """Draw accuracy and loss if they were measured, each with its title."""
    found = []
    for what in ("accuracy", "loss"):
        names = [name for name, points in curves.items() if name.endswith(what) and points]
        sides = {name: SIDES[name.partition("_")[0]] for name in names}
        points = [point.model_copy(update={"arm": sides[name]}) for name in names for point in curves[name]]
        unit = unit_of_curve(names[0], kind) if names else ""
        if drawn := draw_overlay(points, {side: side for side in sides.values()}, INKS, unit):
            title = name_curve(names[0], kind).partition(" ")[2]
            found.append((title + (f" ({unit})" if unit not in ("", "fraction") else ""), drawn))
    return found


def shade(confusion: np.ndarray) -> list[list[int]]:
    """Grade the shade of each cell of a small matrix from 0 to 5, by its share of the true class."""
    return [[math.ceil(5 * math.sqrt(share)) for share in row] for row in _shares(confusion)]


def picture_of(confusion: np.ndarray) -> str:
    """Return a large matrix as a data URL: one pixel per cell, true classes down, answers across."""
    pixels = np.empty((*confusion.shape, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = TEAL, np.round(255 * np.sqrt(_shares(confusion)))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _shares(confusion: np.ndarray) -> np.ndarray:
    """Return each cell as a share of its true class, [K, K]; 0 for a class without images."""
    return confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)


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
