"""What a time per sample depends on: the same network timed in two ways has two times, and pages say why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from service.database.leaderboard import Entry
from service.pages.formats import duration, listed

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
