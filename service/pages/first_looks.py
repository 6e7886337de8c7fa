"""Numbers of shortened runs on real data, beside claims that nothing has decided yet: they decide nothing either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from service.database.comparing import Question
from service.pages.formats import listed
from stages.results import METRICS, Claim, ExperimentComparison, JudgedClaim, Status

GAINS_OF_TWO = ("order", "difference", "gap")
UNDECIDED = (Status.NOT_TESTED, Status.AGREES, Status.DISAGREES)


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """The number that a shortened run gives where a claim has its own, in the claim's unit; `cut` says how short."""

    value: float
    n: int
    cut: str


def first_looks(
    paper: str, judged: Iterable[JudgedClaim], compare: Callable[[Question], list[ExperimentComparison]]
) -> dict[str, FirstLook]:
    """`{claim: first look}` of those claims of the paper that have no verdict and no number of ours."""
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
        look = _look(row.claim, comparison) if comparison is not None else None
        if look is not None:
            found[row.claim.id] = look
    return found


def describe_looks(
    looks: Mapping[str, FirstLook], judged: Iterable[JudgedClaim], datasets: Mapping[str, str]
) -> list[str]:
    """How short the runs behind the first looks are, each way once, with the titles of their data sets."""
    found: dict[str, dict[str, None]] = {}
    for row in judged:
        if row.claim.id in looks:
            found.setdefault(looks[row.claim.id].cut, {}).update(dict.fromkeys(datasets[name] for name in row.datasets))
    return [f"{listed(list(titles))}: {cut}" for cut, titles in found.items()]


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
    who = f"{titles[claim.arm or '']} takes {ours:.2f} times as long as {titles[against]}"
    return (
        f"Here {who}{printed}. Ours: {mine.latency_method}. On other hardware that may differ, so it decides nothing."
    )


def _look(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """The model's own number, or its gain over the other one with better positive; None of full-length runs."""
    if not (comparison.is_real and comparison.cut) or claim.unit != comparison.metric.unit:
        return None
    ours = {arm.arm: arm.ours for arm in comparison.arms}
    mine, theirs = ours.get(claim.arm or ""), ours.get(claim.baseline_arm or "")
    if mine is None:
        return None
    if claim.kind == "value":
        return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut)
    if claim.kind not in GAINS_OF_TWO or theirs is None:
        return None
    gain = mine.value - theirs.value if comparison.metric.better == "higher" else theirs.value - mine.value
    return FirstLook(value=gain, n=min(mine.n, theirs.n), cut=comparison.cut)
