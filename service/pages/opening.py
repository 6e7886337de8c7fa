"""Text of the front page: cards, an answer to each paper's question, what planned runs can show, and does A beat B?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.comparing import Answer
from service.pages.charts import Interval
from service.pages.formats import as_confidence, from_to, listed, plain, points, value_in, value_with
from service.pages.wording import COLOURS, headline_of, word_of
from stages.results import (
    FOR_THE_PAPER,
    ClaimDeviation,
    Counts,
    DeviationRow,
    ExperimentComparison,
    JudgedClaim,
    Outlook,
    Question,
    Status,
    Tally,
    VerdictRow,
    Versus,
    Word,
)

Numbers = TypeVar("Numbers", Counts, Outlook)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A number of claims on the front page; `parts` are (number, how they were decided)."""

    word: Word
    title: str
    number: int
    parts: tuple[tuple[int, str], ...]


def cards_of(tallies: Sequence[Tally]) -> list[Card]:
    """Return a card for each word of verdicts."""

    def by_ground_of(word: Word) -> list[tuple[int, str]]:
        return [(counts.by_word[word], how.lower()) for how, counts in by_ground(tallies)]

    def card(word: Word, plural: str, parts: list[tuple[int, str]]) -> Card:
        number = sum(each for each, _ in parts)
        title = word if number == 1 else plural
        return Card(word=word, title=title, number=number, parts=tuple(part for part in parts if part[0]))

    undecided, by_reading = (sum(getattr(tally, name) for tally in tallies) for name in ("open", "under_reading"))
    reasons = [(undecided, "not decided by the runs"), (by_reading, "that depend on how the text is read")]
    return [
        card(Word.HOLDS, "hold", by_ground_of(Word.HOLDS)),
        card(Word.FAILS, "fail", by_ground_of(Word.FAILS)),
        card(Word.OPEN, "open", reasons),
        card(Word.NOT_TESTED, "not tested yet", by_ground_of(Word.NOT_TESTED)),
    ]


def answer(rows: Sequence[JudgedClaim], comparisons: Mapping[str, ExperimentComparison]) -> str:
    """Answer a paper's question in a few words, from the claims that answer it.

    `comparisons` are the paper's, by experiment.
    """
    words = Counter(word_of(row) for row in rows)
    holds, fails, left = words[Word.HOLDS], words[Word.FAILS], words[Word.OPEN] + words[Word.NOT_TESTED]
    if not rows or words[Word.NOT_TESTED] == len(rows):
        return f"Not known yet: {''.join(_progress(rows, comparisons))}."
    if not left:
        return "Yes." if not fails else "No." if not holds else f"In part: {holds} of {len(rows)} claims hold."
    if words[Word.OPEN] == len(rows):
        readings = sum(row.verdict.status == Status.HOLDS_UNDER_READING for row in rows)
        return f"It depends on the reading, as {readings} of {len(rows)} claims do." if readings else "Open."
    has_one_answer = not words[Word.OPEN] and not (holds and fails)
    start = ("Yes so far" if holds else "No so far") if has_one_answer else "In part"
    verbs = {Word.HOLDS: ("holds", "hold"), Word.FAILS: ("fails", "fail")}
    verbs |= {word: (f"is {word}", f"are {word}") for word in (Word.OPEN, Word.NOT_TESTED)}
    parts = [f"{words[word]} {verb[words[word] > 1]}" for word, verb in verbs.items() if words[word]]
    known = f"of {len(rows)} claims, {listed(parts)}"
    if words[Word.NOT_TESTED] > holds + fails + words[Word.OPEN]:
        _, looks = _progress(rows, comparisons)
        return f"Not known yet: {known}{looks}."
    return f"{start}: {known}."


def _progress(rows: Sequence[JudgedClaim], comparisons: Mapping[str, ExperimentComparison]) -> tuple[str, str]:
    """Return "0 of 12 models trained in full", and "; short runs agree in 5 of 6", empty without short runs."""
    models: dict[tuple[str, str], bool] = {}
    looks: list[bool] = []
    for row in rows:
        for comparison in (comparisons[name] for name in row.experiments):
            arms = {arm.arm: arm for arm in comparison.arms if arm.arm in (row.claim.arm, row.claim.baseline_arm)}
            is_full = comparison.is_real and not comparison.cut
            models |= {(comparison.experiment, name): is_full and bool(arm.run_keys) for name, arm in arms.items()}
            ours = [arms[name].ours for name in (row.claim.arm, row.claim.baseline_arm) if name in arms]
            if comparison.cut and len(ours) == 2 and ours[0] and ours[1] and row.claim.facts.is_order:
                ahead = ours[0].value - ours[1].value
                looks.append(ahead > 0 if comparison.metric.better == "higher" else ahead < 0)
    progress = f"{sum(models.values())} of {len(models)} models trained in full"
    if not looks:
        return progress, ""
    agree = sum(looks)
    many = "" if agree == len(looks) else f" in {agree} of {len(looks)}"
    return progress, f"; short runs agree{many}" if agree else "; short runs disagree"


