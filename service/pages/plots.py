"""Charts that the server draws: places in percent of a drawing, so that text keeps its size at every width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from sqlalchemy.orm import Session

from service.database.curves import CurvePoint
from service.database.queries import ALL_TITLES
from service.pages.dots import ticks_between
from service.pages.formats import NONE, value_in
from stages.results import ArmComparison, MetricInfo

PALETTE = ("#3b7bc8", "#c2456b", "#4f9440", "#8a62c4", "#a8871b", "#c25aa6", "#6b7c8c", "#8f6648")
"""Colours of models, seen on the light page and on the dark one; teal is ours and orange is the paper's."""
DASHES = ("", "6 4", "2 3")
MOST_TICKS = 7
MOST_POINTS = 60
"""Epochs that are drawn as points, too."""
MANY_EPOCHS, LONG_MEAN = 200, 15
"""Epochs beyond which lines are running means, and the epochs of one."""
PAD = 0.04
APART = 7.0
"""Least distance of two labels at the ends of lines, in percent of the height."""


@dataclass(frozen=True)
class Ink:
    """Colour and dashes of a model's line; dashes tell apart models that share a colour."""

    colour: str
    dash: str


def ink_of(titles: Iterable[str]) -> dict[str, Ink]:
    """Give each model its colour on every page; `titles` are those of all models, in the order of the experiments."""
    many = len(PALETTE)
    return {
        title: Ink(PALETTE[(number + number // many) % many], DASHES[number // many % len(DASHES)])
        for number, title in enumerate(dict.fromkeys(titles))
    }


def inks_of(session: Session) -> dict[str, Ink]:
    return ink_of(session.scalars(ALL_TITLES))


def apart(inks: Iterable[Ink]) -> list[Ink]:
    """The same colours with other dashes where an earlier line has the same ones."""
    found: list[Ink] = []
    for ink in inks:
        free = (Ink(ink.colour, dash) for dash in (ink.dash, *DASHES))
        found.append(next((one for one in free if one not in found), ink))
    return found


@dataclass(frozen=True)
class Tick:
    place: float
    text: str
    is_minor: bool
    """Left out on phones."""


class Axis:
    """Places numbers between 0 and 100 %, with round ticks.

    Logarithmic if positive numbers span more than a decade, unless it `is_linear`; of whole numbers, so are ticks.
    """

    def __init__(
        self,
        values: Iterable[float],
        write: Callable[[float], str],
        *,
        most: int = MOST_TICKS,
        is_linear: bool = False,
        is_whole: bool = False,
    ) -> None:
        numbers = list(values)
        self.is_log = not is_linear and min(numbers) > 0 and max(numbers) > 10 * min(numbers)
        self._low, self._high = (math.log10(min(numbers)), math.log10(max(numbers))) if self.is_log else _ends(numbers)
        pad = PAD * (self._high - self._low)
        self._low, self._high = self._low - pad, self._high + pad
        found = self._decades() if self.is_log else ticks_between(self._low, self._high, most)
        found = [tick for tick in found if not is_whole or tick == int(tick)]
        self.ticks = tuple(Tick(self.at(tick), write(tick), bool(place % 2)) for place, tick in enumerate(found))

    def at(self, number: float) -> float:
        scaled = math.log10(number) if self.is_log else number
        return round(100 * (scaled - self._low) / (self._high - self._low), 2)

    def _decades(self) -> list[float]:
        factors = (1, 2, 5) if self._high - self._low < 2 else (1,)
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        return [tick for tick in ticks if self._low <= math.log10(tick) <= self._high]


def _ends(numbers: Sequence[float]) -> tuple[float, float]:
    low, high = min(numbers), max(numbers)
    half = (abs(high) or 1.0) / 10 if low == high else 0.0
    return low - half, high + half


def tick_in(unit: str) -> Callable[[float], str]:
    """The text of a tick: of fractions as few digits as it needs, of most units the number alone."""
    if unit == "fraction":
        return lambda number: f"{100 * number:.6g} %"
    return value_in(unit if unit in ("seconds", "bytes", "count", "flop") else "")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Our number and the paper's on an axis.  `is_thin`: the interval is of the test images alone, of one run."""

    ours: float | None
    low: float | None
    high: float | None
    is_thin: bool
    paper: float | None
    told: str


def interval_of(arm: ArmComparison) -> tuple[float, float, bool] | None:
    """Both ends of our interval, and True if it is that of the test images alone, which one run has, too."""
    ours = arm.ours
    if ours is None:
        return None
    if ours.low is not None and ours.high is not None:
        return ours.low, ours.high, False
    return (ours.population.low, ours.population.high, True) if ours.population else None


def printed_of(arm: ArmComparison, metric: MetricInfo) -> float | None:
    return arm.printed.value if arm.printed is not None and arm.printed.unit == metric.unit else None


def axis_of(arms: Iterable[ArmComparison], metric: MetricInfo, *, most: int = MOST_TICKS) -> Axis | None:
    """The axis of these models' numbers; None without any."""
    shown: list[float] = []
    for arm in arms:
        interval = interval_of(arm)
        own = arm.ours.value if arm.ours else None
        ends = (own, printed_of(arm, metric), *(interval or ())[:2])
        shown += [end for end in ends if end is not None and math.isfinite(end)]
    return Axis(shown, tick_in(metric.unit), most=most, is_linear=metric.unit == "fraction") if shown else None


def mark_of(arm: ArmComparison, metric: MetricInfo, axis: Axis) -> Mark:
    interval, printed = interval_of(arm), printed_of(arm, metric)
    write = value_in(metric.unit)
    ours = arm.ours.value if arm.ours else None
    told = [f"{arm.title}: ours {write(ours)}" if ours is not None else f"{arm.title}: {NONE}"]
    if interval:
        told.append(f"{write(interval[0])} to {write(interval[1])}{' (test images alone)' if interval[2] else ''}")
    told += [f"printed {write(printed)}"] if printed is not None else []
    low, high, is_thin = interval or (None, None, False)
    ends = (ours, low, high, printed)
    ours, low, high, printed = (None if end is None or not math.isfinite(end) else end for end in ends)
    return Mark(
        ours=None if ours is None else axis.at(ours),
        low=None if low is None or high is None else axis.at(low),
        high=None if low is None or high is None else axis.at(high),
        is_thin=is_thin,
        paper=None if printed is None else axis.at(printed),
        told=", ".join(told),
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """One model's curve: the path of its mean, the outline of its band ("" without one), and where its label is."""

    name: str
    ink: Ink
    path: str
    band: str
    points: tuple[tuple[float, float, str], ...]
    end: float
    label: float
    told: str


@dataclass(frozen=True)
class Curves:
    """`smooth`: epochs of the running means; 1 is none."""

    smooth: int
    lines: tuple[Line, ...]
    x: Axis
    y: Axis


def draw_overlay(
    points: Sequence[CurvePoint], titles: Mapping[str, str], inks: Mapping[str, Ink], unit: str
) -> Curves | None:
    """Lines of means with bands from the lowest to the highest replicate, each labelled at its end.

    Of many epochs running means, since each epoch's scatter hides the lines.
    """
    points = [point for point in points if math.isfinite(point.high - point.low)]  # what diverged has no place
    if not points:
        return None
    by_arm: dict[str, list[CurvePoint]] = {}
    for point in points:
        by_arm.setdefault(point.arm, []).append(point)
    smooth = LONG_MEAN if max(map(len, by_arm.values())) > MANY_EPOCHS else 1
    if smooth > 1:
        by_arm = {arm: _running_means(own) for arm, own in by_arm.items()}
        points = [point for own in by_arm.values() for point in own]
    x = Axis([point.epoch for point in points], "{:g}".format, is_linear=True, is_whole=True)
    y = Axis([end for point in points for end in (point.low, point.high)], tick_in(unit), is_linear=unit == "fraction")
    write = value_in(unit)
    ends = {arm: 100 - y.at(own[-1].mean) for arm, own in by_arm.items()}
    labels = _spread(ends)
    lines = []
    for arm, own in by_arm.items():
        places = [(x.at(point.epoch), round(100 - y.at(point.mean), 2)) for point in own]
        has_band = any(point.replicates > 1 for point in own)
        upper = [(x.at(point.epoch), round(100 - y.at(point.high), 2)) for point in own]
        lower = [(x.at(point.epoch), round(100 - y.at(point.low), 2)) for point in reversed(own)]
        told = [f"{titles[arm]}, epoch {point.epoch}: {write(point.mean)}" for point in own]
        lines.append(
            Line(
                name=titles[arm],
                ink=inks[titles[arm]],
                path=_path(places),
                band=f"{_path([*upper, *lower])}z" if has_band else "",
                points=tuple((*place, text) for place, text in zip(places, told, strict=True))
                if len(own) <= MOST_POINTS
                else (),
                end=ends[arm],
                label=labels[arm],
                told=told[-1],
            )
        )
    return Curves(smooth, tuple(lines), x, y)


def _running_means(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    half = LONG_MEAN // 2
    windows = [points[max(0, place - half) : place + half + 1] for place in range(len(points))]
    return [
        replace(
            point,
            mean=fmean(near.mean for near in window),
            low=fmean(near.low for near in window),
            high=fmean(near.high for near in window),
        )
        for point, window in zip(points, windows, strict=True)
    ]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _spread(ends: Mapping[str, float]) -> dict[str, float]:
    """Places of labels as near to the ends of their lines as their height allows, within the drawing."""
    order = sorted(ends, key=lambda arm: ends[arm])
    places: list[float] = []
    for arm in order:
        places.append(max(ends[arm], places[-1] + APART if places else 2.0))
    for number in range(len(places) - 1, -1, -1):
        most = 98.0 if number == len(places) - 1 else places[number + 1] - APART
        places[number] = round(min(places[number], most), 2)
    return dict(zip(order, places, strict=True))
