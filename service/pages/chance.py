"""Models that are right no more often than whoever guesses among the classes."""

from __future__ import annotations

import math

from service.pages.formats import percent
from stages.results import Dataset, ExperimentComparison

ERRORS = 3.0
"""Standard errors, of the test images alone, within which an accuracy above that of guessing is no sign of learning."""
ACCURACIES = ("accuracy", "best_epoch_accuracy")


def tell_chance(comparison: ExperimentComparison, dataset: Dataset) -> list[str]:
    """A sentence for each arm whose accuracy on real data can't be told from guessing among equal classes."""
    if dataset.kind != "images" or comparison.metric.name not in ACCURACIES or not comparison.is_real:
        return []
    guess = 1 / dataset.classes
    most = guess + ERRORS * math.sqrt(guess * (1 - guess) / dataset.test_images)
    return [
        f"{arm.title} is at chance: it is right on {percent(arm.ours.value)} of the test images, and guessing among "
        f"{dataset.classes} classes on {percent(guess, 0 if dataset.classes <= 100 else 1)}. It learnt nothing."
        for arm in comparison.arms
        if arm.ours is not None and arm.ours.value <= most
    ]
