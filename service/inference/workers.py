"""Checkpoint files, checked before any process loads them, and the processes that run forward passes.

A pass has hundreds of small operations that each need the interpreter briefly. In the HTTP process they would mostly
wait for it, so passes run in separate interpreters with their own models.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from cachetools import LRUCache

from service.inference.processes import Process, ProcessGone, leave_signals_to_the_server
from stages.checkpoint.contract import CheckpointError, InputContract, read_checkpoint

if TYPE_CHECKING:
    from service.inference.predictors import PredictorCache

MAX_KNOWN = 4096
FLOPS_PER_SECOND, BYTES_PER_SECOND = 50e9, 500e6  # on one core of a 2025 processor; only ratios matter
IMAGE_SECONDS, LOAD_SECONDS = 0.0005, 0.005  # plus a constant for any model
FLOPS_PER_BYTE = 64  # if none are recorded


def cost_of(size_bytes: int, flops: float | None) -> tuple[float, float]:
    """Estimate the seconds per image and the seconds for loading the model."""
    flops = FLOPS_PER_BYTE * size_bytes if flops is None else flops
    return IMAGE_SECONDS + flops / FLOPS_PER_SECOND, LOAD_SECONDS + size_bytes / BYTES_PER_SECOND


@dataclass(frozen=True)
class Model:
    """A checkpoint file that had the digest `sha256` when it was read; `seconds` is the estimate per image."""

    path: Path
    sha256: str
    contract: InputContract
    seconds: float = IMAGE_SECONDS
    load_seconds: float = LOAD_SECONDS


class Models:
    """Caches the contracts of checked files until the files change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: LRUCache[tuple[str, str], tuple[object, Model]] = LRUCache(MAX_KNOWN)

    def known(self, path: str, sha256: str) -> Model | None:
        """Return the checkpoint at `path` if it was checked and hasn't changed since."""
        state, found = self._known.get((path, sha256), (None, None))
        return found if found is not None and state == state_of(found.path) else None

    def get(self, path: str, sha256: str, flops: float | None = None) -> Model:
        """Return the checkpoint at `path` below the root if its digest is `sha256`; `flops` are per image.

        Raises:
            CheckpointError: the file is missing, isn't the recorded one, or has no contract of ours.
        """
        file = self.root / path
        state = state_of(file)  # read before the file, so that the cache is never older than it
        content, contract, _ = read_checkpoint(file, expected_sha256=sha256)
        found = Model(file, sha256, contract, *cost_of(len(content), flops))
        self._known[path, sha256] = state, found
        return found


def state_of(path: Path) -> object:
    """Return a value that changes with the file; a missing file equals nothing."""
    try:
        status = path.stat()
    except OSError:
        return object()
    return status.st_ino, status.st_mtime_ns, status.st_size


Loaded = dict[str, int]  # bytes of weights by digest
Answer = tuple[Literal["predicted"], np.ndarray, Loaded] | tuple[Literal["refused", "failed"], str, Loaded]
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_BEGIN = "begin"  # asked and answered before the first pass
LEAST_SECONDS, TIMES_SLOWER = 30.0, 100  # minimal time of a pass, and a multiple of its estimated time


class PassFailed(RuntimeError):
    """The network raised an error, which is in the message."""


class NeverBegan(ProcessGone):
    """The process ended before it received the pass."""


class Worker(Process):
    """One process with its own models."""

    def __init__(self, *, device: str, budget_bytes: int, threads: int, pass_seconds: float = 120.0) -> None:
        arguments = (device, budget_bytes, threads)
        super().__init__("inference", _answer_until_closed, *arguments, seconds=pass_seconds)
        self.device, self.budget_bytes = device, budget_bytes
        self._loaded: Loaded = {}
        self._has_begun = False

    def restart(self) -> None:
        self._loaded, self._has_begun = {}, False
        super().restart()

    @property
    def weight_bytes(self) -> int:
        return sum(self._loaded.values())

    def has_loaded(self, model: Model) -> bool:
        return model.sha256 in self._loaded

    def predict(self, model: Model, images: np.ndarray, client: str = "") -> np.ndarray:
        """Return what `Predictor.predict` returns for uint8 images [N, C, H, W] in one pass; load the model first.

        Memory for it is taken from `client`'s share.

        Raises:
            CheckpointError: the weights are missing, or aren't the recorded ones.
            PassFailed: the network failed on these images.
            ProcessGone: the process has ended, or loading and pass exceed its time limit.
            NeverBegan: it had ended before the pass.
        """
        if not self._has_begun:
            try:
                self.ask(_BEGIN)
            except ProcessGone as error:
                raise NeverBegan(str(error)) from None
            self._has_begun = True
        estimated = len(images) * model.seconds + (not self.has_loaded(model)) * model.load_seconds
        question = model.path, model.sha256, client, images
        answer: Answer = self.ask(question, LEAST_SECONDS + TIMES_SLOWER * estimated)
        self._loaded = answer[2]
        if answer[0] == "predicted":
            return answer[1]
        raise (CheckpointError if answer[0] == "refused" else PassFailed)(answer[1])


def cores_here() -> int:
    """Return the number of cores that this process may use, ignoring a container's CPU quota."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_here() -> int:
    """Return the bytes that the service may use: the machine's memory or a container's lower limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(limit.read_text(encoding="ascii")))
    return min(limits)


def _answer_until_closed(connection: Connection, device: str, budget_bytes: int, threads: int) -> None:
    """Run the main loop of a worker."""
    leave_signals_to_the_server()
    module = importlib.import_module("service.inference.predictors")  # imports torch, which the server never needs
    module.settle(threads)
    predictors = module.PredictorCache(device=device, budget_bytes=budget_bytes)
    while True:
        try:
            question = connection.recv()
            connection.send(_BEGIN if question == _BEGIN else _answer(predictors, *question))
        except (EOFError, OSError):
            return


def _answer(predictors: PredictorCache, path: Path, sha256: str, client: str, images: np.ndarray) -> Answer:
    try:
        predictor = predictors.get(path, sha256, client)
    except CheckpointError as error:
        return "refused", str(error), predictors.loaded
    except Exception as error:  # noqa: BLE001  (no memory, no device: the models that are loaded answer on)
        return "refused", f"{path.name}: can't be loaded: {type(error).__name__}", predictors.loaded
    try:
        found = predictor.predict(images, batch_size=len(images))
    except Exception as error:  # noqa: BLE001  (a network may raise anything, and the process must live on)
        return "failed", f"{type(error).__name__}: {error}", predictors.loaded
    return "predicted", found, predictors.loaded
