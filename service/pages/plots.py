"""Charts drawn on the server.  Positions are percentages, so text keeps its size at every width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from sqlalchemy.orm import Session

from service.database.queries import ALL_TITLES
from service.pages.formats import NONE, value_in
from stages.results import ArmComparison, MetricInfo

PALETTE = ("#3b7bc8", "#c2456b", "#4f9440", "#8a62c4", "#a8871b", "#c25aa6", "#6b7c8c", "#8f6648")
"""Colours of models, legible on light and dark pages; teal is ours and orange is the paper's."""
DASHES = ("", "6 4", "2 3")
SHAPES = {
    "baseline": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "proposed": "M0-6.5L6 5H-6z",
    "ablation": "M-5-5H5V5H-5z",
    "sensitivity": "M-6-5H6L0 6.5z",
}
"""Mark of each role; a diamond is the paper's number."""
FEW_TICKS, MOST_TICKS = 4, 7
MOST_POINTS, MOST_STRIPES = 20, 60
"""Most numbers of a line that are drawn as points, and most stripes that show numbers on hover."""
PAD = 0.04
APART = 7.0
"""Smallest distance between labels at the ends of lines, in percent of the height."""
MOST_ENDS = 14  # labels that fit below each other
MOST_NAMED = 8  # points that have room for a name
WIDTH, HEIGHT, LETTER, ROW = 560.0, 288.0, 7.0, 16.0
"""Pixels of a small drawing, a letter and a line of text, used to place names next to points."""


@dataclass(frozen=True)
class Ink:
    """Colour and dashes of a model's line; dashes tell apart models that share a colour."""

    colour: str
    dash: str


ROLES = {role: Ink(colour, "") for role, colour in zip(SHAPES, PALETTE, strict=False)}
"""Inks of the roles, used if there are more models than colours."""