def holds_in_its_order_only(verdict: VerdictRow) -> bool:
    """Return True if a difference has the printed sign but its size isn't known to be as printed."""
    is_for = verdict.status in FOR_THE_PAPER
    return is_for and bool(verdict.size) and (verdict.size or {})["status"] not in FOR_THE_PAPER


def prospects(outlook: Outlook) -> str:
    """Count the waiting claims that the planned runs can't confirm, or only in part; empty if they can confirm all."""
    parts = [
        f"will almost never confirm {outlook.hopeless} (a chance below 5 %)" if outlook.hopeless else "",
        f"have less than an even chance of confirming {outlook.unlikely}" if outlook.unlikely else "",
        f"can confirm only the order, not the size, of {outlook.order_only}" if outlook.order_only else "",
    ]
    chances = listed([part for part in parts if part])
    if not chances:
        return ""
    said = f"Of the untested claims, the planned runs {chances}, even if the paper is right and our set-up matches."
    if outlook.assumed:
        said += f" For {outlook.assumed}, this rests on an assumed spread between runs."
    return said


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def by_ground(tallies: Sequence[Tally]) -> list[tuple[str, Counts]]:
    """Return the counts of claims that need training, are computed, and are counted in the data."""
    return [
        ("By training", add(Counts, [tally.trained for tally in tallies])),
        ("By computing", add(Counts, [tally.computed for tally in tallies])),
        ("By counting in the data", add(Counts, [tally.data for tally in tallies])),
    ]


def add(kind: type[Numbers], items: Sequence[Numbers]) -> Numbers:
    """Add up counts or outlooks, field by field."""
    return kind(**{field.name: sum(getattr(item, field.name) for item in items) for field in fields(kind)})


def describe_discoveries(tally: Tally) -> str:
    """Count the signs decided by training that survive a false discovery rate of 5 %; "" if none was tested."""
    found = tally.discoveries
    if not found.tested:
        return ""
    apart = ""
    if found.without:
        apart = f" {_count(found.without, 'other claim is', 'other claims are')} decided without such a test."
    return (
        f"Training tested the sign of a gain in {_count(found.tested, 'claim', 'claims')} and decided {found.decided}; "
        f"{found.survive} of these survive{'s' if found.survive == 1 else ''} a false discovery rate of 5 % over all "
        f"tested claims.{apart}"
    )


def describe_open(tally: Tally) -> str:
    """Count the decided claims among those that need trained models; "" if none needs any."""
    trained = tally.trained
    if not trained.decidable:
        return ""
    if trained.decided:
        are = _count(trained.decided, "is", "are")
        return f"Of the {trained.decidable} claims that need trained models, {are} decided."
    none = f"None of the {trained.decidable} claims that need trained models is decided yet"
    if trained.decidable == 1:
        none = "The one claim that needs trained models is not decided yet"
    return f"{none}, so we can’t say yet how good the models are."


def first_places(
    session: Session, deviations: Iterable[DeviationRow], groups: Mapping[str, Sequence[JudgedClaim]]
) -> dict[str, list[DeviationRow]]:
    """Return by place the deviations that explain something, each at the first place with a claim that it affects."""
    found: dict[str, list[DeviationRow]] = {place: [] for place in groups}
    for deviation in deviations:
        if deviation.explains is None:
            continue
        touched = set(session.scalars(select(ClaimDeviation.claim).where(ClaimDeviation.deviation == deviation.id)))
        first = next((place for place, rows in groups.items() if touched & {row.claim.id for row in rows}), None)
        if first is not None:
            found[first].append(deviation)
    return found


def describe_tests(
    deviations: Iterable[DeviationRow],
    arms: Mapping[tuple[str, str], str],
    compare: Answer,
) -> dict[str, str]:
    """Describe by deviation what the model that tests it reached, or that it was not trained yet.

    `arms` are the titles of each (experiment, arm).
    """
    sentences = {}
    for deviation in deviations:
        if deviation.tested_by is None:
            continue
        comparisons = compare(Question(paper=deviation.paper))
        title = next(
            (
                arms[item.experiment, deviation.tested_by]
                for item in comparisons
                if (item.experiment, deviation.tested_by) in arms
            ),
            deviation.tested_by,
        )
        reached = [
            f"{value_in(item.metric.unit)(arm.ours.value)} in {item.title}"
            for item in comparisons
            for arm in item.arms
            if arm.arm == deviation.tested_by and arm.ours is not None
        ]
        said = f"reached {'; '.join(reached)}" if reached else "has not been trained yet"
        sentences[deviation.id] = f"{title} {said}."
    return sentences


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
