"""Sentences about an experiment's models: chance-level results, training recipes and timing conditions."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.database.comparing import Answer, ComparedModel, Question
from service.pages.formats import duration, exact, listed, percent, value_in
from stages.results import (
    METRICS,
    ArmComparison,
    Claim,
    Dataset,
    ExperimentComparison,
    ExperimentRow,
    JudgedClaim,
    Status,
)

ERRORS = 3.0
"""Standard errors (over test images) above chance within which an accuracy shows no learning."""
ACCURACIES = ("accuracy", "best_epoch_accuracy")


def at_chance(comparison: ExperimentComparison, dataset: Dataset) -> dict[str, ArmComparison]:
    """Return the arms whose accuracy on real data is indistinguishable from guessing, by name."""
    if dataset.kind != "images" or comparison.metric.name not in ACCURACIES or not comparison.is_real:
        return {}
    guess = 1 / dataset.classes
    most = guess + ERRORS * math.sqrt(guess * (1 - guess) / dataset.test_images)
    return {arm.arm: arm for arm in comparison.arms if arm.ours is not None and arm.ours.value <= most}


def describe_chance(
    comparison: ExperimentComparison, dataset: Dataset, among: Collection[str | None] = ()
) -> list[str]:
    """Return a sentence for each arm at chance, with variants that learn; `among`: only for these arms."""
    lost, sentences = at_chance(comparison, dataset), []
    for name, arm in lost.items():
        if arm.ours is None or (among and name not in among):
            continue
        others = [
            f"{other.title} ({percent(other.ours.value)})"
            for other in comparison.arms
            if other.ours is not None and other.arm.startswith(f"{name}-") and other.arm not in lost
        ]
        guess = percent(1 / dataset.classes, 0 if dataset.classes <= 100 else 1)
        elsewhere = f" With one thing changed it learns: {'; '.join(others)}." if others else ""
        sentences.append(
            f"{arm.title} is at chance: it is right on {percent(arm.ours.value)} of the test images, as many as "
            f"guessing among {dataset.classes} classes ({guess}). It learned nothing.{elsewhere}"
        )
    return sentences


APART = 1.5
"""Ratio of two times of one network above which a page mentions it."""


def describe_twins(entries: Sequence[ComparedModel]) -> list[str]:
    """Return a sentence for each network whose models in one experiment have very different times."""
    networks = defaultdict[tuple[object, ...], list[ComparedModel]](list)
    for entry in entries:
        cost = entry.arm.cost
        if cost.latency_seconds_per_sample is not None:
            networks[entry.comparison.experiment, cost.parameters, cost.flops_per_image].append(entry)
    sentences = []
    for twins in networks.values():
        times = [entry.arm.cost.latency_seconds_per_sample or 0.0 for entry in twins]
        if max(times) >= APART * min(times):
            names = listed([entry.arm.title for entry in twins])
            far = f"{duration(min(times), 2)} to {duration(max(times), 2)}"
            said = f"{names} are the same network, timed alike at different hours: {far}."
            sentences.append(f"{said} Smaller differences mean nothing.")
    return sentences


def threads(count: int | None) -> str:
    """Return "1 thread"; "" if unknown."""
    return "" if count is None else f"{count} thread{'s' if count != 1 else ''}"


def stopwatch_of(entry: ComparedModel) -> str:
    """Describe the conditions of a time, as "AMD EPYC, 2 threads, batches of 128, float32"; "" if not timed."""
    cost = entry.arm.cost
    if cost.latency_seconds_per_sample is None:
        return ""
    conditions = (cost.latency_device, threads(cost.latency_threads), f"batches of {cost.latency_batch_size}")
    return ", ".join([*filter(None, conditions), precision_of(entry.comparison) or "printed precision"])


def choose_stopwatch(entries: Iterable[ComparedModel], asked: str) -> tuple[str, list[str]]:
    """Return the requested timing conditions, else the most frequent ones, and all known conditions."""
    counts = Counter(filter(None, map(stopwatch_of, entries)))
    known = [name for name, _ in counts.most_common()]
    return asked if asked in counts else next(iter(known), ""), known


OPTIMISERS = {"adam": "Adam", "adamw": "AdamW", "cg_fac": "CG-FAC", "kfac": "K-FAC", "sgd": "SGD"}


def recipes(experiment: ExperimentRow) -> dict[str, str]:
    """Return `{arm: phrase}`, such as "ViT, trained by Adam at a rate of 0.001".

    The phrase names the network if several arms train the same one and their titles don't name it.
    """
    models = [arm.model for arm in experiment.arms]
    found = {}
    for arm in experiment.arms:
        network = str(arm.model["name"])
        is_unnamed = models.count(arm.model) > 1 and _plain(network) not in _plain(arm.title)
        settings = {**experiment.protocol, **arm.protocol}["optimizer"]
        name = settings.get("address") or settings["name"]
        optimiser = f"{OPTIMISERS.get(name, name)} at a rate of {exact(settings['lr'])}"
        if rest := settings.get("rest"):
            optimiser += f", elsewhere {OPTIMISERS.get(rest, rest)} at {exact(settings['rest_lr'])}"
        found[arm.name] = f"{network + ', ' if is_unnamed else ''}trained by {optimiser}"
    return found


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]", "", title.lower())


UNDECIDED = (Status.NOT_TESTED, Status.AGREES, Status.DISAGREES, Status.SHOWN)


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """Number from a shortened run for a claim, in the claim's unit; `cut` says how the run was shortened.

    Differences between models and times have none, because a shortened run or another device can't answer them.  For a
    claim without a number, `sentence` says what all models of its experiment reach.  `text` is the formatted number.
    `chance` is a sentence if the claim's model is at chance.
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
    compare: Answer,
    datasets: Iterable[Dataset],
) -> dict[str, FirstLook]:
    """Return `{claim: first look}` for the paper's claims without a verdict or a number of ours."""
    known = {dataset.name: dataset for dataset in datasets}
    undecided = (row for row in judged if row.verdict.status in UNDECIDED and row.verdict.ours is None)
    waiting = [row for row in undecided if len(row.experiments) == 1]
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
        if comparison is None or look is None:
            continue
        dataset = known[comparison.dataset]
        if row.claim.arm in at_chance(comparison, dataset):
            sentence = " ".join(describe_chance(comparison, dataset, (row.claim.arm,)))
            guessed = percent(look.value) if look.text is None else look.text
            look = replace(look, text=f"{guessed}, no better than guessing,", chance=sentence)
        found[row.claim.id] = look
    return found


