"""Charts of claims: the pairs behind a gain, a trend over a factor, models at the epoch that their folds choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.pages import charts
from service.pages.concluding import Trend
from service.pages.formats import unit_of
from stages.results import Claim, ClaimRecord, PairGain

IN_FAVOUR = "to the right in favour of the proposed model"
"""A line of its own: one with the unit before it is wider than a telephone."""

LONGEST_NAME = 180  # pixels: "DAC, 5 layers of 100 units" fits, as numbers at its end tell the arms of a grid apart


def pairs_chart(
    title: str, pairs: Sequence[PairGain], titles: Mapping[str, str], claim: Claim
) -> dict[str, Any] | None:
    """One row per pair of a grid: its gain with its own 95 % interval, beside the gain that the paper gives for all.

    `titles` are those of the arms.  None if there are no pairs.
    """
    if not pairs:
        return None
    unit, scale = _gain_unit(claim)
    rows = [
        {
            "pair": titles[pair.arm],
            "side": "ours",
            "value": scale * pair.gain,
            "low": scale * pair.low,
            "high": scale * pair.high,
        }
        for pair in pairs
    ]
    x = {"type": "quantitative", "title": [f"gain ({unit})", IN_FAVOUR]}
    y = {"field": "pair", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": LONGEST_NAME}}
    printed = [] if claim.value is None else [_line(scale * claim.value, x, "paper")]
    return {
        **charts.frame(f"{title}: the gain of each pair with its 95 % interval", height=26 * len(rows)),
        "data": {"values": rows},
        "layer": [
            _line(0, x, None),
            *printed,
            {
                "encoding": {"y": y},
                "layer": [
                    charts.interval_layer(x),
                    charts.point_layers(x, ["ours", "paper"][: 1 + len(printed)], about=[{"field": "pair"}]),
                ],
            },
        ],
    }


def trend_chart(title: str, trend: Trend, titles: Mapping[str, str], claim: Claim) -> dict[str, Any]:
    """The gain of each pair by the level of the factor, with its 95 % interval, and the mean at each level."""
    unit, scale = _gain_unit(claim)
    rows = [
        {
            "pair": titles[pair.arm],
            "level": level,
            **{name: scale * getattr(pair, name) for name in ("gain", "low", "high")},
        }
        for level, pair in trend.pairs
    ]
    means = [{"level": level, "gain": scale * gain} for level, gain in trend.gains.items()]
    axis = {"values": list(trend.gains), "format": "d"}
    x_scale = charts.scale_of(trend.gains, wide=4.0)
    x = {"field": "level", "type": "quantitative", "title": trend.factor, "scale": x_scale, "axis": axis}
    y = {"type": "quantitative", "title": f"gain ({unit})"}
    return {
        **charts.frame(f"{title}: the gain of each pair by {trend.factor} with the mean", height=260),
        "data": {"values": rows},
        "layer": [
            {
                "data": {"values": [{"gain": 0}]},
                "mark": {"type": "rule", "strokeDash": [4, 4]},
                "encoding": {"y": {"field": "gain", **y}},
            },
            {
                "data": {"values": means},
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": {"field": "gain", **y}},
            },
            {
                "mark": {"type": "rule", "opacity": 0.5},
                "encoding": {"x": x, "y": {"field": "low", **y}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": {"field": "gain", **y},
                    "tooltip": [{"field": "pair"}, {"field": "gain", "format": ".3~g"}],
                },
            },
        ],
    }


def arms_charts(record: ClaimRecord, titles: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """`{experiment: chart}`, as DAC's Figures 5 and 6: cost of a forward pass on x, error with its interval on y.

    `titles` are those of the arms.  An experiment with fewer than two arms that have both has none.
    """
    charts = {}
    for name in dict.fromkeys(arm.experiment for arm in record.arms):
        rows = [
            {
                "arm": titles[arm.arm],
                "role": arm.role,
                "flops": arm.flops / 1e9,
                **{end: 100 * getattr(arm, end) for end in ("value", "low", "high")},
            }
            for arm in record.arms
            if arm.experiment == name and arm.flops
        ]
        if len(rows) > 1:
            charts[name] = _arms_chart(name, rows)
    return charts


def _arms_chart(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    x = {"field": "flops", "type": "quantitative", "title": "GFLOP per forward pass", "scale": {"zero": False}}
    y = {"type": "quantitative", "title": "test error (%)", "scale": {"zero": False}}
    roles = [role for role in ("baseline", "proposed", "ablation") if any(row["role"] == role for row in rows)]
    role = {**charts.side_colors(roles, roles), "field": "role"}
    tooltip = [{"field": "arm", "title": "model"}, {"field": "value", "format": ".4~g"}]
    return {
        **charts.frame(f"{name}: test error of each model with its 95 % interval against its cost", height=260),
        "data": {"values": list(rows)},
        "encoding": {"x": x, "color": role},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {"y": {"field": "value", **y}, "shape": role, "tooltip": tooltip},
            },
        ],
    }


def _gain_unit(claim: Claim) -> tuple[str, int]:
    """The unit that a gain is drawn in, and the factor for its number."""
    return ("percentage points", 100) if unit_of(claim) == "fraction" else (unit_of(claim), 1)


def _line(value: float, x: dict[str, Any], side: str | None) -> dict[str, Any]:
    """A vertical line: dashed where there is no gain, else in the colour of a side."""
    mark = {"type": "rule", "strokeDash": [4, 4]} if side is None else {"type": "rule", "strokeWidth": 2}
    color = {} if side is None else {"color": charts.side_colors(["ours", "paper"], ["ours", "paper"])}
    return {
        "data": {"values": [{"value": value, "side": side}]},
        "mark": mark,
        "encoding": {"x": {"field": "value", **x}, **color},
    }
