"""Models that are right no more often than whoever guesses among the classes: their numbers speak for nothing."""

from __future__ import annotations

import math
from collections.abc import Collection

from service.pages.formats import percent
from stages.results import ArmComparison, Dataset, ExperimentComparison

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
