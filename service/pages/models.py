"""Sentences about an experiment's models: which are at chance, what trained them, what their times depend on."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from service.database.comparing import Entry
from service.pages.formats import duration, exact, listed, percent
from stages.results import ArmComparison, Dataset, Experiment, ExperimentComparison

ERRORS = 3.0
"""Standard errors, of the test images alone, within which an accuracy above that of guessing is no sign of learning."""
ACCURACIES = ("accuracy", "best_epoch_accuracy")


def at_chance(comparison: ExperimentComparison, dataset: Dataset) -> dict[str, ArmComparison]:
    """The arms, by name, whose accuracy on real data can't be told from guessing among equal classes."""
    if dataset.kind != "images" or comparison.metric.name not in ACCURACIES or not comparison.is_real:
        return {}
    guess = 1 / dataset.classes
    most = guess + ERRORS * math.sqrt(guess * (1 - guess) / dataset.test_images)
    return {arm.arm: arm for arm in comparison.arms if arm.ours is not None and arm.ours.value <= most}


def tell_chance(comparison: ExperimentComparison, dataset: Dataset, among: Collection[str | None] = ()) -> list[str]:
    """A sentence for each arm at chance, with what learns where one thing differs; `among`: only for these arms."""
    lost, told = at_chance(comparison, dataset), []
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
        told.append(
            f"{arm.title} is at chance: it is right on {percent(arm.ours.value)} of the test images, and guessing "
            f"among {dataset.classes} classes on {guess}. It learnt nothing.{elsewhere}"
        )
    return told


APART = 1.5
"""Two times of one network further apart than this factor are told."""


def tell_twins(entries: Sequence[Entry]) -> list[str]:
    """One sentence for each network that stands in one experiment under several models with times far apart."""
    networks = defaultdict[tuple[object, ...], list[Entry]](list)
    for entry in entries:
        cost = entry.arm.cost
        if cost.latency_seconds_per_sample is not None:
            networks[entry.comparison.experiment, cost.parameters, cost.flops_per_image].append(entry)
    return [told for twins in networks.values() if (told := _tell(twins))]


def threads(count: int | None) -> str:
    """1 thread; "" where nobody says"""
    return "" if count is None else f"{count} thread{'s' if count != 1 else ''}"


def _tell(twins: Sequence[Entry]) -> str:
    costs = [entry.arm.cost for entry in twins]
    times = [cost.latency_seconds_per_sample or 0.0 for cost in costs]
    if max(times) < APART * min(times):
        return ""
    names = listed([entry.arm.title for entry in twins])
    counts = {cost.latency_threads for cost in costs}
    if len(counts) > 1:
        told = [
            f"{duration(time, 2)} with {threads(cost.latency_threads)}" for time, cost in zip(times, costs, strict=True)
        ]
        return f"{names} are one network: {listed(told)}."
    far = f"{duration(min(times), 2)} to {duration(max(times), 2)}"
    return f"{names} are one network, timed alike at different hours: {far}. A smaller difference says nothing."


OPTIMISERS = {"adam": "Adam", "adamw": "AdamW", "cg_fac": "CG-FAC", "kfac": "K-FAC", "sgd": "SGD"}


def recipes(experiment: Experiment) -> dict[str, str]:
    """`{arm: phrase}`, as "ViT, trained by Adam at a rate of 0.001".

    The network stands in it where several arms of the experiment train the same one and their titles don't name it.
    """
    models = [arm.model for arm in experiment.arms]
    found = {}
    for arm in experiment.arms:
        network = str(arm.model["name"])
        is_unnamed = models.count(arm.model) > 1 and _plain(network) not in _plain(arm.title)
        optimiser = _optimiser({**experiment.protocol, **arm.protocol}["optimizer"])
        found[arm.name] = f"{network + ', ' if is_unnamed else ''}trained by {optimiser}"
    return found


def _optimiser(settings: Mapping[str, Any]) -> str:
    """Adam at a rate of 0.001; CG-FAC at a rate of 0.01, elsewhere Adam at 0.001"""
    name = settings["name"]
    told = f"{OPTIMISERS.get(name, name)} at a rate of {exact(settings['lr'])}"
    if rest := settings.get("rest"):
        told += f", elsewhere {OPTIMISERS.get(rest, rest)} at {exact(settings['rest_lr'])}"
    return told


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]", "", title.lower())
