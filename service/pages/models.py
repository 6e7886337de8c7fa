"""Models of a data set compared: the answer in a sentence, and a table with marks for each experiment.

Further sentences say which results are at chance level, how models are trained, and how they were timed.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from service.database.comparing import Answer, ComparedModel, Curve, metrics_of
from service.pages.formats import duration, exact, listed, percent, span, value_in, value_with
from service.pages.plots import Axis, Ink, Mark, axis_of, mark_of
from stages.results import (
    METRICS,
    ArmComparison,
    ArmRow,
    Claim,
    Dataset,
    Estimate,
    ExperimentComparison,
    ExperimentRow,
    JudgedClaim,
    MetricInfo,
    Question,
    Status,
)

MOST_LINES = 8  # more can't be told apart by colour
ERRORS = 3.0
"""Standard errors (over test images) above chance within which an accuracy shows no learning."""
ACCURACIES = ("accuracy", "best_epoch_accuracy")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One experiment: its models by our rank, then those without a number of ours in the paper's order."""

    comparison: ExperimentComparison
    rows: list[tuple[ArmComparison, Ink, Mark | None]]
    axis: Axis | None
    choices: Mapping[str, str]


def lay_panels(
    comparisons: Sequence[ExperimentComparison], inks: Mapping[str, Ink], kind: str, metric: str | None
) -> list[Panel]:
    """Return a panel for each experiment; with a `metric`, all panels share one axis."""
    shared = [arm for item in comparisons for arm in item.arms] if metric else []
    panels = []
    for item in comparisons:
        axis = axis_of(shared or item.arms, item.metric)
        ranked = sorted(item.arms, key=lambda arm: (arm.rank_ours is None, arm.rank_ours or 0))
        rows = [(arm, inks[arm.title], mark_of(arm, item.metric, axis) if axis else None) for arm in ranked]
        panels.append(Panel(comparison=item, rows=rows, axis=axis, choices=metrics_of(item, kind)))
    return panels


def answer_best(comparisons: Sequence[ExperimentComparison]) -> str:
    """Name the best model by full-length runs alone, as "Not known yet: no model was trained in full. …"."""
    planned = sum(item.planned_models for item in comparisons)
    real = [item for item in comparisons if item.is_real and item.order.of_ours]
    full = [item for item in real if not item.cut]
    if not real:
        return f"Not known yet: none of {planned} models has been trained." if planned else "No model is planned."
    if not full:
        ahead = [
            f"{arm.title} ({value_in(item.metric.unit)(arm.ours.value)})"  # NiNformer (21.19 %)
            for item in real
            if len(item.order.of_ours) > 1
            for arm in item.arms
            if arm.ours and arm.arm == item.order.of_ours[0]
        ]
        each = ", each in its own experiment" if len(ahead) > 1 else ""
        leads = f" In shortened runs {listed(ahead)} {'are' if each else 'is'} ahead{each}." if ahead else ""
        return f"Not known yet: none of {planned} planned models has been trained in full.{leads}"
    missing = planned - sum(item.trained_models for item in full)
    left = f" {missing} of {planned} planned models have not been trained in full yet." if missing else ""
    return f"{' '.join(_name_best(full))}{left}"


def _name_best(full: Sequence[ExperimentComparison]) -> Iterator[str]:
    """Name the best model by each metric, as "Yat perceptron is the best of 6 models trained in full: 97.31 % (…)."."""
    by_metric: dict[str, list[tuple[ExperimentComparison, ArmComparison, Estimate]]] = {}
    for item in full:
        by_metric.setdefault(item.metric.name, []).extend((item, arm, arm.ours) for arm in item.arms if arm.ours)
    for models in filter(None, by_metric.values()):
        best = max if models[0][0].metric.better == "higher" else min
        item, arm, ours = best(models, key=lambda model: model[2].value)
        write = value_with(ours.low, ours.high, item.metric.unit)
        interval = "" if ours.low is None or ours.high is None else f"{span(ours.low, ours.high, item.metric.unit)}, "
        of = f"is the best of {len(models)} models" if len(models) > 1 else "is the only model"
        yield f"{arm.title} {of} trained in full: {write(ours.value)} ({interval}n = {ours.n})."


def first_shown(arms: Sequence[ArmRow], trained: Sequence[str]) -> list[str]:
    """Return all arms if a chart can show them, else the middle pair: a proposed arm and its baseline."""
    if len(trained) <= MOST_LINES:
        return list(trained)
    pairs = [(item.against, item.name) for item in arms if item.role == "proposed"]
    whole = [pair for pair in pairs if set(pair) <= set(trained)]
    first = whole[len(whole) // 2] if whole else trained[:2]
    return [name for name in trained if name in first]


def curve_for(metric: MetricInfo, curves: Sequence[Curve]) -> Curve | None:
    """Choose the learning curve for a metric: accuracy for fractions, else loss; test data first."""
    what, sides = "accuracy" if metric.unit in ("fraction", "seconds") else "loss", ("test", "val", "train")
    return min(curves, key=lambda it: (not it.endswith(what), sides.index(it.partition("_")[0])), default=None)


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
            said = f"{names} are the same network, timed in the same way at different times: {far}."
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
    shortened = {item.experiment for item in compare(Question(paper=paper)) if item.is_real and item.cut}
    found = {}
    for row in undecided:
        if len(row.experiments) != 1 or row.experiments[0] not in shortened or row.claim.metric not in METRICS:
            continue
        (comparison,) = compare(Question(experiment=row.experiments[0], metric=row.claim.metric))
        find = _look_at_all if row.claim.kind == "qualitative" else _look
        if (look := find(row.claim, comparison)) is None:
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
    (comparison,) = compare(Question(experiment=record.experiments[0], metric=claim.metric))
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
    """Return the model's own number."""
    mine = next((arm.ours for arm in comparison.arms if arm.arm == claim.arm), None)
    if mine is None or claim.unit != comparison.metric.unit or claim.facts.number != "model":
        return None
    return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut or "")


def _look_at_all(claim: Claim, comparison: ExperimentComparison) -> FirstLook | None:
    """List the results of all models of the experiment, best first; the best model is always included."""
    known = {arm.arm: (arm.title, arm.ours) for arm in comparison.arms if arm.ours is not None}
    if claim.arm not in known:
        return None
    write, mine = value_in(comparison.metric.unit), known[claim.arm][1]
    is_lower = comparison.metric.better == "lower"
    ordered = sorted(known.values(), key=lambda item: item[1].value, reverse=not is_lower)
    said = "; ".join(f"{title} {write(ours.value)}" for title, ours in ordered)
    sentence = f"{comparison.metric.title} in shortened runs ({comparison.cut}), the best first: {said}."
    title, best = ordered[0]
    text = write(mine.value) + ("" if best is mine else f" ({title} {write(best.value)})")
    return FirstLook(value=mine.value, n=mine.n, cut=comparison.cut or "", text=text, sentence=sentence)


def precision_of(comparison: ExperimentComparison) -> str | None:
    """Return the precision of shortened runs if it isn't the printed one, such as bfloat16; otherwise None."""
    found = re.search(r"(\w+) instead of \w+", comparison.cut or "")
    return found[1] if found else None
