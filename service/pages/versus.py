"""Does one model beat another?  The answer in one sentence, and the form that asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.pages.dots import Interval
from service.pages.formats import as_confidence, from_to, plain, points, value_in, value_with
from service.pages.legend import COLOURS, headline_of
from stages.results import ExperimentComparison, JudgedClaim, Versus, Word

DEVICES = {"cuda": "one GPU", "cpu": "two CPU cores"}
LARGE_GRID = 24
"""Experiments with more models aren't suggested, because few users would type their titles."""
SURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Contents of the form."""

    a: str = ""
    b: str = ""
    dataset: str | None = None


def first_pair(asked: Iterable[Sequence[JudgedClaim]], comparisons: Sequence[ExperimentComparison]) -> Pair:
    """Return the models of the first claim that compares two, among those that answer a paper's question."""
    titles = {(item.experiment, arm.arm): arm.title for item in comparisons for arm in item.arms}
    for row in (row for rows in asked for row in rows if len(row.experiments) == 1):
        names = [titles.get((row.experiments[0], arm or "")) for arm in (row.claim.arm, row.claim.baseline_arm)]
        if names[0] and names[1]:
            return Pair(a=names[0], b=names[1], dataset=row.datasets[0])
    return Pair()


def list_titles(comparisons: Iterable[ExperimentComparison]) -> list[str]:
    """List the models that the form offers, each title once."""
    return list(dict.fromkeys(arm.title for item in comparisons if len(item.arms) <= LARGE_GRID for arm in item.arms))


def answer_versus(found: Versus) -> str:
    """Answer in one sentence, as "Yes: NiNformer beats ViT on MNIST by 0.61 pp (…, 5 runs of each)."."""
    verdict, on = found.verdict, f"on {found.dataset.title}"
    ours, theirs = name_sides(found)
    if verdict.estimate is None or verdict.low is None or verdict.high is None:
        models = f"{ours} and {theirs} {on}"
        why = f"{models} were not both trained in full"
        if not found.is_paired:
            why = f"no experiment trains both {models}"
        elif found.cut:
            why = f"there are only shortened runs of {models}, which decide nothing"
        return f"Not known yet: {why}{_to_decide(found)}."
    word, sign = headline_of(verdict.status), -1 if verdict.estimate < 0 else 1
    low, high = sorted((sign * verdict.low, sign * verdict.high))
    size, *ends = (gain_in_words(found, gain).removeprefix("+") for gain in (abs(verdict.estimate), low, high))
    interval = f"{as_confidence(verdict.confidence)} interval {from_to(*ends)}, {verdict.n} runs of each"
    if word is Word.HOLDS:
        return f"Yes: {ours} beats {theirs} {on} by {size} ({interval})."
    if word is Word.FAILS:
        return f"No: {theirs} beats {ours} {on} by {size} ({interval})."
    ahead, behind = (ours, theirs) if sign > 0 else (theirs, ours)
    start = f"Open: {ahead} is ahead of {behind} {on} by {size}, but the other order is possible, too ({interval})"
    return f"{start}{_to_decide(found)}."


def name_sides(found: Versus) -> tuple[str, str]:
    """Return both titles, with their experiments if no experiment trains both."""
    if found.is_paired:
        return found.a.arm.title, found.b.arm.title
    return tuple(f"{side.arm.title} ({side.experiment.title})" for side in (found.a, found.b))  # type: ignore[return-value]


def gain_in_words(found: Versus, gain: float) -> str:
    """Write a gain in the unit of the metric, fractions in percentage points."""
    if found.metric.unit == "fraction":
        return points(gain)
    return value_with(found.verdict.low, found.verdict.high, found.metric.unit)(gain)


def _to_decide(found: Versus) -> str:
    """State the cost to decide, as "; 10 trainings (0.63 hours of one GPU) tell them apart …"."""
    if not found.is_paired or not found.missing:
        return ""
    said = (
        f"; {found.missing} trainings{f' ({hours})' if (hours := hours_in_words(found.hours)) else ''} tell them apart"
    )
    if found.least is None:
        return said
    return f"{said} with a chance of 80 % if they differ by {gain_in_words(found, found.least).removeprefix('+')}"


def hours_in_words(hours: Mapping[str, float] | None) -> str:
    """Format a cost, as "0.63 hours of one GPU or 170 hours of two CPU cores"; "" without an estimate."""
    hours = hours or {}
    return " or ".join(
        f"{plain(float(f'{hours[kind]:.2g}'))} hours of {name}" for kind, name in DEVICES.items() if kind in hours
    )


def describe_images(found: Versus) -> str:
    """Describe the paired test of the networks, image by image; "" without networks."""
    pairs, (ours, theirs) = found.images, name_sides(found)
    if not pairs:
        return ""
    first, short = pairs[0], "of shortened runs, " if found.cut else ""
    if len(pairs) == 1:
        p = "p < 0.0001" if first.p_value < 1e-4 else f"p = {first.p_value:.2g}"
        return (
            f"Of {first.images:,} test images, {ours} alone is right on {first.a_alone:,} and {theirs} alone on "
            f"{first.b_alone:,} ({short}{p}, McNemar’s exact test of these two networks)."
        )
    sure = [pair.a_alone - pair.b_alone for pair in pairs if pair.p_value < SURE]
    ahead, behind = sum(lead > 0 for lead in sure), sum(lead < 0 for lead in sure)
    return (
        f"Of {len(pairs)} pairs of networks, {ours} is right on more images in {ahead} and {theirs} in {behind} "
        f"({short}McNemar’s exact test, p < {SURE:g} each); the others can’t be told apart."
    )


def draw_gain(found: Versus) -> Interval | None:
    """Draw the gain with its interval against zero; None without an interval."""
    verdict = found.verdict
    if verdict.estimate is None or verdict.low is None or verdict.high is None:
        return None
    ours, theirs = name_sides(found)
    return Interval(
        ours=verdict.estimate,
        low=verdict.low,
        high=verdict.high,
        write=points if found.metric.unit == "fraction" else value_in(found.metric.unit),
        side=COLOURS[headline_of(verdict.status)],
        text=f"The gain of {ours} over {theirs} with its interval, right of zero if {ours} is better",
        has_zero=True,
    )


def facts_of(found: Versus) -> list[tuple[str, str]]:
    """List the rows below the answer: each model's number, the power of the plan, and the missing runs."""
    write = value_in(found.metric.unit)
    rows = []
    for title, side in zip(name_sides(found), (found.a, found.b), strict=True):
        reached = "no result yet" if side.value is None else f"{write(side.value)} (n = {side.n})"
        rows.append((title, f"{reached}, {side.trained} of {side.planned} runs at full length"))
    if found.least is not None:
        least = gain_in_words(found, found.least).removeprefix("+")
        detects = f"{found.a.planned} runs of each detect {least} or more with a chance of 80 %"
        rows.append(("power", f"{detects} (spread: {found.spread_source})"))
    if found.missing and (hours := hours_in_words(found.hours)):
        rows.append(("cost to decide", f"{found.missing} trainings, {hours}"))
    return rows
