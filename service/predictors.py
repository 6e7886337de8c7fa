"""Checkpoints to loaded predictors: a bounded cache, and one forward pass at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

from stages.checkpoint import Predictor, load_predictor


class PredictorCache:
    """Keeps the `capacity` predictors that were used last.  Safe to use from several threads.

    Passes run one after another: each uses all of torch's threads, so two at once would only slow each other down.
    """

    def __init__(self, root: Path, *, device: str, capacity: int, threads: int | None) -> None:
        self.root, self.device, self.capacity = root, device, capacity
        self._loaded: OrderedDict[str, Predictor] = OrderedDict()
        self._lock = threading.Lock()
        self._running = threading.Lock()
        if threads is not None:
            torch.set_num_threads(threads)

    def get(self, path: str, sha256: str) -> Predictor:
        """The predictor of the checkpoint at `path`, relative to the root, whose digest must be `sha256`.

        Raises:
            CheckpointError: the file is gone, or isn't the one that was recorded.
        """
        with self._lock:
            predictor = self._loaded.get(sha256)
            if predictor is None:
                predictor = load_predictor(self.root / path, device=self.device, expected_sha256=sha256)
                self._loaded[sha256] = predictor
            self._loaded.move_to_end(sha256)
            while len(self._loaded) > self.capacity:
                self._loaded.popitem(last=False)
        return predictor

    def probabilities(self, predictor: Predictor, images: np.ndarray) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W]."""
        with self._running:
            return predictor.probabilities(images)
