"""Parts of Vega-Lite specs that several charts have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
BETWEEN = {1.3: (1, 2, 5), 3.0: (1, 3)}
"""Ticks of each decade of a logarithmic axis that has no more decades than this."""
ZOOM = {"name": "zoom", "select": {"type": "interval", "zoom": "wheel![event.shiftKey]"}, "bind": "scales"}


def scale(values: Iterable[float], *, wide: float = 10.0) -> dict[str, Any]:
    """Logarithmic where the largest of positive values is more than `wide` times the smallest, else linear without
    zero.
    """
    numbers = list(values)
    is_wide = min(numbers) > 0 and max(numbers) > wide * min(numbers)
    return {"type": "log", "nice": False} if is_wide else {"zero": False}


def ticks(values: Iterable[float]) -> dict[str, Any]:
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


def intervals(x: dict[str, Any]) -> dict[str, Any]:
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
    }


def band(ends: Mapping[str, float], x: dict[str, Any]) -> dict[str, Any]:
    """A band from `low` to `high`: where our value is as good as the paper's."""
    return {
        "data": {"values": [ends]},
        "mark": {"type": "rect", "opacity": 0.15},
        "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
    }


def points(x: dict[str, Any], shown: Sequence[str], about: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    side = sides(["ours", "paper"], shown)
    return {
        "mark": {"type": "point", "filled": True, "size": 130, "opacity": 1},
        "encoding": {
            "x": {"field": "value", "scale": {"zero": False, "padding": 24, "nice": True}, **x},
            "color": side,
            "shape": side,
            "tooltip": [*about, {"field": "side"}, {"field": "value", "format": ".4~g"}],
        },
    }


def sides(domain: Sequence[str], shown: Sequence[str]) -> dict[str, Any]:
    """The scale of the sides: each keeps its colour and shape even if another side is missing."""
    return {
        "field": "side",
        "type": "nominal",
        "sort": list(domain),
        "scale": {"domain": list(domain)},
        "legend": {"title": None, "orient": "top", "values": list(shown)},
    }
