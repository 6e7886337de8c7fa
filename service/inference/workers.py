"""Processes that run forward passes.

A pass has hundreds of small operations that each need the interpreter briefly. In the HTTP process they would mostly
wait for it, so passes run in separate interpreters with their own models.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from service.inference.models import Model
from service.inference.processes import Process, ProcessGone, leave_signals_to_the_server
from stages.checkpoint.contract import CheckpointError

if TYPE_CHECKING:
    from service.inference.predictors import PredictorCache

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
