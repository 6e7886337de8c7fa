"""What a model's page draws on the server: learning curves as inline SVG, and the confusion matrix."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from service.database.curves import SIDES, Curve, CurvePoint, name_curve, unit_of_curve
from service.pages.dots import ticks_between
from service.pages.formats import percent, plain

WIDTH, HEIGHT = 340.0, 200.0
MOST_POINTS = 240  # of one line
LOGARITHMIC = 30.0  # a loss that falls by more than this factor has a logarithmic axis
MOST_CELLS = 12  # classes whose matrix is a table; a larger one is a picture
TEAL = (38, 140, 143)  # readable on both pages


@dataclass(frozen=True, kw_only=True)
class DrawnLine:
    """A curve on one side of the data; `band` is the outline from the lowest to the highest replicate, if several."""

    side: str
    path: str
    band: str
    last: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The curves of one quantity on common axes, up to the epoch `last`."""

    title: str
    lines: tuple[DrawnLine, ...]
    rows: tuple[tuple[float, str], ...]
    columns: tuple[tuple[float, str], ...]
    last: int


def draw_curves(curves: Mapping[Curve, Sequence[CurvePoint]], kind: str) -> list[Panel]:
    """One panel each for accuracy and loss, as far as they were measured."""
    found = []
    for what in ("accuracy", "loss"):
        some = {name: points for name, points in curves.items() if name.endswith(what) and points}
        if some:
            found.append(_panel(some, kind))
    return found


def _panel(curves: Mapping[Curve, Sequence[CurvePoint]], kind: str) -> Panel:
    numbers = [number for points in curves.values() for point in points for number in (point.low, point.high)]
    finite = [number for number in numbers if math.isfinite(number)]
    low, high = min(finite), max(finite)
    is_log = low > 0 and high / low > LOGARITHMIC
    first, last = (f(point.epoch for points in curves.values() for point in points) for f in (min, max))
    unit = unit_of_curve(next(iter(curves)), kind)
    write = (lambda number: percent(number, 0)) if unit == "fraction" else plain
    scale = math.log10 if is_log else float
    bottom, top = scale(low), scale(high)

    def across(epoch: float) -> float:
        return round(WIDTH * (epoch - first) / ((last - first) or 1), 1)

    def down(number: float) -> float:
        return round(HEIGHT * (1 - (scale(number) - bottom) / ((top - bottom) or 1)), 1)

    rows = [10.0**power for power in range(math.ceil(bottom), math.floor(top) + 1)] if is_log else []
    lines = []
    for name, points in curves.items():
        step = math.ceil(len(points) / MOST_POINTS)
        drawn = [point for point in (*points[:-1:step], points[-1]) if math.isfinite(point.mean)]
        path = "M" + "L".join(f"{across(point.epoch)} {down(point.mean)}" for point in drawn)
        edge = [(point.epoch, point.high) for point in drawn] + [(point.epoch, point.low) for point in reversed(drawn)]
        band = "M" + "L".join(f"{across(epoch)} {down(number)}" for epoch, number in edge) + "z"
        lines.append(
            DrawnLine(
                side=SIDES[name.partition("_")[0]],
                path=path,
                band=band if any(point.replicates > 1 for point in drawn) else "",
                last=percent(drawn[-1].mean) if unit == "fraction" else plain(drawn[-1].mean),
            )
        )
    return Panel(
        title=name_curve(next(iter(curves)), kind).partition(" ")[2]
        + (f" ({unit})" if unit not in ("", "fraction") else ""),
        lines=tuple(lines),
        rows=tuple((down(tick), write(tick)) for tick in rows or ticks_between(low, high, 5)),
        columns=tuple((across(tick), f"{tick:g}") for tick in ticks_between(first, last, 6) if tick == int(tick)),
        last=last,
    )


def shade(confusion: np.ndarray) -> list[list[int]]:
    """How dark each cell of a small matrix is, from 0 to 5, by its share of the true class."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    return [[math.ceil(5 * math.sqrt(share)) for share in row] for row in shares]


def picture_of(confusion: np.ndarray) -> str:
    """A large matrix as the address of a picture: one pixel a cell, true classes down, answers across."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    pixels = np.empty((*confusion.shape, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = TEAL, np.round(255 * np.sqrt(shares))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
