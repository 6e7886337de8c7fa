"""Checkpoints to loaded predictors, within a budget of memory.

What may be loaded is decided elsewhere: files that the database names by digest, safetensors only, and architectures
that a paper's `__all__` lists (`stages.papers.build_model`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path

import torch

from stages.checkpoint import Predictor, load_predictor


class PredictorCache:
    """Keeps the predictors that were used last, up to `budget_bytes` of weights.  Safe to use from several threads.

    One larger than the budget is kept alone.  A pass under way keeps the weights that it uses, whatever goes.
    """

    def __init__(self, root: Path, *, device: str, budget_bytes: int, threads: int | None) -> None:
        self.root, self.device, self.budget_bytes = root, device, budget_bytes
        self._loaded: OrderedDict[str, Future[Predictor]] = OrderedDict()
        self._lock = threading.Lock()
        if threads is not None:
            torch.set_num_threads(threads)

    def loaded(self, sha256: str) -> Predictor | None:
        """The predictor of this digest where it is in memory already."""
        with self._lock:
            found = self._loaded.get(sha256)
            if found is None or not found.done():
                return None
            self._loaded.move_to_end(sha256)
        return found.result()

    def get(self, path: str, sha256: str) -> Predictor:
        """The predictor of the checkpoint at `path`, relative to the root, whose digest must be `sha256`.

        Loading holds up nobody but those who want the same one.

        Raises:
            CheckpointError: the file is gone, isn't the one that was recorded, or holds no model of ours.
        """
        with self._lock:
            found = self._loaded.get(sha256)
            is_mine = found is None
            if found is None:
                found = self._loaded[sha256] = Future()
            self._loaded.move_to_end(sha256)
        if is_mine:
            self._load(path, sha256, found)
        return found.result()

    def _load(self, path: str, sha256: str, into: Future[Predictor]) -> None:
        try:
            predictor = load_predictor(self.root / path, device=self.device, expected_sha256=sha256)
        except BaseException as error:
            with self._lock:
                del self._loaded[sha256]
            into.set_exception(error)
            raise
        into.set_result(predictor)
        with self._lock:
            self._make_room(keep=sha256)

    def _make_room(self, keep: str) -> None:
        sizes = {digest: weight_bytes(found.result()) for digest, found in self._loaded.items() if found.done()}
        for digest in list(sizes):
            if sum(sizes.values()) <= self.budget_bytes:
                return
            if digest != keep:
                del self._loaded[digest], sizes[digest]

    @property
    def size_bytes(self) -> int:
        """Of all weights in memory."""
        with self._lock:
            return sum(weight_bytes(found.result()) for found in self._loaded.values() if found.done())


def weight_bytes(predictor: Predictor) -> int:
    """Of parameters and buffers as they lie in memory."""
    tensors = predictor.network.state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
