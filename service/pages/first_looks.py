"""Numbers of shortened runs, or of another device, beside claims that nothing has decided yet: they don't either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from service.database.comparing import Question
from service.pages.amounts import in_its_way
from service.pages.chance import at_chance, tell_chance
from service.pages.formats import listed, percent, value_in
from stages.results import METRICS, Claim, Dataset, ExperimentComparison, JudgedClaim, Status

GAINS_OF_TWO = ("order", "difference", "gap")
UNDECIDED = (Status.NOT_TESTED, Status.AGREES, Status.DISAGREES, Status.OTHER_HARDWARE, Status.SHOWN)


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """The number that a shortened run gives where a claim has its own, in the claim's unit; `cut` says how short.

    Of a time, which no length of training changes, `device` is ours and `sentence` has both ratios.  Of a quality
    without a number `sentence` is what all models of its experiment reach.  `text`: the number as written.  `chance`:
    that a model of the claim is at chance, in a sentence; a difference with it is not told.
    """

    value: float
    n: int
    cut: str | None = None
    device: str | None = None
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
        look = _finder(row)(row.claim, comparison) if comparison is not None else None
        if comparison is not None and look is not None:
            found[row.claim.id] = _beside_chance(look, row.claim, comparison, known[comparison.dataset])
    return found


def _beside_chance(look: FirstLook, claim: Claim, comparison: ExperimentComparison, dataset: Dataset) -> FirstLook:
    """The first look with what is at chance: of a difference, in place of its number."""
    lost = at_chance(comparison, dataset)
    named = [lost[name].title for name in (claim.arm, claim.baseline_arm) if name in lost]
    if not named or look.device:
        return look
    told = " ".join(tell_chance(comparison, dataset, (claim.arm, claim.baseline_arm)))
    if claim.kind in GAINS_OF_TWO:
        return replace(look, text=f"no difference told: {listed(named)} learnt nothing", chance=told)
    guessed = percent(look.value) if look.text is None else look.text
    return replace(look, text=f"{guessed}, no better than guessing,", chance=told)


def _finder(row: JudgedClaim) -> Callable[[Claim, ExperimentComparison], FirstLook | None]:
    if row.verdict.status == Status.OTHER_HARDWARE:
        return _look_at_times
    return _look_at_all if row.claim.kind == "qualitative" else _look


def describe_looks(
    looks: Mapping[str, FirstLook], judged: Iterable[JudgedClaim], datasets: Mapping[str, str]
) -> list[str]:
    """How short the runs behind the first looks are, each way once, with the titles of their data sets."""
    found: dict[str, dict[str, None]] = {}
    for row in judged:
        look = looks.get(row.claim.id)
        if look is not None and look.cut:
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


def _look_at_times(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """The relative gain in time over another model on our device, where both were timed alike."""
    arms = {arm.arm: arm for arm in comparison.arms}
    mine, theirs = (arms.get(name or "") for name in (claim.arm, claim.baseline_arm))
    if claim.unit != "relative gain" or claim.better != "lower" or mine is None or theirs is None:
        return None
    ours = _over(mine.ratio.of_ours if mine.ratio else None, theirs.ratio.of_ours if theirs.ratio else None)
    if ours is None or mine.ours is None or not comparison.is_real:
        return None
    printed = _over(*(arm.printed.value if arm.printed else None for arm in (mine, theirs)))
    sentence = f"On our {mine.cost.latency_device} {mine.title} takes {ours:.2f} times as long as {theirs.title}"
    sentence += f"; by the paper’s own times {printed:.2f} times." if printed is not None else "."
    text = in_its_way(1 / ours - 1, claim, lambda number: f"{number:.0f}")
    return FirstLook(value=1 / ours - 1, n=mine.ours.n, device=mine.cost.latency_device, text=text, sentence=sentence)


def _look_at_all(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """What every model of the experiment reaches, the best first; None of full-length runs."""
    known = {arm.arm: (arm.title, arm.ours) for arm in comparison.arms if arm.ours is not None}
    if not (comparison.is_real and comparison.cut) or claim.arm not in known:
        return None
    write, mine = value_in(comparison.metric.unit), known[claim.arm][1]
    is_lower = comparison.metric.better == "lower"
    ordered = sorted(known.values(), key=lambda item: item[1].value, reverse=not is_lower)
    said = "; ".join(f"{title} {write(ours.value)}" for title, ours in ordered)
    sentence = f"{comparison.metric.title} in shortened runs ({comparison.cut}), the best first: {said}."
    return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut, text=write(mine.value), sentence=sentence)


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None
