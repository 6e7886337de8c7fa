"""The micro-batcher: every forward pass combines the images of as many requests as are waiting.

Requests wait in a bounded queue.  A pass takes images of one model, oldest request first, up to `max_batch`, or up to
its share when other workers are idle.  It waits for more only while announced requests are still being decoded, so a
single request is answered at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from service.models import Model
from service.workers import PassFailed, WorkerGone
from stages.checkpoint.contract import CheckpointError

logger = logging.getLogger("claimcheck")


class QueueFull(RuntimeError):
    """The queue has no room for more images; a later request may be answered."""


class InferenceStopped(RuntimeError):
    """An inference worker is gone, so nothing will be answered any more."""


class AnswerFailed(RuntimeError):
    """The model has no answer to this image: its pass raised an error or returned values that aren't probabilities."""


class Runner(Protocol):
    """Runs passes, one at a time: see `Worker`."""

    @property
    def is_alive(self) -> bool: ...

    def probabilities(self, model: Model, images: np.ndarray) -> np.ndarray: ...


class Observer(Protocol):
    """Called after each pass with its number of images, the longest wait and the duration of the pass in seconds."""

    def __call__(self, *, images: int, waited_seconds: float, pass_seconds: float) -> None: ...


@dataclass(frozen=True, eq=False)
class PendingRequest:
    """Images uint8 [N, C, H, W] of one request; `future` gets their probabilities float32 [N, K]."""

    model: Model
    images: np.ndarray
    future: Future[np.ndarray] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)


