"""Which sets to complete first within a budget: the set-union knapsack, by its greedy heuristic.

Each look of a claim is a set of trainings, and counts, by its worth, once all of them are there; sets overlap, so a
training may serve many.  The best choice is NP-hard (Goldschmidt, Nehme, Yu 1994).  The greedy one takes, again and
again, the set by which most worth is completed per second: no fraction of a set counts, and what a set completes
besides itself does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Step(Generic[Item]):
    """`items` are taken together, for `seconds`; with those of earlier steps they complete the sets `completed`."""

    items: tuple[Item, ...]
    seconds: float
    completed: tuple[str, ...]


def choose(
    wanted: Mapping[str, Iterable[Item]],
    seconds: Mapping[Item, float],
    worth: Mapping[str, float],
    budget: float = math.inf,
) -> list[Step[Item]]:
    """The steps within `budget` seconds, best first; `seconds` has every item in the order of preference among equals.

    A set without items is complete and in no step; one without worth begins no step.
    """
    items, names = list(seconds), [name for name, needs in wanted.items() if list(needs)]
    place = {item: number for number, item in enumerate(items)}
    needs = np.zeros((len(names), len(items)), dtype=np.float32)  # [sets, items]
    for number, name in enumerate(names):
        needs[number, [place[item] for item in wanted[name]]] = 1
    worths = np.array([worth[name] for name in names])
    costs, steps, left = np.array([seconds[item] for item in items]), list[Step[Item]](), budget
    while len(names):
        prices = needs @ costs
        # [i, j]: set i needs nothing that set j hasn't
        within = needs @ (1 - needs).T == 0
        rates = np.where(prices <= left, worths @ within / np.maximum(prices, 1e-9), 0.0)
        best = int(np.argmax(rates))
        if not rates[best]:
            break
        taken, done = needs[best] > 0, within[:, best]
        steps.append(
            Step(
                items=tuple(item for item, is_taken in zip(items, taken, strict=True) if is_taken),
                seconds=float(prices[best]),
                completed=tuple(name for name, is_done in zip(names, done, strict=True) if is_done),
            )
        )
        left -= float(prices[best])
        names = [name for name, is_done in zip(names, done, strict=True) if not is_done]
        needs, worths = needs[~done] * ~taken, worths[~done]
    return steps