def describe_looks(
    looks: Mapping[str, FirstLook], judged: Iterable[JudgedClaim], datasets: Mapping[str, str]
) -> list[str]:
    """Describe how the runs behind the first looks were shortened, with the titles of their data sets."""
    found: dict[str, dict[str, None]] = {}
    for row in judged:
        look = looks.get(row.claim.id)
        if look is not None:
            found.setdefault(look.cut, {}).update(dict.fromkeys(datasets[name] for name in row.datasets))
    return [f"{listed(list(titles))}: {cut}" for cut, titles in found.items()]


def list_chances(judged: Iterable[JudgedClaim], looks: Mapping[str, FirstLook]) -> list[str]:
    """Return the sentences about models at chance among these claims, without duplicates."""
    sentences = (looks[row.claim.id].chance for row in judged if row.claim.id in looks)
    return list(dict.fromkeys(filter(None, sentences)))


def timed_here(record: JudgedClaim, titles: Mapping[str, str], compare: Answer) -> str | None:
    """Compare the time of the claim's model with its baseline's, by our times and by the paper's.

    None if the claim isn't about times or the two were timed under different conditions.
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
    method = f"{mine.latency_method}{f', in {name}' if (name := precision_of(comparison)) else ''}"
    return f"Here {who}{printed}. Ours: {method}. Other hardware may differ, so this decides nothing."


def _look(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """Return the model's own number; None for full-length runs."""
    mine = next((arm.ours for arm in comparison.arms if arm.arm == claim.arm), None)
    if not (comparison.is_real and comparison.cut) or claim.unit != comparison.metric.unit or mine is None:
        return None
    return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut) if claim.facts.number == "model" else None


def _look_at_all(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """List the results of all models of the experiment, best first; None for full-length runs.

    The best model is always included.
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
    """Return the precision of shortened runs if it isn't the printed one, such as bfloat16; otherwise None."""
    found = re.search(r"(\w+) instead of \w+", comparison.cut or "")
    return found[1] if found else None
