"""Vega-Lite specs as plain data.  Colours come from the page's style sheet, so that dark mode changes them too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from service.database.comparing import COSTS, UNITS, Cost
from service.database.curves import (
    Curve,
    CurvePoint,
    ObservedPoint,
    name_curve,
    name_quantity,
    points_of,
    unit_of_curve,
)
from service.pages.plots import PALETTE, Ink
from stages.results import ExperimentComparison, Result

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
BETWEEN = {1.3: (1, 2, 5), 3.0: (1, 3)}
"""Ticks of each decade of a logarithmic axis that has no more decades than this."""
ZOOM = {"name": "zoom", "select": {"type": "interval", "zoom": "wheel![event.shiftKey]"}, "bind": "scales"}


def scale_of(values: Iterable[float], *, wide: float = 10.0) -> dict[str, Any]:
    """Logarithmic where the largest of positive values is more than `wide` times the smallest, else linear without
    zero.
    """
    numbers = list(values)
    is_wide = min(numbers) > 0 and max(numbers) > wide * min(numbers)
    return {"type": "log", "nice": False} if is_wide else {"zero": False}


def ticks_of(values: Iterable[float]) -> dict[str, Any]:
    """The ticks of a logarithmic axis over `values`: each power of ten in them, and few or no numbers between.

    Vega's own choice leaves out some powers of ten and keeps others.  No choice of ours where fewer than two ticks
    would be left.
    """
    numbers = list(values)
    low, high = math.log10(min(numbers)), math.log10(max(numbers))
    factors = next((factors for decades, factors in BETWEEN.items() if high - low <= decades), (1,))
    found = [float(f"{factor}e{power}") for power in range(math.floor(low), math.floor(high) + 1) for factor in factors]
    kept = [tick for tick in found if min(numbers) <= tick <= max(numbers)]
    return {"values": kept, "labelOverlap": False} if len(kept) > 1 else {}


def tooltip_of_nearest(fields: Mapping[str, str], number_format: Mapping[str, str]) -> dict[str, Any]:
    """The tooltip of a mark with a `nearest` selection: `fields` by title; those in `number_format` are numbers.

    Such a mark is covered by cells whose datum holds the row; Vega-Lite's own tooltip looks for text and for numbers
    without a format in the cell itself, where they are undefined.
    """
    row = "(datum.datum || datum)"
    told = {
        title: f"format({row}['{name}'], '{number_format[name]}')" if name in number_format else f"{row}['{name}']"
        for title, name in fields.items()
    }
    return {"value": {"expr": "{" + ", ".join(f"'{title}': {value}" for title, value in told.items()) + "}"}}


def frame(description: str, *, height: int) -> dict[str, Any]:
    """The beginning of every chart: as wide as its place."""
    return {
        "$schema": SCHEMA,
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }


def interval_layer(x: dict[str, Any]) -> dict[str, Any]:
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
    }


def point_layers(x: dict[str, Any], shown: Sequence[str], about: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    side = side_colors(["ours", "paper"], shown)
    return {
        "mark": {"type": "point", "filled": True, "size": 130, "opacity": 1},
        "encoding": {
            "x": {"field": "value", "scale": {"zero": False, "padding": 24, "nice": True}, **x},
            "color": side,
            "shape": side,
            "tooltip": [*about, {"field": "side"}, {"field": "value", "format": ".4~g"}],
        },
    }


def side_colors(domain: Sequence[str], shown: Sequence[str]) -> dict[str, Any]:
    """The scale of the sides: each keeps its colour and shape even if another side is missing.

    Colours of ours and of the paper are those of no other side.
    """
    is_of_ours = list(domain) == ["ours", "paper"]
    return {
        "field": "side",
        "type": "nominal",
        "sort": list(domain),
        "scale": {"domain": list(domain)} | ({} if is_of_ours else {"range": PALETTE[: len(domain)]}),
        "legend": {"title": None, "orient": "top", "values": list(shown)},
    }


MOST_NAMED = 8  # points that have room for their names beside them
LINE = {"type": "rule", "strokeDash": [4, 4], "strokeWidth": 2}


def cost_chart(
    comparison: ExperimentComparison, cost: Cost, inks: Mapping[str, Ink], *, bound: float | None = None
) -> dict[str, Any] | None:
    """One point per model: its cost on the x axis, our result on the y axis, with the 95 % interval if there is one.

    A dashed line stands at `bound`, a cost that a paper names.  None if no model has both.
    """
    scale = 100 if comparison.metric.unit == "fraction" else 1
    rows = []
    for arm in comparison.arms:
        spent = getattr(arm.cost, cost)
        if spent is None or arm.ours is None:
            continue
        row = {"model": arm.title, "role": arm.role, "cost": spent, "value": scale * arm.ours.value}
        if arm.ours.low is not None and arm.ours.high is not None:
            row |= {"low": scale * arm.ours.low, "high": scale * arm.ours.high}
        rows.append(row)
    if not rows:
        return None
    title = f"{COSTS[cost]} ({UNITS[cost]})" if cost in UNITS else COSTS[cost]
    unit = " (%)" if comparison.metric.unit == "fraction" else ""
    # A single value gets a single tick, with all its digits unless it is told how many.
    costs = [row["cost"] for row in rows]
    scale_of_x = scale_of(costs)
    axis = {"format": "~s" if len(set(costs)) > 1 else ".3~s", "tickCount": 6}
    if scale_of_x.get("type") == "log":
        axis |= ticks_of(costs)
    x = {"field": "cost", "type": "quantitative", "title": title, "axis": axis}
    better = f"{comparison.metric.better} is better"
    y = {
        "type": "quantitative",
        "title": [f"{comparison.metric.title}{unit}", better],
        "scale": {"zero": False, "padding": 16},
    }
    roles = list(dict.fromkeys(str(row["role"]) for row in rows))
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    colors = [inks[model].colour for model in models]
    color = {"field": "model", "type": "nominal", "scale": {"domain": models, "range": colors}, "legend": None}
    legend = {"title": None, "orient": "top"}
    shape = {"field": "role", "type": "nominal", "sort": roles, "scale": {"domain": roles}, "legend": legend}
    intervals = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}, "color": color},
    }
    x_pixels = "scale('x', datum.cost)"
    is_left = f"{x_pixels} < width / 2"
    named = {
        "mark": {
            "type": "text",
            "align": {"expr": f"{is_left} ? 'left' : 'right'"},
            "dx": {"expr": f"{is_left} ? 10 : -10"},
            "limit": {"expr": f"({is_left} ? width - {x_pixels} : {x_pixels}) - 10"},
            "fontSize": 13,
        },
        "encoding": {"y": {"field": "value", **y}, "text": {"field": "model"}},
    }
    return {
        **frame(f"{comparison.title}: {comparison.metric.title} over {title}", height=320),
        "data": {"values": rows},
        "encoding": {"x": {**x, "scale": {"nice": True, **scale_of_x, "padding": 60}}},
        "layer": [
            *([] if bound is None else [{"data": {"values": [{"cost": bound}]}, "mark": LINE}]),
            *([intervals] if any("low" in row for row in rows) else []),
            *([named] if len(rows) <= MOST_NAMED else []),
            {
                "params": [ZOOM],
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "y": {"field": "value", **y},
                    "color": color,
                    "shape": shape,
                    "tooltip": [
                        {"field": "model"},
                        {"field": "cost", "format": ".4~s", "title": title},
                        {"field": "value", "format": ".4~g", "title": comparison.metric.title},
                    ],
                },
            },
        ],
    }


MOMENTS = ["trained", "start"]


def blocks_chart(
    title: str, points: Sequence[ObservedPoint], arms: Mapping[str, str], inks: Mapping[str, Ink]
) -> dict[str, Any] | None:
    """One line per arm and quantity over the blocks, dashed for initial weights; `arms` are the titles of arms.

    A line has its model's colour unless lines differ in something else, too.

    Widths of kernels span decades and are drawn on a logarithmic axis.  None if there are no points.
    """
    if not points:
        return None
    quantities = list(dict.fromkeys(point.quantity for point in points))
    several = {name: len({getattr(point, name) for point in points}) > 1 for name in ("experiment", "arm", "quantity")}

    def name(point: ObservedPoint) -> str:
        parts = {"experiment": point.experiment, "arm": arms[point.arm], "quantity": name_quantity(point.quantity)}
        told = [text for part, text in parts.items() if several[part]]
        return ", ".join(told) or parts["arm"]

    rows = [
        {"series": name(point), "moment": point.moment, "replicates": point.replicates, "block": point.block}
        | {part: getattr(point, part) for part in ("mean", "low", "high")}
        for point in points
    ]
    series = list(dict.fromkeys(str(row["series"]) for row in rows))
    colors = dict(zip(series, itertools.cycle(PALETTE)))
    if not (several["experiment"] or several["quantity"]):
        colors = {name(point): inks[arms[point.arm]].colour for point in points}
    y_title = name_quantity(quantities[0]) if len(quantities) == 1 else "mean over heads and replicates"
    y_scale = {**scale_of((point.mean for point in points), wide=5), "padding": 12}
    y = {"field": "mean", "type": "quantitative", "title": y_title, "scale": y_scale}
    tooltip: list[dict[str, str]] = [{"field": part} for part in ("series", "moment", "block", "replicates")]
    tooltip += [{"field": part, "format": ".4~g"} for part in ("mean", "low", "high")]
    return {
        **frame(f"{title}: {', '.join(map(name_quantity, quantities))}, block by block", height=260),
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 60, "filled": True}},
        "encoding": {
            "x": {"field": "block", "type": "ordinal", "title": "block", "axis": {"labelAngle": 0}},
            "y": y,
            "color": {
                "field": "series",
                "type": "nominal",
                "sort": series,
                "scale": {"domain": series, "range": list(colors.values())},
                "legend": {"title": None, "orient": "top", "columns": 2, "labelLimit": {"expr": "width / 2"}},
            },
            "strokeDash": {
                "field": "moment",
                "type": "nominal",
                "scale": {"domain": MOMENTS, "range": [[1, 0], [4, 4]]},
                "legend": None,  # the page explains the dashes
            },
            "tooltip": tooltip,
        },
    }


def inside_charts(result: Result, titles: Mapping[str, str], inks: Mapping[str, Ink]) -> dict[str, dict[str, Any]]:
    """One result's quantities, one chart each."""
    charts = {}
    for quantity in dict.fromkeys(row.quantity for row in result.observations):
        points = points_of(result, quantity)
        chart = blocks_chart(f"{titles[result.arm]} {result.replicate}", points, titles, inks)
        if chart is not None:
            charts[quantity] = chart
    return charts


