"""Vega-Lite specs as plain data.  Colours come from the page's style sheet, so that dark mode changes them too."""

from __future__ import annotations

from typing import Any

from service.database.leaderboard import COSTS, UNITS, Cost
from service.pages import vega
from stages.results import ExperimentComparison


def comparison_chart(comparison: ExperimentComparison) -> dict[str, Any] | None:
    """One row per arm: the paper's value as a diamond, ours as a dot with its 95 % interval.

    A stand-in's number is not drawn: a mark in a chart always means something.  None if there is nothing to draw.
    """
    is_fraction = comparison.metric.unit == "fraction"
    scale = 100 if is_fraction else 1
    rows = []
    for arm in comparison.arms:
        if arm.printed is not None and arm.printed.unit == comparison.metric.unit:
            rows.append({"arm": arm.title, "side": "paper", "value": scale * arm.printed.value})
        if arm.ours is not None:
            row = {"arm": arm.title, "side": "ours", "value": scale * arm.ours.value}
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


MOST_NAMED = 8  # points that have room for their names beside them
LINE = {"type": "rule", "strokeDash": [4, 4], "strokeWidth": 2}


def cost_chart(comparison: ExperimentComparison, cost: Cost, *, bound: float | None = None) -> dict[str, Any] | None:
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
    scale_of_x = vega.scale(costs)
    axis = {"format": "~s" if len(set(costs)) > 1 else ".3~s", "tickCount": 6}
    if scale_of_x.get("type") == "log":
        axis |= vega.ticks(costs)
    x = {"field": "cost", "type": "quantitative", "title": title, "axis": axis}
    better = f"{comparison.metric.better} is better"
    y = {
        "type": "quantitative",
        "title": [f"{comparison.metric.title}{unit}", better],
        "scale": {"zero": False, "padding": 16},
    }
    roles = list(dict.fromkeys(str(row["role"]) for row in rows))
    color = {**vega.sides(roles, roles), "field": "role"}
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
        **vega.frame(f"{comparison.title}: {comparison.metric.title} over {title}", height=320),
        "data": {"values": rows},
        "encoding": {"x": {**x, "scale": {"nice": True, **scale_of_x, "padding": 60}}},
        "layer": [
            *([] if bound is None else [{"data": {"values": [{"cost": bound}]}, "mark": LINE}]),
            *([intervals] if any("low" in row for row in rows) else []),
            *([named] if len(rows) <= MOST_NAMED else []),
            {
                "params": [vega.ZOOM],
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "y": {"field": "value", **y},
                    "color": color,
                    "shape": color,
                    "tooltip": [
                        {"field": "model"},
                        {"field": "cost", "format": ".4~s", "title": title},
                        {"field": "value", "format": ".4~g", "title": comparison.metric.title},
                    ],
                },
            },
        ],
    }
