"""Charts of the pages: learning curves, costs, numbers inside networks, pairs behind a claim, confusion matrices."""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image
from pydantic import BeforeValidator

from service.database.comparing import COSTS, Cost
from service.database.curves import SIDES, Curve, ObservedPointOut, name_curve, name_quantity, points_of, unit_of_curve
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
    span,
    value_in,
)
from service.pages.plots import DASHES, PALETTE, ROLES, Axis, Dot, Drawing, Ink, Line, Mark, Point, tick_in
from service.pages.wording import span_of
from stages.results import Claim, ClaimRecord, ExperimentComparison, JudgedClaim, PairGain, Result

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
            points=tuple(_on_curve(point, write, unit) for point in own),
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


def _on_curve(point: CurvePointOut, write: Callable[[float | None], str], unit: str) -> Point:
    text = f"epoch {point.epoch}: {write(point.mean)}"
    text += f" ({span(point.low, point.high, unit)})" if point.replicates > 1 else ""
    return Point(x=point.epoch, y=point.mean, low=point.low, high=point.high, text=text)


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
        dots.append(
            Dot(
                x=spent,
                y=ours.value,
                low=ours.low if interval else None,
                high=ours.high if interval else None,
                text=text,
                name=arm.title,
                ink=inks[arm.title],
                role=arm.role,
            )
        )
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
            Mark(
                ours=axis.at(pair.value),
                low=axis.at(pair.low),
                high=axis.at(pair.high),
                is_thin=False,
                paper=None if claim.value is None else axis.at(claim.value),
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
    found = []
    for row, numbers in zip(rows, places, strict=True):
        ours, low, high, paper = (None if number is None else axis.at(number) for number in (*numbers, printed))
        text = f"{row['lab']}: {in_terms_of(row['ours'], claim)}"
        found.append((row, Mark(ours=ours, low=low, high=high, is_thin=False, paper=paper, text=text)))
    return axis, found


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