Smooth = Annotated[Literal[1, 5, 15], BeforeValidator(int)]
"""The epochs of a running mean; 1 is none."""

MOST_TICKS = 12
_LETTER, _SYMBOL = 7, 30  # pixels per letter in a legend, and of what precedes a name


def band_chart(
    title: str,
    titles: Mapping[str, str],
    points: Sequence[CurvePoint],
    curve: Curve,
    kind: str,
    inks: Mapping[str, Ink],
    *,
    smooth: int = 1,
) -> dict[str, Any]:
    """One line per arm, the mean over its replicates; a band from the lowest to the highest of them.

    `titles` names the arms, `title` what they are of, and `inks` has a colour for each name.  Line and band are running
    means of `smooth` epochs, an odd number.
    """
    scale, axis = _axis(curve, kind)
    rows: list[dict[str, Any]] = [
        {"model": titles[point.arm], "epoch": point.epoch, "replicates": point.replicates}
        | {name: float(f"{scale * getattr(point, name):.7g}") for name in ("mean", "low", "high")}
        for point in points
    ]
    arms = list(dict.fromkeys(point.arm for point in points))
    models = [titles[arm] for arm in arms]
    ends = [row[name] for row in rows for name in ("low", "high")]
    y = {"type": "quantitative", "title": axis, "scale": {"zero": False} if scale > 1 else scale_of(ends)}
    color: dict[str, Any] = {
        "field": "model",
        "type": "nominal",
        "sort": models,
        "scale": {"domain": models, "range": [inks[model].colour for model in models]},
        "legend": {
            "title": None,
            "orient": "top",
            "columns": {"expr": f"max(1, floor(width / {_LETTER * max(map(len, models)) + _SYMBOL}))"},
            "labelLimit": {"expr": f"width - {_SYMBOL}"},
            "symbolType": "stroke",
            "symbolOpacity": 1,
        },
    }
    nearest = {"type": "point", "nearest": True, "on": "pointermove", "clear": "pointerout"}
    has_band = any(point.replicates > 1 for point in points)
    told = {"model": "model", "epoch": "epoch", axis: "mean"}
    told |= {"lowest": "low", "highest": "high", "replicates": "replicates"} if has_band else {}
    formats = dict.fromkeys(("mean", "low", "high"), ".4~g")
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {
                "y": {"field": "mean", **y},
                "strokeDash": {**dashes_of(models, inks), "legend": color["legend"]},
            },
            "params": [ZOOM],
        },
        {
            "params": [{"name": "hover", "select": nearest}],
            "mark": {"type": "point", "filled": True, "size": 70},
            "encoding": {
                "y": {"field": "mean", **y},
                "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
                "tooltip": tooltip_of_nearest(told, formats),
            },
        },
    ]
    if has_band:
        band = {
            "mark": {"type": "area", "opacity": 0.2},
            "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}},
        }
        layers.insert(0, band)
    return {
        **frame(f"{title}: {axis} over epochs, mean and span over replicates", height=340),
        "data": {"values": rows},
        "transform": _running_mean(smooth),
        "encoding": {"x": _epochs(rows), "color": color},
        "layer": layers,
    }


