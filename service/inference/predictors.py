"""Load predictors from checkpoints within a memory budget.

Other modules restrict what is loaded: files whose digest is in the database, only safetensors, and only architectures
in a paper's `__all__` (`stages.papers.build_model`).
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.checkpoint.predictor import Predictor, load_predictor
from stages.device import keep_freed_memory

KEEP_SECONDS = 60.0
"""Weights that a client used within this time are safe from other clients with more weights in memory."""


@dataclass
class _Loaded:
    """A predictor, the time and client of its last use, and the time of the last use by another client."""

    predictor: Predictor
    size_bytes: int
    client: str
    used: float
    used_by_others: float = float("-inf")


class PredictorCache:
    """Keeps predictors up to `budget_bytes` of weights, and the last one regardless of size."""

    def __init__(self, *, device: str, budget_bytes: int) -> None:
        self.device, self.budget_bytes = device, budget_bytes
        self._loaded: dict[str, _Loaded] = {}  # least recently used first

    def get(self, path: Path, sha256: str, client: str = "") -> Predictor:
        """Return the predictor of the checkpoint at `path`, whose digest must be `sha256`.

        Raises:
            CheckpointError: the file is missing, isn't the recorded one, or has no model of ours.
        """
        now, found = time.monotonic(), self._loaded.pop(sha256, None)
        if found is None:
            predictor = load_predictor(path, device=self.device, expected_sha256=sha256)
            found = _Loaded(predictor, weight_bytes(predictor), client, now)
            self._make_room(found)
        elif found.client != client:
            found.client, found.used_by_others = client, found.used
        found.used = now
        self._loaded[sha256] = found
        return found.predictor

    def _make_room(self, new: _Loaded) -> None:
        """Evict weights to make room for new ones.

        Weights that no other client used recently are evicted first, then those of clients with more weights in memory
        than the requesting one.
        """
        while self._loaded and self.size_bytes + new.size_bytes > self.budget_bytes:
            held = Counter({new.client: new.size_bytes})
            for one in self._loaded.values():
                held[one.client] += one.size_bytes

            def rank(digest: str) -> tuple[bool, bool]:
                one = self._loaded[digest]
                used_by_others = one.used_by_others if one.client == new.client else one.used
                return new.used - used_by_others < KEEP_SECONDS, held[one.client] <= held[new.client]  # noqa: B023

            del self._loaded[min(self._loaded, key=rank)]  # among equals, the least recently used comes first

    @property
    def loaded(self) -> dict[str, int]:
        """Bytes of the weights in memory by digest."""
        return {sha256: one.size_bytes for sha256, one in self._loaded.items()}

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return sum(self.loaded.values())


def settle(threads: int) -> None:
    """Set up a process for forward passes: set its number of threads, and keep freed memory for the next pass."""
    keep_freed_memory()
    torch.set_num_threads(threads)


def weight_bytes(predictor: Predictor) -> int:
    """Return the bytes of parameters and buffers in memory."""
    tensors = predictor.network.state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
