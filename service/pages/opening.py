"""What came out of all papers in a few sentences: what training decided first, then computing, then facts of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.comparing import Question
from service.pages.formats import listed, value_in
from service.pages.legend import is_part
from stages.results import (
    AGAINST_THE_PAPER,
    FOR_THE_PAPER,
    METRICS,
    ClaimDeviation,
    Counts,
    Deviation,
    ExperimentComparison,
    JudgedClaim,
    Outlook,
    Tally,
    VerdictRow,
    ground_of,
)

MOST_NAMED = 6
"""Decided claims that the front page names; a longer list is a page of its own."""


@dataclass(frozen=True)
class Ground:
    """What decides claims, how many over all papers, and what the others wait for, as a label."""

    what: str
    counts: Counts
    waits: str
    is_of_data: bool = False


@dataclass(frozen=True)
class Opening:
    """The front page's sentences: `whole` is all in one, `first` of what training decided, `then` of what needed none.

    `named` are claims that training decided, first those that do not hold, `unnamed` how many more; `waiting` is of
    what it didn't, `planned` of what the planned runs can show of that.
    """

    whole: str
    first: str
    waiting: str
    planned: str
    then: str
    named: tuple[JudgedClaim, ...]
    unnamed: int


def open_with(tallies: Sequence[Tally], decided: Sequence[JudgedClaim], datasets: Mapping[str, str]) -> Opening:
    """Sum up all papers; `decided` are claims that hold or don't, `datasets` the titles of the data sets."""
    trained, computed, data = (ground.counts for ground in by_ground(tallies))
    by_training = [row for row in decided if ground_of(row.claim, row.verdict) == "trained"]
    left = []
    if trained.open:
        left.append(f"{_count(trained.open, 'more is', 'more are')} open: their runs don't decide between the answers.")
    if waiting := trained.waiting:
        left.append(f"{_count(waiting, 'waits', 'wait')} for models trained as long as the paper’s.")
    then = [_decided("Computing, without training, has", computed), _decided("Counting in the data has", data)]
    if computed.waiting:
        then.append(f"{_count(computed.waiting, 'waits', 'wait')} to be computed, which make repro does.")
    if data.waiting:
        then.append(f"{_count(data.waiting, 'waits', 'wait')} to be counted.")
    then.append(_others(tallies))
    is_against = [row for row in by_training if row.verdict.status in AGAINST_THE_PAPER]
    named = [*is_against, *(row for row in by_training if row not in is_against)]
    return Opening(
        whole=_sum_up(tallies, trained, computed, data),
        first=_trained(trained, by_training, datasets),
        waiting=" ".join(left),
        planned=prospects(sum_outlooks([tally.outlook for tally in tallies])) if trained.waiting else "",
        then=" ".join(filter(None, then)),
        named=tuple(named[:MOST_NAMED]),
        unnamed=len(named[MOST_NAMED:]),
    )


def _sum_up(tallies: Sequence[Tally], trained: Counts, computed: Counts, data: Counts) -> str:
    """What this is and how far it is."""
    papers, claims = len(tallies), sum(tally.claims for tally in tallies)
    make = f"{papers} machine-learning papers make" if papers != 1 else "A machine-learning paper makes"
    by = (("training the models again", trained), ("computing", computed), ("counting in the data", data))
    decided = listed([f"{counts.decided or 'none'} by {how}" for how, counts in by if counts.decidable])
    left = trained.waiting + trained.open
    waits = f"; {_count(left, 'still needs', 'still need')} training" if left else ""
    return f"{make} {_count(claims, 'claim', 'claims')}." + (f" Decided so far: {decided}{waits}." if decided else "")


