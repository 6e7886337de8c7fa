"""Vega-Lite specs as plain data.  Colours come from the page's style sheet, so that dark mode changes them too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from service import vega
from service.curves import CurvePoint
from stages.results import ExperimentComparison, Result


def comparison_chart(comparison: ExperimentComparison) -> dict[str, Any] | None:
    """One row per arm: the paper's value as a diamond, ours as a dot with its 95 % interval.

    A stand-in's number is not drawn: a mark in a chart always means something.  None if there is nothing to draw.
    """
    is_fraction = comparison.metric.unit == "fraction"
    scale = 100 if is_fraction else 1
    rows = []
    for arm in comparison.arms:
        if arm.paper is not None and arm.paper.unit == comparison.metric.unit:
            rows.append({"arm": arm.title, "side": "paper", "value": scale * arm.paper.value})
        if arm.ours is not None:
            row = {"arm": arm.title, "side": "ours", "value": scale * arm.ours.mean}
            if arm.ours.low is not None and arm.ours.high is not None:
                row |= {"low": scale * arm.ours.low, "high": scale * arm.ours.high}
            rows.append(row)
    if not rows:
        return None
    shown_unit = {"fraction": " (%)", "seconds": " (s)", "bytes": " (B)"}.get(comparison.metric.unit, "")
    axis = {} if is_fraction else {"axis": {"format": "~s"}}
    x = {"type": "quantitative", "title": f"{comparison.metric.title}{shown_unit}", **axis}
    shown = [side for side in ("ours", "paper") if any(row["side"] == side for row in rows)]
    layers = [vega.points(x, shown, about=[{"field": "arm", "title": "model"}])]
    if any("low" in row for row in rows):
        layers.insert(0, vega.intervals(x))
    return {
        **vega.frame(
            f"{comparison.title}: {comparison.metric.title}, ours beside the paper's",
            height=44 * len({row["arm"] for row in rows}),
        ),
        "data": {"values": rows},
        "encoding": {"y": {"field": "arm", "type": "nominal", "sort": None, "title": None}},
        "layer": layers,
    }


COSTS = {
    "parameters": "parameters",
    "flops_per_image": "FLOP per image",
    "train_seconds": "training time (s)",
    "peak_memory_bytes": "peak memory (B)",
    "latency_seconds_per_sample": "inference time per sample (s)",
}
"""What a result can be held against: fields of `CostSummary` in words."""

MOST_NAMED = 8  # points that have room for their names beside them
MOST_TICKS = 12
_LETTER, _SYMBOL = 7, 30  # pixels per letter in a legend, and of what precedes a name

ZOOM = {"name": "zoom", "select": {"type": "interval", "zoom": "wheel![event.shiftKey]"}, "bind": "scales"}


def _scale(values: Iterable[float]) -> dict[str, Any]:
    """Logarithmic where positive values span more than a decade, else linear without zero."""
    numbers = list(values)
    is_wide = min(numbers) > 0 and max(numbers) > 10 * min(numbers)
    return {"type": "log", "nice": False} if is_wide else {"zero": False}


def cost_chart(comparison: ExperimentComparison, cost: str) -> dict[str, Any] | None:
    """One point per model: its cost on the x axis, our result on the y axis, with the 95 % interval if there is one.

    None if no model has both.
    """
    scale = 100 if comparison.metric.unit == "fraction" else 1
    rows = []
    for arm in comparison.arms:
        spent = getattr(arm.cost, cost)
        if spent is None or arm.ours is None:
            continue
        row = {"model": arm.title, "role": arm.role, "cost": spent, "value": scale * arm.ours.mean}
        if arm.ours.low is not None and arm.ours.high is not None:
            row |= {"low": scale * arm.ours.low, "high": scale * arm.ours.high}
        rows.append(row)
    if not rows:
        return None
    unit = " (%)" if comparison.metric.unit == "fraction" else ""
    # A single value gets a single tick, with all its digits unless it is told how many.
    axis = {"format": "~s" if len({row["cost"] for row in rows}) > 1 else ".3~s", "tickCount": 6}
    x = {"field": "cost", "type": "quantitative", "title": COSTS[cost], "axis": axis}
    y = {"type": "quantitative", "title": f"{comparison.metric.title}{unit}", "scale": {"zero": False, "padding": 16}}
    roles = list(dict.fromkeys(str(row["role"]) for row in rows))
    color = {**vega.sides(roles, roles), "field": "role"}
    intervals = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}, "color": color},
    }
    place = "scale('x', datum.cost)"
    is_left = f"{place} < width / 2"
    named = {
        "mark": {
            "type": "text",
            "align": {"expr": f"{is_left} ? 'left' : 'right'"},
            "dx": {"expr": f"{is_left} ? 10 : -10"},
            "limit": {"expr": f"({is_left} ? width - {place} : {place}) - 10"},
            "fontSize": 13,
        },
        "encoding": {"y": {"field": "value", **y}, "text": {"field": "model"}},
    }
    return {
        **vega.frame(f"{comparison.title}: {comparison.metric.title} over {COSTS[cost]}", height=320),
        "data": {"values": rows},
        "encoding": {"x": {**x, "scale": {"nice": True, **_scale(row["cost"] for row in rows), "padding": 60}}},
        "layer": [
            *([intervals] if any("low" in row for row in rows) else []),
            *([named] if len(rows) <= MOST_NAMED else []),
            {
                "params": [ZOOM],
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "y": {"field": "value", **y},
                    "color": color,
                    "shape": color,
                    "tooltip": [
                        {"field": "model"},
                        {"field": "cost", "format": ".4~s", "title": COSTS[cost]},
                        {"field": "value", "format": ".4~g", "title": comparison.metric.title},
                    ],
                },
            },
        ],
    }


def band_chart(comparison: ExperimentComparison, points: Sequence[CurvePoint], curve: str) -> dict[str, Any]:
    """One line per arm, the mean over its replicates; a band from the lowest to the highest of them."""
    is_fraction = curve.endswith("accuracy")
    scale = 100 if is_fraction else 1
    titles = {arm.arm: arm.title for arm in comparison.arms}
    rows: list[dict[str, Any]] = [
        {"model": titles[point.arm], "epoch": point.epoch, "replicates": point.replicates}
        | {name: scale * getattr(point, name) for name in ("mean", "low", "high")}
        for point in points
    ]
    models = list(dict.fromkeys(row["model"] for row in rows))
    title = curve.replace("_", " ") + (" (%)" if is_fraction else "")
    ends = [row[name] for row in rows for name in ("low", "high")]
    y = {"type": "quantitative", "title": title, "scale": {"zero": False} if is_fraction else _scale(ends)}
    color = {
        "field": "model",
        "type": "nominal",
        "sort": models,
        "scale": {"domain": models, "scheme": "tableau10"} if len(models) > 3 else {"domain": models},
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
    tooltip = [{"field": "model"}, {"field": "epoch"}, {"field": "replicates"}]
    tooltip += [{"field": name, "format": ".4~g"} for name in ("mean", "low", "high")]
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": {"field": "mean", **y}}, "params": [ZOOM]},
        {
            "params": [{"name": "hover", "select": nearest}],
            "mark": {"type": "point", "filled": True, "size": 70},
            "encoding": {
                "y": {"field": "mean", **y},
                "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
                "tooltip": tooltip,
            },
        },
    ]
    if any(point.replicates > 1 for point in points):
        band = {
            "mark": {"type": "area", "opacity": 0.2},
            "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}},
        }
        layers.insert(0, band)
    return {
        **vega.frame(f"{comparison.title}: {title} over epochs, mean and span over replicates", height=340),
        "data": {"values": rows},
        "encoding": {"x": _epochs(rows), "color": color},
        "layer": layers,
    }


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


def curves_chart(result: Result) -> dict[str, Any]:
    """Loss and accuracy over epochs, training and test; test values come from the observer."""
    accuracy = {"train": "train_accuracy", "val": "val_accuracy", "test": "test_accuracy"}
    loss = {"train": "train_loss", "val": "val_loss", "test": "test_loss"}
    return {
        "$schema": vega.SCHEMA,
        "description": "Learning curves: accuracy and loss over epochs",
        "vconcat": [
            _curves(result, accuracy, "accuracy (%)", 100.0),
            _curves(result, loss, "loss (nats)", 1.0),
        ],
    }


def _curves(result: Result, columns: dict[str, str], title: str, scale: float) -> dict[str, Any]:
    rows = [
        {"epoch": epoch.epoch, "side": side, "value": scale * value}
        for epoch in result.epochs
        for side, column in columns.items()
        if (value := getattr(epoch, column)) is not None
    ]
    sides = [side for side in columns if any(row["side"] == side for row in rows)]
    return {
        "width": "container",
        "height": 190,
        "data": {"values": rows},
        "params": [{**ZOOM, "name": f"zoom_{title[0]}"}],
        "mark": {"type": "line", "point": {"size": 36}, "strokeWidth": 2},
        "encoding": {
            "x": _epochs(rows),
            "y": {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": False}},
            "color": vega.sides(sides, sides),
            "tooltip": [{"field": "epoch"}, {"field": "side"}, {"field": "value", "format": ".4~g"}],
        },
    }
