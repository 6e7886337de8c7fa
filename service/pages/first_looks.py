"""Numbers of shortened runs next to claims that nothing has decided yet: they don't either."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from service.database.comparing import Question
from service.pages.formats import listed, percent, value_in
from service.pages.models import at_chance, tell_chance
from stages.results import METRICS, Claim, Dataset, ExperimentComparison, JudgedClaim, Status

UNDECIDED = (Status.NOT_TESTED, Status.AGREES, Status.DISAGREES, Status.SHOWN)


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """The number that a shortened run gives where a claim has its own, in the claim's unit; `cut` says how short.

    There is none of a difference between two models, and none of a time: neither a shortened run nor another device
    answers those.  Of a quality without a number `sentence` is what all models of its experiment reach.  `text`: the
    number as written.  `chance`: that the claim's model is at chance, in a sentence.
    """

    value: float
    n: int
    cut: str
    text: str | None = None
    sentence: str | None = None
    chance: str | None = None


def first_looks(
    paper: str,
    judged: Iterable[JudgedClaim],
    compare: Callable[[Question], list[ExperimentComparison]],
    datasets: Iterable[Dataset],
) -> dict[str, FirstLook]:
    """`{claim: first look}` of those claims of the paper that have no verdict and no number of ours."""
    known = {dataset.name: dataset for dataset in datasets}
    waiting = [
        row
        for row in judged
        if row.verdict.status in UNDECIDED and row.verdict.ours is None and len(row.experiments) == 1
    ]
    compared = {
        (metric, comparison.experiment): comparison
        for metric in dict.fromkeys(row.claim.metric for row in waiting)
        if metric in METRICS
        for comparison in compare(Question(paper=paper, metric=metric))
    }
    found = {}
    for row in waiting:
        comparison = compared.get((row.claim.metric, row.experiments[0]))
        find = _look_at_all if row.claim.kind == "qualitative" else _look
        look = find(row.claim, comparison) if comparison is not None else None
        if comparison is not None and look is not None:
            found[row.claim.id] = _beside_chance(look, row.claim, comparison, known[comparison.dataset])
    return found


def _beside_chance(look: FirstLook, claim: Claim, comparison: ExperimentComparison, dataset: Dataset) -> FirstLook:
    """The first look, said to be at chance if it is."""
    if claim.arm not in at_chance(comparison, dataset):
        return look
    told = " ".join(tell_chance(comparison, dataset, (claim.arm,)))
    guessed = percent(look.value) if look.text is None else look.text
    return replace(look, text=f"{guessed}, no better than guessing,", chance=told)


def describe_looks(
    looks: Mapping[str, FirstLook], judged: Iterable[JudgedClaim], datasets: Mapping[str, str]
) -> list[str]:
    """How short the runs behind the first looks are, each way once, with the titles of their data sets."""
    found: dict[str, dict[str, None]] = {}
    for row in judged:
        look = looks.get(row.claim.id)
        if look is not None:
            found.setdefault(look.cut, {}).update(dict.fromkeys(datasets[name] for name in row.datasets))
    return [f"{listed(list(titles))}: {cut}" for cut, titles in found.items()]


def told_chances(judged: Iterable[JudgedClaim], looks: Mapping[str, FirstLook]) -> list[str]:
    """Which models of these claims are at chance, each sentence once."""
    told = (looks[row.claim.id].chance for row in judged if row.claim.id in looks)
    return list(dict.fromkeys(filter(None, told)))


def timed_here(
    record: JudgedClaim, titles: Mapping[str, str], compare: Callable[[Question], list[ExperimentComparison]]
) -> str | None:
    """How long the claim's model takes beside its baseline, by our stopwatch and by the paper's own times.

    None of a claim on anything else, and where the two were not timed alike.
    """
    claim = record.claim
    if claim.metric != "inference_time" or len(record.experiments) != 1:
        return None
    (comparison,) = (
        item
        for item in compare(Question(dataset=record.datasets[0], metric=claim.metric))
        if item.experiment == record.experiments[0]
    )
    costs = {arm.arm: arm.cost for arm in comparison.arms}
    mine = costs[claim.arm or ""]
    against = claim.baseline_arm or mine.latency_baseline or ""
    theirs = costs.get(against)
    if theirs is None or against == claim.arm or not (mine.latency_ratio and theirs.latency_ratio):
        return None
    ours = mine.latency_ratio / theirs.latency_ratio
    printed = (
        f"; by the paper’s own times {mine.printed_latency_ratio / theirs.printed_latency_ratio:.2f} times"
        if mine.printed_latency_ratio and theirs.printed_latency_ratio
        else ""
    )
    who = f"{titles[claim.arm or '']} takes about {ours:.2g} times as long as {titles[against]}"
    method = (
        f"{mine.latency_method}, in {precision}" if (precision := precision_of(comparison)) else mine.latency_method
    )
    return f"Here {who}{printed}. Ours: {method}. On other hardware that may differ, so it decides nothing."


def _look(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """The model's own number; None of full-length runs."""
    mine = next((arm.ours for arm in comparison.arms if arm.arm == claim.arm), None)
    if not (comparison.is_real and comparison.cut) or claim.unit != comparison.metric.unit or mine is None:
        return None
    return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut) if claim.kind == "value" else None


def _look_at_all(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """List the results of all models of the experiment, the best first; None if the runs have full length.

    The claim's model is never told without the best one.
    """
    known = {arm.arm: (arm.title, arm.ours) for arm in comparison.arms if arm.ours is not None}
    if not (comparison.is_real and comparison.cut) or claim.arm not in known:
        return None
    write, mine = value_in(comparison.metric.unit), known[claim.arm][1]
    is_lower = comparison.metric.better == "lower"
    ordered = sorted(known.values(), key=lambda item: item[1].value, reverse=not is_lower)
    said = "; ".join(f"{title} {write(ours.value)}" for title, ours in ordered)
    sentence = f"{comparison.metric.title} in shortened runs ({comparison.cut}), the best first: {said}."
    title, best = ordered[0]
    text = write(mine.value) + ("" if best is mine else f" ({title} {write(best.value)})")
    return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut, text=text, sentence=sentence)


def precision_of(comparison: ExperimentComparison) -> str | None:
    """The numbers that shortened runs take instead of the printed ones, as bfloat16; None of the printed ones."""
    found = re.search(r"(\w+) instead of \w+", comparison.cut or "")
    return found[1] if found else None
