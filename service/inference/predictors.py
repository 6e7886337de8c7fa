"""Loads predictors from checkpoints, within a memory budget.

Which ones may be loaded is decided elsewhere: files that the database names by digest, safetensors only, and
architectures that a paper's `__all__` lists (`stages.papers.build_model`).
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from cachetools import LRUCache

from stages.checkpoint.predictor import Predictor, load_predictor
from stages.memory import keep_freed_memory


class PredictorCache:
    """Keeps the most recently used predictors, up to `budget_bytes` of weights; a larger one is kept alone."""

    def __init__(self, *, device: str, budget_bytes: int) -> None:
        self.device, self.budget_bytes = device, budget_bytes
        self._loaded: LRUCache[str, Predictor] = LRUCache(math.inf, weight_bytes)  # the budget is kept below

    def get(self, path: Path, sha256: str) -> Predictor:
        """The predictor of the checkpoint at `path`, whose digest must be `sha256`.

        Raises:
            CheckpointError: the file is gone, isn't the recorded one, or holds no model of ours.
        """
        if (found := self._loaded.get(sha256)) is None:
            found = self._loaded[sha256] = load_predictor(path, device=self.device, expected_sha256=sha256)
            while self.size_bytes > self.budget_bytes and len(self._loaded) > 1:
                self._loaded.popitem()
        return found

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._loaded

    @property
    def size_bytes(self) -> int:
        """Size of all weights in memory."""
        return int(self._loaded.currsize)


def settle(threads: int) -> None:
    """Set up a process that only runs passes: this many threads each, and memory is kept for the next one."""
    keep_freed_memory()
    torch.set_num_threads(threads)


def weight_bytes(predictor: Predictor) -> int:
    """Size of parameters and buffers as they lie in memory."""
    tensors = predictor.network.state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
