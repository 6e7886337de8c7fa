"""The micro-batcher: one thread a device runs every forward pass, on images of as many requests as are waiting.

Requests wait in a bounded queue.  A pass takes images of one model, oldest request first, up to `max_batch`.  It waits
for more only while announced requests are still being decoded, so a request that is alone is answered at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stages.checkpoint import Predictor

logger = logging.getLogger("claimcheck")


class QueueFull(RuntimeError):
    """More images are waiting than the queue takes; a later request may be answered."""


class InferenceStopped(RuntimeError):
    """The inference thread is gone, so nothing will be answered any more."""


class AnswerFailed(RuntimeError):
    """The model has no answer to this image: its pass raised an error or gave something that is no probability."""


class Observer(Protocol):
    """Who wants to know of each pass: its images, the longest wait and the pass in seconds."""

    def __call__(self, *, images: int, waited_seconds: float, pass_seconds: float) -> None: ...


@dataclass(frozen=True, eq=False)
class Job:
    """Images uint8 [N, C, H, W] of one request; `future` gets their probabilities float32 [N, K]."""

    predictor: Predictor
    images: np.ndarray
    future: Future[np.ndarray] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)


class Batcher:
    """Safe to use from several threads and event loops.  `start` it before, `stop` it after."""

    def __init__(
        self, *, max_batch: int, max_wait_seconds: float, max_waiting: int, observer: Observer | None = None
    ) -> None:
        self.max_batch, self.max_wait_seconds, self.max_waiting = max_batch, max_wait_seconds, max_waiting
        self._observer = observer
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._announced = 0
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        assert self._thread is None, "a batcher is started once"
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer what is waiting, then end the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        with self._changed:
            return self._count()

    @contextmanager
    def announce(self) -> Iterator[None]:
        """Around a request's decoding: a pass that could take it along waits for it, for `max_wait_seconds` at most."""
        with self._changed:
            self._announced += 1
        try:
            yield
        finally:
            with self._changed:
                self._announced -= 1
                self._changed.notify_all()

    def submit(self, predictor: Predictor, images: np.ndarray) -> list[Job]:
        """Queue `images`, in jobs of at most `max_batch`.

        Raises:
            QueueFull: there is no room for all of them.
            InferenceStopped: the thread isn't running.
        """
        jobs = [
            Job(predictor, images[start : start + self.max_batch]) for start in range(0, len(images), self.max_batch)
        ]
        with self._changed:
            if not self.is_alive or self._is_stopping:
                raise InferenceStopped("the inference thread isn't running")
            if self._count() + len(images) > self.max_waiting:
                raise QueueFull(f"{self._count()} images are waiting already; at most {self.max_waiting} may")
            self._jobs.extend(jobs)
            self._changed.notify_all()
        return jobs

    async def probabilities(self, predictor: Predictor, images: np.ndarray) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W]; a cancelled call leaves the queue.

        Raises:
            QueueFull, InferenceStopped: as `submit`.
            AnswerFailed: the model has no answer to one of the images.
        """
        jobs = self.submit(predictor, images)
        try:
            parts = await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        finally:
            for job in jobs:
                job.future.cancel()
        return np.concatenate(parts)

    def _count(self) -> int:
        return sum(len(job.images) for job in self._jobs if not job.future.cancelled())

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._answer(batch)
        finally:
            with self._changed:
                self._is_stopping = True
                left, self._jobs = self._jobs, deque()
            for job in left:
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(InferenceStopped("the inference thread ended"))

    def _next_batch(self) -> list[Job]:
        """Jobs of one model that run together; empty once the batcher stops and nothing is left."""
        with self._changed:
            while True:
                self._jobs = deque(job for job in self._jobs if not job.future.cancelled())
                if not self._jobs:
                    if self._is_stopping:
                        return []
                    self._changed.wait()
                    continue
                batch, is_full = self._fitting()
                time_left = self._jobs[0].submitted + self.max_wait_seconds - time.monotonic()
                if not is_full and time_left > 0 and self._announced and not self._is_stopping:
                    self._changed.wait(time_left)
                    continue
                for job in batch:
                    self._jobs.remove(job)
                if started := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                    return started

    def _fitting(self) -> tuple[list[Job], bool]:
        """The jobs of the oldest one's model that fit into a pass, and whether no further one would."""
        batch: list[Job] = []
        size = 0
        for job in self._jobs:
            if job.predictor is not self._jobs[0].predictor:
                continue
            if size + len(job.images) > self.max_batch:
                return batch, True
            batch.append(job)
            size += len(job.images)
        return batch, size == self.max_batch

    def _answer(self, batch: Sequence[Job]) -> None:
        """One pass; where it fails, each job has its own, so that one bad image spoils no other's answer."""
        started = time.monotonic()
        try:
            images = np.concatenate([job.images for job in batch])
            found = batch[0].predictor.probabilities(images, batch_size=self.max_batch)
        except Exception as error:  # noqa: BLE001  (a network may raise anything, and the thread must live on)
            if len(batch) > 1:
                for job in batch:
                    self._answer([job])
            else:
                logger.error("a forward pass failed: %s: %s", type(error).__name__, error)
                batch[0].future.set_exception(AnswerFailed("the model failed on this image"))
            return
        except BaseException:
            for job in batch:
                job.future.set_exception(InferenceStopped("the inference thread ended"))
            raise
        self._hand_out(batch, found)
        if self._observer is not None:
            waited = started - min(job.submitted for job in batch)
            took = time.monotonic() - started
            self._observer(images=len(images), waited_seconds=waited, pass_seconds=took)

    @staticmethod
    def _hand_out(batch: Sequence[Job], found: np.ndarray) -> None:
        start = 0
        for job in batch:
            rows = found[start : start + len(job.images)]
            start += len(job.images)
            if np.isfinite(rows).all():
                job.future.set_result(rows)
            else:
                job.future.set_exception(AnswerFailed("the model's answer to this image is not a number"))
