"""Read a page's charts as people do: numbers by axis ticks, names by the legend."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape

SIZES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "%": 0.01, "ms": 1e-3, "µs": 1e-6}
Places = Sequence[tuple[float, float]]
"""Numbers and their positions in percent."""


def number_of(text: str) -> float:
    """Parse a tick's number: "95 %" is 0.95, "3 k" is 3000."""
    number, _, unit = unescape(text).replace("−", "-").replace(",", "").partition(" ")
    return float(number) * SIZES.get(unit.removesuffix("FLOP").removesuffix("B"), 1)


def read(place: float, ticks: Places) -> float:
    """Return the number at a position, on a logarithmic axis if its ticks fit better."""
    (low, start), (high, end) = ticks[0], ticks[-1]
    share = (place - start) / (end - start)
    middle, at = ticks[len(ticks) // 2]
    part = (at - start) / (end - start)
    if low > 0 and abs(low * (high / low) ** part - middle) < abs(low + part * (high - low) - middle):
        return math.exp(math.log(low) + share * math.log(high / low))
    return low + share * (high - low)


@dataclass(frozen=True)
class Drawn:
    """A chart: `inks` has (colour, dashes) by legend name; `lines` has (x, y) by name and dashes."""

    x: Places
    y: Places
    inks: dict[str, tuple[str, str]]
    lines: dict[tuple[str, str], list[tuple[float, float]]]
    bands: list[list[tuple[float, float]]]
    points: dict[str, tuple[float, float, tuple[float, float] | None]]
    titles: list[str]


def drawings(html: str) -> list[str]:
    return [part.partition("</figure>")[0] for part in html.split("<figure")[1:] if 'class="plane"' in part]


def drawn(html: str, name: str) -> Drawn:
    """Return the chart with this id."""
    (figure,) = (part for part in drawings(html) if part.startswith(f' class="chart" id="{name}"'))
    return read_drawing(figure)


def read_drawing(figure: str) -> Drawn:
    def ticks(axis: str, place: str) -> Places:
        texts = figure.partition(f'class="{axis}-axis"')[2].partition("</svg>")[0]
        found = re.findall(rf'<text.*? {place}="([-\d.]+)%".*?>([^<]+)</text>', texts)
        return [(number_of(text), float(at)) for at, text in found]

    x, y = ticks("x", "x"), ticks("y", "y")

    def follow(path: str) -> list[tuple[float, float]]:
        pairs = (place.split() for place in path.strip("Mz").split("L"))
        return [(read(float(left), x) if len(x) > 1 else x[0][0], read(float(top), y)) for left, top in pairs]

    legend = re.findall(
        r'<li><svg class="swatch".*?stroke="([^"]+)"(?: stroke-dasharray="([^"]+)")?.*?</svg>([^<]+)', figure
    )
    inks = {unescape(name): (colour, dash) for colour, dash, name in legend}
    named = {colour: name for name, (colour, _) in inks.items()} | {ink: name for name, ink in inks.items()}
    strokes = re.findall(r'<path class="line" d="([^"]+)" stroke="([^"]+)"(?: stroke-dasharray="([^"]+)")?', figure)
    marks = re.findall(
        r'<g class="point".*?<title>(.*?)</title>(?:<line x1="[^"]+" x2="[^"]+" y1="([^"]+)%" y2="([^"]+)%"/>)?'
        r'<svg x="([^"]+)%" y="([^"]+)%">',
        figure,
    )
    return Drawn(
        x=x,
        y=y,
        inks=inks,
        lines={(named.get((colour, dash)) or named[colour], dash): follow(path) for path, colour, dash in strokes},
        bands=[follow(path) for path in re.findall(r'<path class="band" d="([^"]+)"', figure)],
        points={
            unescape(title): (
                read(float(left), x),
                read(float(top), y),
                (read(float(low), y), read(float(high), y)) if low else None,
            )
            for title, low, high, left, top in marks
        },
        titles=[unescape(title) for title in re.findall(r"<title>(.*?)</title>", figure, re.DOTALL)],
    )
