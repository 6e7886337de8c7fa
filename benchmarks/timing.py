"""Both sides of a comparison in one run: A B A B …, medians, and the ratio pair by pair."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from stages.training.environment import describe_environment


@dataclass(frozen=True)
class Comparison:
    """Median seconds of both sides; `ratio` is the median of peer / ours over the pairs (above 1: ours is faster)."""

    ours_seconds: float
    peer_seconds: float
    ratio: float
    repeats: int


def compare(
    ours: Callable[[], object], peer: Callable[[], object], *, repeats: int, device: torch.device | None = None
) -> Comparison:
    """Time both in turn after one uncounted call of each; a CUDA device is synchronised around every call."""
    pairs = []
    for index in range(repeats + 1):
        pair = _seconds(ours, device), _seconds(peer, device)
        if index:
            pairs.append(pair)
    return Comparison(
        ours_seconds=statistics.median(pair[0] for pair in pairs),
        peer_seconds=statistics.median(pair[1] for pair in pairs),
        ratio=statistics.median(peer_s / ours_s for ours_s, peer_s in pairs),
        repeats=repeats,
    )


def _seconds(call: Callable[[], object], device: torch.device | None) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> str:
    """One line that says where the figures come from."""
    facts = describe_environment(device)
    return (
        f"{facts['device_name']}, {facts['threads']} threads, {facts['cpu_capability']}, torch {facts['torch']}, "
        f"Python {platform.python_version()}"
    )
