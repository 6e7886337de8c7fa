"""Charts of quantities inside trained networks, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.database.observed import ObservedPoint, name_quantity, points_of
from service.pages import vega
from stages.results import Result

MOMENTS = ["trained", "start"]


def blocks_chart(title: str, points: Sequence[ObservedPoint], arms: Mapping[str, str]) -> dict[str, Any] | None:
    """One line per arm and quantity over the blocks, dashed for initial weights; `arms` are the titles of arms.

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
    y_title = name_quantity(quantities[0]) if len(quantities) == 1 else "mean over heads and replicates"
    y_scale = {**vega.scale((point.mean for point in points), wide=5), "padding": 12}
    y = {"field": "mean", "type": "quantitative", "title": y_title, "scale": y_scale}
    tooltip: list[dict[str, str]] = [{"field": part} for part in ("series", "moment", "block", "replicates")]
    tooltip += [{"field": part, "format": ".4~g"} for part in ("mean", "low", "high")]
    return {
        **vega.frame(f"{title}: {', '.join(map(name_quantity, quantities))}, block by block", height=260),
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 60, "filled": True}},
        "encoding": {
            "x": {"field": "block", "type": "ordinal", "title": "block", "axis": {"labelAngle": 0}},
            "y": y,
            "color": {
                "field": "series",
                "type": "nominal",
                "sort": series,
                "scale": {"domain": series, **({"scheme": "tableau10"} if len(series) > 3 else {})},
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


def inside_charts(result: Result) -> dict[str, dict[str, Any]]:
    """One result's quantities, one chart each."""
    charts = {}
    for quantity in dict.fromkeys(row.quantity for row in result.observations):
        points = points_of(result, quantity)
        chart = blocks_chart(f"{result.arm} {result.replicate}", points, {result.arm: result.arm})
        if chart is not None:
            charts[quantity] = chart
    return charts