def _trained(counts: Counts, decided: Sequence[JudgedClaim], datasets: Mapping[str, str]) -> str:
    if not counts.decidable:
        return "No claim needs trained models."
    if not counts.decided:
        return f"None of the {counts.decidable} claims that need trained models is decided yet."
    names = list(dict.fromkeys(datasets[name] for row in decided for name in row.datasets))
    where = (
        f", all on {names[0]}" if len(names) == 1 and counts.decided > 1 else f", on {listed(names)}" if names else ""
    )
    said = f"Of the {counts.decidable} claims that need trained models, "
    sizes = [row.verdict.size["status"] for row in decided if holds_in_its_order_only(row.verdict) and row.verdict.size]
    wrong = sum(status in AGAINST_THE_PAPER for status in sizes)
    said += f"{_count(counts.decided, 'is', 'are')} decided{where}: "
    said += f"{outcome(counts, open_sizes=len(sizes) - wrong, wrong_sizes=wrong)}.{_limits(decided)}"
    if not any(row.claim.metric in METRICS and METRICS[row.claim.metric].unit == "fraction" for row in decided):
        said += " No accuracy and no error rate is among them."
    return said


def _limits(decided: Sequence[JudgedClaim]) -> str:
    """How many of the decided claims rest on part of a grid, and how many are exploratory."""
    models = {
        (scope["models"], scope["planned_models"])
        for row in decided
        if (scope := row.verdict.scope) and scope["models"]
    }
    of = ""
    if len(models) == 1:
        ran, planned = models.pop()
        of = f" ({ran} of its {planned} models)"
    limits: dict[str, int] = {
        f"on part of a grid{of}": sum(is_part(row.verdict) for row in decided),
        "on rules not known to be registered before training (exploratory)": sum(
            row.verdict.mark not in ("", "confirmatory") for row in decided
        ),
    }
    by_number: dict[int, list[str]] = {}
    for limit, number in limits.items():
        by_number.setdefault(number, []).append(limit)
    return "".join(f" {_those(number, len(decided))} {listed(named)}." for number, named in by_number.items() if number)


def _those(number: int, of: int) -> str:
    """All 4 rest; 2 of these rest; it rests"""
    if number == of:
        return f"All {of} rest" if of > 1 else "It rests"
    return f"{number} of these {'rests' if number == 1 else 'rest'}"


def holds_in_its_order_only(verdict: VerdictRow) -> bool:
    """True if a difference is on the printed side and its size isn't known to be as printed."""
    is_for = verdict.status in FOR_THE_PAPER
    return is_for and bool(verdict.size) and (verdict.size or {})["status"] not in FOR_THE_PAPER


def prospects(outlook: Outlook) -> str:
    """How many waiting claims the planned runs can't confirm, or not whole; empty where they can confirm all."""
    parts = [
        f"will hardly confirm {outlook.hopeless} (a chance below 5 %)" if outlook.hopeless else "",
        f"have less than an even chance with {outlook.unlikely}" if outlook.unlikely else "",
        f"can confirm the order alone, not the size, of {outlook.order_only}" if outlook.order_only else "",
    ]
    told = listed([part for part in parts if part])
    if not told:
        return ""
    said = f"Of the waiting claims the planned runs {told}, even if the paper is right and our set-up is the paper’s."
    if outlook.assumed:
        said += f" For {outlook.assumed} this rests on an assumed spread of the runs, not a known one."
    return said


def sum_outlooks(outlooks: Sequence[Outlook]) -> Outlook:
    return Outlook(**{field.name: sum(getattr(item, field.name) for item in outlooks) for field in fields(Outlook)})


def _decided(what: str, counts: Counts) -> str:
    return f"{what} decided {counts.decided}: {outcome(counts)}." if counts.decided else ""


def outcome(counts: Counts, *, open_sizes: int = 0, wrong_sizes: int = 0) -> str:
    """As "50 hold, 10 hold only if their words are read in one way and 4 do not hold".

    Of those that hold, the size of the difference is still open with `open_sizes`, and not as printed with
    `wrong_sizes`.
    """
    read = "only if {} words are read in one way".format("its" if counts.under_reading == 1 else "their")
    sizes = [
        f"the size of {number} of them {said}" if counts.plainly > 1 else f"its size {said}"
        for number, said in ((open_sizes, "is still open"), (wrong_sizes, "is not as printed"))
        if number
    ]
    order = f" ({listed(sizes)})" if sizes else ""
    parts = [
        _count(counts.plainly, "holds", "hold") + order if counts.plainly else "",
        f"{_count(counts.under_reading, 'holds', 'hold')} {read}" if counts.under_reading else "",
        _count(counts.against, "does not hold", "do not hold") if counts.against else "",
    ]
    return listed([part for part in parts if part])