class Batcher:
    """Safe to use from several threads and event loops.  `start` it before, `stop` it after.

    Every worker has a thread that hands it passes.  If one of them dies, all end, since a service that goes on at half
    its pace goes unnoticed for long; it reports not ready instead.
    """

    def __init__(
        self,
        workers: Sequence[Runner],
        *,
        max_batch: int,
        max_wait_seconds: float,
        max_waiting: int,
        observer: Observer | None = None,
    ) -> None:
        self.workers = workers
        self.max_batch, self.max_wait_seconds, self.max_waiting = max_batch, max_wait_seconds, max_waiting
        self._observer = observer
        self._jobs: deque[PendingRequest] = deque()
        self._changed = threading.Condition()
        self._announced = self._idle = 0
        self._is_stopping = False
        self._threads = [
            threading.Thread(target=self._run, args=(worker,), name="inference", daemon=True) for worker in workers
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Answer what is waiting, then end the threads; a pass that takes longer than that is abandoned."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:  # started
                thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_alive(self) -> bool:
        return all(part.is_alive() for part in self._threads) and all(worker.is_alive for worker in self.workers)

    @property
    def waiting(self) -> int:
        """Number of images in the queue."""
        with self._changed:
            return self._count()

    @contextmanager
    def announce(self) -> Iterator[None]:
        """Wraps the decoding of a request: a pass that could include it waits, for `max_wait_seconds` at most."""
        with self._changed:
            self._announced += 1
        try:
            yield
        finally:
            with self._changed:
                self._announced -= 1
                self._changed.notify_all()

    def submit(self, model: Model, images: np.ndarray) -> list[PendingRequest]:
        """Queue `images`, in jobs of at most `max_batch`.

        Raises:
            QueueFull: there is no room for all of them.
            InferenceStopped: a worker is gone.
        """
        jobs = [
            PendingRequest(model, images[start : start + self.max_batch])
            for start in range(0, len(images), self.max_batch)
        ]
        with self._changed:
            if not self.is_alive or self._is_stopping:
                raise InferenceStopped("inference isn't running")
            if self._count() + len(images) > self.max_waiting:
                raise QueueFull(f"{self._count()} images are waiting already; at most {self.max_waiting} may")
            self._jobs.extend(jobs)
            self._changed.notify_all()
        return jobs

    async def probabilities(self, model: Model, images: np.ndarray) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W]; a cancelled call leaves the queue.

        Raises:
            QueueFull, InferenceStopped: as `submit`.
            AnswerFailed: the model has no answer to one of the images.
            CheckpointError: the weights can't be loaded.
        """
        jobs = self.submit(model, images)
        try:
            parts = await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
        finally:
            for job in jobs:
                job.future.cancel()
        return np.concatenate(parts)

    def _count(self) -> int:
        return sum(len(job.images) for job in self._jobs if not job.future.cancelled())

    def _run(self, worker: Runner) -> None:
        batch: list[PendingRequest] = []
        try:
            while batch := self._next_batch():
                self._answer(batch, worker)
        except WorkerGone as error:
            logger.error("%s; no image is answered any more", error)
        finally:
            with self._changed:
                self._is_stopping = True
                left, self._jobs = self._jobs, deque()
                self._changed.notify_all()
            waiting = [job for job in left if job.future.set_running_or_notify_cancel()]
            for job in (*batch, *waiting):
                if not job.future.done():
                    job.future.set_exception(InferenceStopped("inference ended"))

    def _next_batch(self) -> list[PendingRequest]:
        """The next jobs of one model that run together; empty once the batcher stops and nothing is left."""
        with self._changed:
            self._idle += 1
            try:
                while True:
                    self._jobs = deque(job for job in self._jobs if not job.future.cancelled())
                    if not self._jobs and self._is_stopping:
                        return []
                    if not self._jobs or (time_left := self._worth_waiting()) > 0:
                        self._changed.wait(time_left if self._jobs else None)
                        continue
                    batch = self._share()
                    for job in batch:
                        self._jobs.remove(job)
                    if started := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                        return started
            finally:
                self._idle -= 1
                self._changed.notify_all()  # the waiting images may be enough for the remaining workers

    def _same_model(self) -> list[PendingRequest]:
        return [job for job in self._jobs if job.model.sha256 == self._jobs[0].model.sha256]

    def _worth_waiting(self) -> float:
        """Seconds in which announced requests may still join; zero if they would find no room."""
        is_full = sum(len(job.images) for job in self._same_model()) >= self.max_batch * self._idle
        if is_full or not self._announced or self._is_stopping:
            return 0.0
        return self._jobs[0].submitted + self.max_wait_seconds - time.monotonic()

    def _share(self) -> list[PendingRequest]:
        """The oldest jobs of one model for a pass: as many as fit, divided evenly among idle workers."""
        jobs = self._same_model()
        fair = math.ceil(sum(len(job.images) for job in jobs) / self._idle)
        sizes = itertools.accumulate(len(job.images) for job in jobs)
        count = sum(size <= min(self.max_batch, fair) for size in sizes)
        return jobs[: max(count, 1)]

    def _answer(self, batch: Sequence[PendingRequest], worker: Runner) -> None:
        """Run one pass; if it fails, run each job by itself, so that one bad image spoils no other's answer."""
        started = time.monotonic()
        try:
            images = np.concatenate([job.images for job in batch])
            found = worker.probabilities(batch[0].model, images)
        except CheckpointError as error:
            for job in batch:
                job.future.set_exception(error)
            return
        except PassFailed as error:
            if len(batch) > 1:
                for job in batch:
                    self._answer([job], worker)
            else:
                logger.error("a forward pass failed: %s", error)
                batch[0].future.set_exception(AnswerFailed("the model failed on this image"))
            return
        self._hand_out(batch, found)
        if self._observer is not None:
            waited = started - min(job.submitted for job in batch)
            took = time.monotonic() - started
            self._observer(images=len(images), waited_seconds=waited, pass_seconds=took)

    @staticmethod
    def _hand_out(batch: Sequence[PendingRequest], found: np.ndarray) -> None:
        start = 0
        for job in batch:
            rows = found[start : start + len(job.images)]
            start += len(job.images)
            if np.isfinite(rows).all():
                job.future.set_result(rows)
            else:
                job.future.set_exception(AnswerFailed("the model's answer to this image is not a number"))
