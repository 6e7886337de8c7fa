"""Processes that run forward passes.

A pass is hundreds of small operations, each of which needs the interpreter for a moment.  In the process that answers
HTTP they would wait for it most of the time, so passes run in separate interpreters with their own models.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from service.models import Model
from stages.checkpoint.contract import CheckpointError

if TYPE_CHECKING:
    from service.predictors import PredictorCache

Answer = tuple[Literal["probabilities"], np.ndarray, int] | tuple[Literal["refused", "failed"], str, int]
_PREDICTORS = "service.predictors"
_SERVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_SECONDS = 1.0


class WorkerGone(RuntimeError):
    """The process has ended, although nobody asked it to."""


class PassFailed(RuntimeError):
    """The network raised an error; the message says which."""


class Worker:
    """One process, asked by one thread at a time.  `start` it before, `stop` it after."""

    def __init__(self, *, device: str, budget_bytes: int, threads: int, pass_seconds: float = 120.0) -> None:
        self.device, self.budget_bytes, self.threads = device, budget_bytes, threads
        self.pass_seconds = pass_seconds
        self.weight_bytes = 0
        self._connection: Connection | None = None
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        load_ahead()
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, self.device, self.budget_bytes, self.threads)
        self._process = context.Process(target=_answer_until_closed, args=arguments, name="inference", daemon=True)
        self._process.start()
        theirs.close()
        atexit.register(self.stop)  # in case the server ends without its shutdown

    def stop(self) -> None:
        """Let it end; it is killed if it is still running a pass `_END_SECONDS` later."""
        atexit.unregister(self.stop)
        if self._connection is None or self._process is None:
            return
        self._connection.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def probabilities(self, model: Model, images: np.ndarray) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W] in one pass; loads the model first.

        Raises:
            CheckpointError: the weights are gone, or aren't the recorded ones.
            PassFailed: the network failed on these images.
            WorkerGone: the process has ended, or loading and pass take longer than `pass_seconds`.
        """
        assert self._connection is not None, "a worker is started before it is asked"
        try:
            self._connection.send((model.path, model.sha256, images))
            if not self._connection.poll(self.pass_seconds):
                raise WorkerGone(f"an inference process hasn't answered for {self.pass_seconds:g} s")
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            raise WorkerGone("an inference process ended") from None
        self.weight_bytes = answer[2]
        if answer[0] == "probabilities":
            return answer[1]
        raise (CheckpointError if answer[0] == "refused" else PassFailed)(answer[1])


def load_ahead() -> None:
    """Begin to load torch, once, in the process that every worker is forked from; returns at once.

    Signals that end a whole group of processes are kept from that one too, so that requests under way are finished.
    """
    resource_tracker.ensure_running()  # its own start would unblock these signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SERVERS_SIGNALS)
    try:
        forkserver.set_forkserver_preload([_PREDICTORS])
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cores_here() -> int:
    """Number of cores that this process may use; a container's share of time isn't seen."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _answer_until_closed(connection: Connection, device: str, budget_bytes: int, threads: int) -> None:
    """The whole life of a worker.  Signals are for the server, which closes the connection when it has finished."""
    for number in _SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    module = importlib.import_module(_PREDICTORS)  # imports torch, which the server never needs
    module.settle(threads)
    predictors = module.PredictorCache(device=device, budget_bytes=budget_bytes)
    while True:
        try:
            connection.send(_answer(predictors, *connection.recv()))
        except (EOFError, OSError):
            return


def _answer(predictors: PredictorCache, path: Path, sha256: str, images: np.ndarray) -> Answer:
    try:
        predictor = predictors.get(path, sha256)
    except CheckpointError as error:
        return "refused", str(error), predictors.size_bytes
    except Exception as error:  # noqa: BLE001  (no memory, no device: the models that are loaded answer on)
        return "refused", f"{path.name}: can't be loaded: {type(error).__name__}", predictors.size_bytes
    try:
        found = predictor.probabilities(images, batch_size=len(images))
    except Exception as error:  # noqa: BLE001  (a network may raise anything, and the process must live on)
        return "failed", f"{type(error).__name__}: {error}", predictors.size_bytes
    return "probabilities", found, predictors.size_bytes
