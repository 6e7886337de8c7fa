"""Charts of learning curves: of an experiment's arms, and of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from service.database.curves import SIDES, Curve, CurvePoint, name_curve, unit_of_curve
from service.pages import vega
from stages.results import Result

Smooth = Annotated[Literal[1, 5, 15], BeforeValidator(int)]
"""The epochs of a running mean; 1 is none."""

MOST_TICKS = 12
MOST_LINES = 8  # that colours tell apart
MOST_POINTS = 60  # epochs that are drawn as points, too
PAIRED = (
    *(("#3f78b5", "#93b8dd"), ("#d1701f", "#f0b27a"), ("#3c8f4f", "#8fcb9b"), ("#b8403f", "#e79a98")),
    *(("#8059a8", "#bda3d6"), ("#8a6346", "#c5a58c"), ("#b5508f", "#e2a3cb"), ("#5f6b76", "#a9b3bd")),
)
"""A deep and a light shade of each colour; both are seen on the light page and on the dark one."""
SPENT = ("#8b8b8b", "#bdbdbd")
_LETTER, _SYMBOL = 7, 30  # pixels per letter in a legend, and of what precedes a name


def band_chart(
    title: str,
    titles: Mapping[str, str],
    points: Sequence[CurvePoint],
    curve: Curve,
    kind: str,
    *,
    pairs: Mapping[str, str] | None = None,
    smooth: int = 1,
) -> dict[str, Any]:
    """One line per arm, the mean over its replicates; a band from the lowest to the highest of them.

    `titles` names the arms, `title` what they are of.  `pairs` (proposed arm to base) get two shades of one colour
    where a colour each would be too many.  Line and band are running means of `smooth` epochs, an odd number.
    """
    scale, axis = _axis(curve, kind)
    rows: list[dict[str, Any]] = [
        {"model": titles[point.arm], "epoch": point.epoch, "replicates": point.replicates}
        | {name: scale * getattr(point, name) for name in ("mean", "low", "high")}
        for point in points
    ]
    arms = list(dict.fromkeys(point.arm for point in points))
    models = [titles[arm] for arm in arms]
    ends = [row[name] for row in rows for name in ("low", "high")]
    y = {"type": "quantitative", "title": axis, "scale": {"zero": False} if scale > 1 else vega.scale(ends)}
    color = {
        "field": "model",
        "type": "nominal",
        "sort": models,
        "scale": {"domain": models} | ({"range": shades(arms, pairs or {})} if len(models) > 3 else {}),
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
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": {"field": "mean", **y}}, "params": [vega.ZOOM]},
        {
            "params": [{"name": "hover", "select": nearest}],
            "mark": {"type": "point", "filled": True, "size": 70},
            "encoding": {
                "y": {"field": "mean", **y},
                "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
                "tooltip": vega.tooltip_of_nearest(told, formats),
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
        **vega.frame(f"{title}: {axis} over epochs, mean and span over replicates", height=340),
        "data": {"values": rows},
        "transform": _running_mean(smooth),
        "encoding": {"x": _epochs(rows), "color": color},
        "layer": layers,
    }


def shades(arms: Sequence[str], pairs: Mapping[str, str]) -> list[str]:
    """A colour for each arm, in their order: a proposed arm's is deep, that of the base it stands against light.

    Whoever stands alone, or is the base of several, has a colour of its own.
    """
    bases = Counter(pairs[arm] for arm in arms if pairs.get(arm) in arms)
    free = iter(PAIRED)
    found: dict[str, str] = {}
    for arm in arms:
        base = pairs.get(arm, "")
        if bases[base] == 1:
            found[arm], found[base] = next(free, SPENT)
    return [found.get(arm) or next(free, SPENT)[0] for arm in arms]


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


def run_charts(result: Result, kind: str) -> dict[str, dict[str, Any]]:
    """One run over its epochs: a chart for each quantity that was measured, a line for each part of the data.

    Values on the test set come from the observer, which training never sees.
    """
    charts = {}
    for what in ("accuracy", "loss"):
        rows = [
            {"epoch": epoch.epoch, "side": word, "value": _axis(f"{side}_{what}", kind)[0] * value}
            for epoch in result.epochs
            for side, word in SIDES.items()
            if (value := getattr(epoch, f"{side}_{what}")) is not None
        ]
        if rows:
            charts[what] = _run_chart(rows, _axis(f"test_{what}", kind)[1].removeprefix("Test "))
    return charts


def _run_chart(rows: Sequence[Mapping[str, Any]], title: str) -> dict[str, Any]:
    sides = [side for side in SIDES.values() if any(row["side"] == side for row in rows)]
    is_long = len({row["epoch"] for row in rows}) > MOST_POINTS
    y_scale = {"zero": False} if title.endswith("(%)") else vega.scale(row["value"] for row in rows)
    return {
        **vega.frame(f"{title} over epochs, {' and '.join(sides)}", height=230),
        "data": {"values": list(rows)},
        "params": [vega.ZOOM],
        "mark": {"type": "line", "strokeWidth": 2, **({} if is_long else {"point": {"size": 36}})},
        "encoding": {
            "x": _epochs(rows),
            "y": {"field": "value", "type": "quantitative", "title": title, "scale": y_scale},
            "color": vega.sides(sides, sides),
            "tooltip": [{"field": "epoch"}, {"field": "side"}, {"field": "value", "format": ".4~g", "title": title}],
        },
    }


def _axis(curve: str, kind: str) -> tuple[int, str]:
    """The factor that a curve's numbers are drawn with, and its axis' title with the unit."""
    unit = unit_of_curve(curve, kind)
    shown = "%" if unit == "fraction" else unit
    return 100 if unit == "fraction" else 1, name_curve(curve, kind) + (f" ({shown})" if shown else "")