def _others(tallies: Sequence[Tally]) -> str:
    """The number of all claims, and why the rest can't be decided."""
    claims, decidable = (sum(getattr(tally, name) for tally in tallies) for name in ("claims", "decidable"))
    settings, untestable = (sum(getattr(tally, name) for tally in tallies) for name in ("settings", "untestable"))
    papers = f"the {len(tallies)} papers make" if len(tallies) != 1 else "the paper makes"
    said = f"In all {papers} {_count(claims, 'claim', 'claims')}"
    repeated = claims - decidable - settings - untestable
    parts = [
        _count(settings, "is a setting of a training", "are settings of a training") if settings else "",
        _count(repeated, "repeats an error", "repeat an error") if repeated else "",
        _count(untestable, "can’t be tested here", "can’t be tested here") if untestable else "",
    ]
    rest = [part for part in parts if part]
    return f"{said}; of the others {listed(rest)}." if rest else f"{said}."


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def by_ground(tallies: Sequence[Tally]) -> list[Ground]:
    """Training, computing and counting, in this order."""
    return [
        Ground("Needs trained models", add([tally.trained for tally in tallies]), "waiting for full-length training"),
        Ground("Computed without training", add([tally.computed for tally in tallies]), "not computed here yet"),
        Ground("Facts of the data sets", add([tally.data for tally in tallies]), "not counted here yet", True),
    ]


def add(counts: Sequence[Counts]) -> Counts:
    return Counts(**{field.name: sum(getattr(item, field.name) for item in counts) for field in fields(Counts)})


def tell_discoveries(tally: Tally) -> str:
    """How many of the signs that training decided survive a false discovery rate of 5 %; "" where none was tested."""
    found = tally.discoveries
    if not found.tested:
        return ""
    apart = ""
    if found.without:
        apart = f" {_count(found.without, 'other claim is', 'other claims are')} decided without such a test."
    return (
        f"Training tested the sign of a gain in {_count(found.tested, 'claim', 'claims')} and decided {found.decided}; "
        f"{found.survive} of these survive{'s' if found.survive == 1 else ''} a false discovery rate of 5 %, over all "
        f"that were tested.{apart}"
    )


def tell_open(tally: Tally) -> str:
    """How many of the claims that need trained models are decided; "" where none needs any."""
    trained = tally.trained
    if not trained.decidable:
        return ""
    if trained.decided:
        are = _count(trained.decided, "is", "are")
        return f"Of the {trained.decidable} claims that need trained models, {are} decided."
    none = f"None of the {trained.decidable} claims that need trained models is decided yet"
    if trained.decidable == 1:
        none = "The one claim that needs trained models is not decided yet"
    return f"{none}: how good the models are, nothing here can say."


def first_places(
    session: Session, deviations: Iterable[Deviation], groups: Mapping[str, Sequence[JudgedClaim]]
) -> dict[str, list[Deviation]]:
    """`{place: deviations}`: each that explains something, at the first place with a claim that it touches."""
    found: dict[str, list[Deviation]] = {place: [] for place in groups}
    for deviation in deviations:
        if deviation.explains is None:
            continue
        touched = set(session.scalars(select(ClaimDeviation.claim).where(ClaimDeviation.deviation == deviation.id)))
        first = next((place for place, rows in groups.items() if touched & {row.claim.id for row in rows}), None)
        if first is not None:
            found[first].append(deviation)
    return found


def tell_tests(
    deviations: Iterable[Deviation],
    arms: Mapping[tuple[str, str], str],
    compare: Callable[[Question], list[ExperimentComparison]],
) -> dict[str, str]:
    """`{deviation: sentence}`: what the model that tests it reached, or that it was not trained yet.

    `arms` are the titles of each (experiment, arm).
    """
    told = {}
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
        told[deviation.id] = f"{title} reached {'; '.join(reached)}." if reached else f"{title} was not trained yet."
    return told