def dashes_of(models: Sequence[str], inks: Mapping[str, Ink]) -> dict[str, Any]:
    """The scale of dashes that tell apart models of one colour."""
    ranges = [[int(part) for part in (inks[model].dash or "1 0").split()] for model in models]
    scale = {"domain": list(models), "range": ranges}
    return {"field": "model", "type": "nominal", "sort": list(models), "scale": scale}


def _running_mean(epochs: int) -> list[dict[str, Any]]:
    if epochs == 1:
        return []
    half = epochs // 2
    means = [{"op": "mean", "field": name, "as": name} for name in ("mean", "low", "high")]
    return [{"window": means, "frame": [-half, half], "groupby": ["model"], "sort": [{"field": "epoch"}]}]


def _epochs(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The axis of epochs; only whole ones if they are few."""
    epochs = sorted({row["epoch"] for row in rows})
    return {
        "field": "epoch",
        "type": "quantitative",
        "title": "epoch",
        "axis": {"format": "d", **({"values": epochs} if len(epochs) <= MOST_TICKS else {"tickMinStep": 1})},
        "scale": {"zero": False, "nice": False, "padding": 10},
    }


def _axis(curve: str, kind: str) -> tuple[int, str]:
    """The factor that a curve's numbers are drawn with, and its axis' title with the unit."""
    unit = unit_of_curve(curve, kind)
    shown = "%" if unit == "fraction" else unit
    return 100 if unit == "fraction" else 1, name_curve(curve, kind) + (f" ({shown})" if shown else "")