def ink_of(titles: Iterable[str]) -> dict[str, Ink]:
    """Assign each model an ink that it has on every page; `titles` are those of all models, by experiment."""
    many = len(PALETTE)
    return {
        title: Ink(PALETTE[(number + number // many) % many], DASHES[number // many % len(DASHES)])
        for number, title in enumerate(dict.fromkeys(titles))
    }


def inks_of(session: Session) -> dict[str, Ink]:
    return ink_of(session.scalars(ALL_TITLES))


def apart(inks: Iterable[Ink]) -> list[Ink]:
    """Give inks that repeat an earlier one other dashes."""
    found: list[Ink] = []
    for ink in inks:
        free = (Ink(ink.colour, dash) for dash in (ink.dash, *DASHES))
        found.append(next((one for one in free if one not in found), ink))
    return found


@dataclass(frozen=True)
class Tick:
    number: float
    place: float
    text: str
    is_minor: bool
    """Left out on phones."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Our number and the paper's on an axis.  `is_thin`: the interval covers the choice of test images only."""

    ours: float | None
    low: float | None
    high: float | None
    paper: float | None
    text: str
    is_thin: bool = False


class Axis:
    """Maps numbers to percentages from the left or, if it `is_upright`, from the top, with round ticks.

    Logarithmic if positive numbers span more than a decade, unless it `is_linear`.  `is_whole` allows whole ticks only;
    `marked` replaces the round ticks.
    """

    def __init__(
        self,
        values: Iterable[float],
        write: Callable[[float], str],
        *,
        title: str = "",
        most: int = MOST_TICKS,
        is_linear: bool = False,
        is_whole: bool = False,
        is_upright: bool = False,
        marked: Sequence[float] = (),
    ) -> None:
        numbers = list(values)
        self.title, self._is_upright = title, is_upright
        low, high = min(numbers), max(numbers)
        self.is_log = not is_linear and low > 0 and high > 10 * low
        if self.is_log:
            low, high = math.log10(low), math.log10(high)
        elif high - low <= 1e-9 * (size := max(abs(low), abs(high))):  # room around (almost) equal numbers
            half = (size or 1.0) / 10
            low, high = low - half, high + half
        pad = PAD * (high - low)
        self._low, self._high = low - pad, high + pad
        found = list(marked) or (self._decades(most) if self.is_log else ticks_between(self._low, self._high, most))
        found = [tick for tick in found if not is_whole or tick == int(tick)]
        texts = [write(tick) if tick else "0" for tick in found]
        if len(set(texts)) < len(texts):  # the unit's usual digits are too few
            texts = [f"{tick:,.12g}" for tick in found]
        is_dense = len(found) > FEW_TICKS
        self.ticks = tuple(
            Tick(tick, self.at(tick), text, is_dense and bool(number % 2))
            for number, (tick, text) in enumerate(zip(found, texts, strict=True))
        )

    def at(self, number: float) -> float:
        scaled = math.log10(number) if self.is_log else number
        place = round(100 * (scaled - self._low) / (self._high - self._low), 2)
        return round(100 - place, 2) if self._is_upright else place

    def mark(
        self,
        ours: float | None,
        low: float | None,
        high: float | None,
        *,
        paper: float | None,
        text: str,
        is_thin: bool = False,
    ) -> Mark:
        """Place our number, its interval and the paper's number; infinite numbers have no place."""
        numbers = (ours, low, high, paper)
        places = [None if number is None or not math.isfinite(number) else self.at(number) for number in numbers]
        ends = places[1:3] if None not in places[1:3] else (None, None)
        return Mark(ours=places[0], low=ends[0], high=ends[1], paper=places[3], text=text, is_thin=is_thin)

    def _decades(self, most: int) -> list[float]:
        """Return powers of ten, with numbers between them if they are few."""
        step = max(1, math.ceil((self._high - self._low) / most))
        powers, ticks = range(math.floor(self._low), math.ceil(self._high) + 1, step), list[float]()
        for factors in ((1,), (1, 3), (1, 2, 5)):
            if len(ticks) < FEW_TICKS:
                every = [float(f"{factor}e{power}") for power in powers for factor in factors]
                ticks = [tick for tick in every if self._low <= math.log10(tick) <= self._high]
        return ticks


def ticks_between(low: float, high: float, most: int) -> list[float]:
    """Return about `most` round numbers between the ends of an axis."""
    power = math.floor(math.log10((high - low) / most))
    size, step = next(
        (size, step)
        for size, step in ((10.0**p, base) for p in (power, power + 1) for base in (1, 2, 5))
        if (high - low) / (size * step) <= most
    )
    return [
        float(f"{step * number * size:.12g}")
        for number in range(math.ceil(low / size / step), math.floor(high / size / step) + 1)
    ]


def tick_in(unit: str) -> Callable[[float], str]:
    """Return the formatter of ticks: fractions in percent, most units without the unit."""
    if unit == "fraction":
        return lambda number: f"{100 * number:.6g} %"
    return value_in(unit if unit in ("seconds", "bytes", "count", "flop") else "")


def interval_of(arm: ArmComparison) -> tuple[float, float, bool] | None:
    """Return both ends of our interval, and True if it covers the choice of test images only."""
    ours = arm.ours
    if ours is None:
        return None
    if ours.low is not None and ours.high is not None:
        return ours.low, ours.high, False
    return (ours.population.low, ours.population.high, True) if ours.population else None


def printed_of(arm: ArmComparison, metric: MetricInfo) -> float | None:
    return arm.printed.value if arm.printed is not None and arm.printed.unit == metric.unit else None


def axis_of(arms: Iterable[ArmComparison], metric: MetricInfo) -> Axis | None:
    """Return an axis for these models' numbers; None without any."""
    shown: list[float] = []
    for arm in arms:
        interval = interval_of(arm)
        own = arm.ours.value if arm.ours else None
        ends = (own, printed_of(arm, metric), *(interval or ())[:2])
        shown += [end for end in ends if end is not None and math.isfinite(end)]
    return Axis(shown, tick_in(metric.unit), is_linear=metric.unit == "fraction") if shown else None


def mark_of(arm: ArmComparison, metric: MetricInfo, axis: Axis) -> Mark:
    interval, printed = interval_of(arm), printed_of(arm, metric)
    write = value_in(metric.unit)
    ours = arm.ours.value if arm.ours else None
    parts = [f"{arm.title}: ours {write(ours)}" if ours is not None else f"{arm.title}: {NONE}"]
    if interval:
        parts.append(f"{write(interval[0])} to {write(interval[1])}{' (test images alone)' if interval[2] else ''}")
    parts += [f"printed {write(printed)}"] if printed is not None else []
    low, high, is_thin = interval or (None, None, False)
    return axis.mark(ours, low, high, paper=printed, text=", ".join(parts), is_thin=is_thin)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A number `y` at `x`, the ends of its interval if it has one, and its text on hover."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """Joined points, with a band between the ends of their intervals if it `has_band`."""

    name: str
    ink: Ink
    points: tuple[Point, ...]
    has_band: bool = False
    is_named: bool = True


@dataclass(frozen=True, kw_only=True)
class Dot(Point):
    """A single point with the mark of its `role`."""

    name: str
    ink: Ink
    role: str

    @property
    def shape(self) -> str:
        return SHAPES[self.role]


@dataclass(frozen=True)
class Label:
    """Label of a point, offset by `dx` and `dy` pixels."""

    text: str
    x: float
    y: float
    dx: float
    dy: float
    anchor: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Lines, points and the paper's number on two axes; the table `head` and `rows` has the same numbers.

    `smooth`: epochs of the running means; 1 for none.
    """

    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    printed: float | None = None
    smooth: int = 1
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

    @property
    def text(self) -> str:
        """Describe the last number of each named line, and the first points."""
        ends = [f"{line.name}, {line.points[-1].text}" for line in self.lines if line.is_named]
        return "; ".join([*ends, *(dot.text for dot in self.dots[:MOST_NAMED])])

    def path(self, line: Line) -> str:
        return _path((self.x.at(point.x), self.y.at(point.y)) for point in line.points)

    def band(self, line: Line) -> str:
        upper = [(point.x, point.high) for point in line.points]
        lower = [(point.x, point.low) for point in reversed(line.points)]
        return _path((self.x.at(x), self.y.at(end)) for x, end in [*upper, *lower] if end is not None) + "z"

    def marked(self, line: Line) -> tuple[Point, ...]:
        """Return the points of a line if few enough to draw."""
        return line.points if len(line.points) <= MOST_POINTS else ()

    @property
    def named(self) -> list[Line]:
        return [line for line in self.lines if line.is_named]

    @cached_property
    def ends(self) -> list[tuple[Line, float, float]]:
        """Return each line with the positions of its end and its label; [] if there is no room for all."""
        ends = sorted(((self.y.at(line.points[-1].y), line) for line in self.named), key=lambda end: end[0])
        if len(ends) > MOST_ENDS:
            return []
        places: list[float] = []
        for end, _ in ends:
            places.append(max(end, places[-1] + APART if places else 2.0))
        for number in range(len(places) - 1, -1, -1):
            most = 98.0 if number == len(places) - 1 else places[number + 1] - APART
            places[number] = round(min(places[number], most), 2)
        return [(line, end, place) for (end, line), place in zip(ends, places, strict=True)]

    @cached_property
    def stripes(self) -> list[tuple[float, float, str]]:
        """Return left end, width and text of vertical stripes; each shows the numbers of all lines at its middle."""
        every = sorted({point.x for line in self.lines for point in line.points})
        kept = every[:: -(-len(every) // MOST_STRIPES)] if every else []
        places = [self.x.at(x) for x in kept]
        borders = [0.0, *((one + other) / 2 for one, other in pairwise(places)), 100.0]
        texts: dict[float, list[str]] = {x: [] for x in kept}
        for line in self.lines:
            for point in line.points:
                if point.x in texts:
                    texts[point.x].append(f"{line.name}, {point.text}")
        return [
            (round(left, 2), round(right - left, 2), "\n".join(texts[x]))
            for x, left, right in zip(kept, borders, borders[1:], strict=False)
        ]

    @cached_property
    def labels(self) -> list[Label]:
        """Place the names so that they cover neither each other nor a point; [] if that is impossible."""
        if len(self.dots) > MOST_NAMED:
            return []
        places = [(WIDTH * self.x.at(dot.x) / 100, HEIGHT * self.y.at(dot.y) / 100) for dot in self.dots]
        taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
        for dot, (x, _) in zip(self.dots, places, strict=True):
            if dot.low is not None and dot.high is not None:
                taken.append((x - 2, HEIGHT * self.y.at(dot.high) / 100, x + 2, HEIGHT * self.y.at(dot.low) / 100))
        found = []
        for dot, (x, y) in zip(self.dots, places, strict=True):
            for side, dy in ((side, dy) for dy in (0, -ROW, ROW, -2 * ROW, 2 * ROW) for side in (1, -1)):
                near, far = x + 11 * side, x + side * (11 + LETTER * len(dot.name))
                box = (min(near, far), y + dy - ROW / 2, max(near, far), y + dy + ROW / 2)
                is_free = all(box[0] >= b[2] or box[2] <= b[0] or box[1] >= b[3] or box[3] <= b[1] for b in taken)
                if is_free and min(box) >= 0 and box[2] <= WIDTH and box[3] <= HEIGHT:
                    taken.append(box)
                    anchor = "start" if side > 0 else "end"
                    found.append(Label(dot.name, self.x.at(dot.x), self.y.at(dot.y), 11 * side, dy + 4, anchor))
                    break
            else:
                return []
        return found

    @property
    def key(self) -> list[tuple[str, Ink, str]]:
        """Return names, inks and marks for a legend; many points are left out."""
        dots = self.dots if len(self.dots) <= MOST_NAMED else ()
        return [*((line.name, line.ink, "") for line in self.named), *((dot.name, dot.ink, dot.shape) for dot in dots)]

    @property
    def roles(self) -> dict[str, tuple[Ink | None, str]]:
        """Return ink and mark of each role; {} if there is only one.  The ink is None if models have their own."""
        found = {dot.role: (dot.ink if len(self.dots) > len(PALETTE) else None, dot.shape) for dot in self.dots}
        return found if len(found) > 1 else {}


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)
