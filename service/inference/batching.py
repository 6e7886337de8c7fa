"""Micro-batcher: each forward pass combines the images of waiting requests.

A fair queue orders images by their estimated computing time.  A pass takes images of one model, up to `max_batch` and
`PASS_SECONDS`, or its share if other workers are idle.  It waits for more images only while announced requests are
being decoded, so a single request is answered at once.

A crashed worker is replaced, and each request of its pass is retried once, alone.  A model whose retry crashes another
worker is disabled for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from cachetools import TTLCache

from service.inference.processes import ProcessGone
from service.inference.workers import Model, NeverBegan, PassFailed, Worker
from service.slots import FairQueue, Request, Ticket, current_client, refuse
from stages.checkpoint.contract import CheckpointError

HEALTH_CHECK_SECONDS = 0.5  # interval for idle workers
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # before restarting a worker that keeps crashing
PASS_SECONDS = 0.05  # estimated; other clients wait this long
DISABLED_SECONDS = 600.0
ACTIVE_SECONDS = 1.0  # a client counts as active this long after its last request
logger = logging.getLogger("claimcheck")


class InferenceStopped(RuntimeError):
    """No worker is running or the service is stopping; the client may retry."""


class AnswerFailed(RuntimeError):
    """The forward pass on this image raised an error or returned NaN or infinity."""


class ModelUnavailable(RuntimeError):
    """The model crashes workers, so it is disabled for `DISABLED_SECONDS`."""

    @classmethod
    def at(cls, model: Model) -> ModelUnavailable:
        return cls(
            f"inference processes ended at the model of run {model.contract.run_key[:12]}, 2 in a row; "
            f"it is disabled for {DISABLED_SECONDS / 60:g} minutes"
        )


@dataclass(eq=False, kw_only=True)
class ImageJob(Ticket):
    """Images uint8 [N, C, H, W] for one pass; `future` gets what `Predictor.predict` returns.

    `only`: the worker that must run the pass, if any.  `is_retried`: its first pass crashed a worker.
    """

    model: Model
    images: np.ndarray
    only: Worker | None = None
    is_retried: bool = False
    future: Future[np.ndarray] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)


class Batcher:
    """Thread-safe batcher for several event loops; call `start` before use and `stop` after.

    Each worker has a thread that hands it passes and replaces it if it crashes.  `observer` is called after each
    pass with its `images`, the longest wait (`waited_seconds`) and its duration (`pass_seconds`).
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        max_batch: int,
        max_wait_seconds: float,
        max_waiting_seconds: float,
        observer: Callable[..., None] | None = None,
    ) -> None:
        self.workers, self._observer = workers, observer
        self.max_batch, self.max_wait_seconds = max_batch, max_wait_seconds
        self.max_waiting_seconds = max_waiting_seconds
        self._queue = FairQueue[ImageJob]("asking models", max_waiting_seconds)
        self._changed = threading.Lock()
        self._wakers = {worker: threading.Condition(self._changed) for worker in workers}
        self._announced = 0
        self._idle: set[Worker] = set()
        self._stopping = threading.Event()
        self._given_up: set[Worker] = set()  # workers that keep crashing, until they restart
        self._running: dict[Worker, str] = {}  # the client of each pass
        self._active: TTLCache[str, None] = TTLCache(1000, ACTIVE_SECONDS)  # active clients
        self._disabled: dict[str, tuple[Model, float]] = {}  # disabled models, and until when
        self._threads = [
            threading.Thread(target=self._run, args=(worker,), name="inference", daemon=True) for worker in workers
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Answer waiting requests, then end the threads; a pass that takes longer than `seconds` is abandoned."""
        with self._changed:
            self._stopping.set()
            for waker in self._wakers.values():
                waker.notify()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:  # started
                thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_alive(self) -> bool:
        return not self._stopping.is_set() and self.serving > 0

    @property
    def serving(self) -> int:
        """Number of running workers."""
        return sum(worker.is_alive for worker in self.workers)

    @property
    def waiting(self) -> int:
        """Number of images in the queue."""
        with self._changed:
            return sum(len(job.images) for job in self._queue.in_order())

    @property
    def disabled_models(self) -> list[Model]:
        """Models that are disabled at the moment."""
        return [model for model, until in list(self._disabled.values()) if time.monotonic() < until]

    def require_enabled(self, model: Model) -> None:
        """Check that the model isn't disabled.

        Raises:
            ModelUnavailable: it is disabled.
        """
        _, until = self._disabled.get(model.sha256, (None, 0.0))
        if time.monotonic() < until:
            raise ModelUnavailable.at(model)

    @contextmanager
    def announce(self) -> Iterator[None]:
        """Wrap the decoding of a request; a pass that could include it waits at most `max_wait_seconds`."""
        with self._changed:
            self._announced += 1
        try:
            yield
        finally:
            with self._changed:
                self._announced -= 1
                self._wake()

    @contextmanager
    def submitted(
        self, questions: Sequence[tuple[Model, np.ndarray]], only: Worker | None = None
    ) -> Iterator[list[list[ImageJob]]]:
        """Queue the images of one request for each model; on exit, jobs that haven't started leave the queue.

        Raises:
            Busy: the queue is full; a job's future also raises it if other clients need the space.
            InferenceStopped: no worker is running.
            ModelUnavailable: one of the models is disabled.
        """
        request = Request()
        with self._changed:
            if self._stopping.is_set() or len(self._given_up) == len(self.workers):
                raise InferenceStopped("inference isn't running")
            jobs = list[list[ImageJob]]()
            for model, images in questions:
                self.require_enabled(model)
                size = max(1, min(self.max_batch, int(PASS_SECONDS / model.seconds)))
                parts = (images[start : start + size] for start in range(0, len(images), size))
                own = [(part, len(part) * model.seconds) for part in parts]
                jobs.append(
                    [ImageJob(request=request, cost=cost, model=model, images=part, only=only) for part, cost in own]
                )
            self._queue.put(list(itertools.chain(*jobs)))
            self._active[request.client] = None
            self._wake()
        try:
            yield jobs
        finally:
            for job in itertools.chain(*jobs):
                job.future.cancel()

    def require_capacity(self, images: int, models: Sequence[Model]) -> None:
        """Raise `Busy` if `submitted` would, before images are decoded for nothing."""
        with self._changed:
            self._queue.require_capacity(current_client.get(), sum(images * model.seconds for model in models))

    async def predict(self, model: Model, images: np.ndarray, only: Worker | None = None) -> np.ndarray:
        """Return what `Predictor.predict` returns for uint8 images [N, C, H, W]; a cancelled call leaves the queue.

        Raises:
            Busy, InferenceStopped, ModelUnavailable: as for `submitted`.
            AnswerFailed: the model failed on one of the images.
            CheckpointError: the weights can't be loaded.
        """
        with self.submitted([(model, images)], only) as (jobs,):
            return await answers(jobs)

    def _run(self, worker: Worker) -> None:
        crashes = 0  # in a row, with neither an answer nor a passed health check in between
        try:
            while (batch := self._next_batch(worker)) is not None:
                if self._serve(batch, worker) if batch else worker.is_alive:
                    crashes = 0
                    continue
                if not self._restart(worker, crashes):
                    return
                crashes += 1
        finally:
            self._give_up(worker)

    def _restart(self, worker: Worker, crashes: int) -> bool:
        """Restart a worker, after a pause if it keeps crashing; return False if the batcher is stopping."""
        logger.error("an inference process ended and is being replaced")
        while not self._stopping.is_set():
            if crashes > 1:  # a single bad request crashes two workers, so it needs no pause
                self._give_up(worker)
                self._stopping.wait(min(FIRST_PAUSE * 2**crashes, LONGEST_PAUSE))
            try:
                worker.restart()
            except OSError as error:
                logger.error("no inference process can be started: %s", error)
                crashes += 1
            else:
                self._given_up.discard(worker)
                return True
        return False

    def _give_up(self, worker: Worker) -> None:
        """Release the jobs of this worker; if no other worker is running, reject all waiting jobs."""
        with self._changed:
            self._given_up.add(worker)
            if len(self._given_up) == len(self.workers):
                refuse(self._queue.in_order(), InferenceStopped("inference isn't running"))

    def _serve(self, batch: Sequence[ImageJob], worker: Worker) -> bool:
        """Answer the batch; return False if it crashed the worker."""
        try:
            self._answer(batch, worker)
        except ProcessGone as error:
            model = batch[0].model
            logger.error("%s, at %s (run %s)", error, model.path, model.contract.run_key)
            self._retry(batch, has_begun=not isinstance(error, NeverBegan))
            return False
        except Exception:  # for example out of memory, where the next pass may succeed
            logger.exception("a pass of %s failed", batch[0].model.path)
            refuse(batch, AnswerFailed("the model failed on this image"))
        finally:
            with self._changed:
                del self._running[worker]
                self._wake()
        return True

    def _retry(self, batch: Sequence[ImageJob], *, has_begun: bool) -> None:
        """Requeue the batch that crashed a worker; disable a model whose job crashed two."""
        with self._changed:
            model = batch[0].model
            if has_begun and any(job.is_retried and not job.future.done() for job in batch):
                logger.error("%s (run %s) is disabled", model.path, model.contract.run_key)
                self._disabled[model.sha256] = model, time.monotonic() + DISABLED_SECONDS
                same = [job for job in self._queue.in_order() if job.model.sha256 == model.sha256]
                refuse([*batch, *same], ModelUnavailable.at(model))
            for job in batch:
                job.is_retried |= has_begun
            self._queue.put_back(batch)

    def _next_batch(self, worker: Worker) -> list[ImageJob] | None:
        """Return the next jobs of one model that run together.

        The list is empty if the worker is gone, or if no job came for `HEALTH_CHECK_SECONDS`, so that its health is
        checked.  Return None if the batcher is stopping and no job is left.
        """
        with self._changed:
            self._idle.add(worker)
            try:
                while True:
                    waiting = self._queue.in_order()
                    if not waiting and self._stopping.is_set():
                        return None
                    jobs = self._next_jobs(waiting, worker)
                    if not jobs or (time_left := self._seconds_to_wait(jobs)) > 0:
                        if not self._wakers[worker].wait(time_left if jobs else HEALTH_CHECK_SECONDS) and not jobs:
                            return []
                        continue
                    if not worker.is_alive:
                        return []
                    fair = math.ceil(sum(len(job.images) for job in jobs) / len(self._idle))
                    most = min(self.max_batch, fair, int(PASS_SECONDS / jobs[0].model.seconds))
                    sizes = itertools.accumulate(len(job.images) for job in jobs)
                    batch = list(jobs[: max(1, sum(size <= most for size in sizes))])
                    self._queue.take(*batch)
                    self._running[worker] = client = batch[0].request.client
                    if not worker.has_loaded(batch[0].model):
                        self._queue.charge(client, batch[0].model.load_seconds)
                    return batch
            finally:
                self._idle.remove(worker)
                self._wake()  # the remaining images may suffice for the other idle workers

    def _wake(self) -> None:
        """Wake one idle worker that has something to run; it wakes the next one."""
        waiting = self._queue.in_order() if self._idle else []
        if worker := next((idle for idle in self._idle if waiting and self._next_jobs(waiting, idle)), None):
            self._wakers[worker].notify()

    def _next_jobs(self, waiting: Sequence[ImageJob], worker: Worker) -> list[ImageJob]:
        """Return the next jobs of one model for this worker, skipping models that only other idle workers have loaded.

        While other clients are active, one client gets at most all workers but one.
        """
        running, limit = Counter(self._running.values()), max(1, len(self.workers) - 1)
        full = {client for client, count in running.items() if count >= limit and {*self._active} - {client}}
        eligible = [
            job
            for job in waiting
            if job.only is worker
            or (
                job.only is None
                and job.request.client not in full
                and (worker.has_loaded(job.model) or not any(idle.has_loaded(job.model) for idle in self._idle))
            )
        ]
        if eligible and eligible[0].is_retried:
            return eligible[:1]
        return [job for job in eligible if job.model.sha256 == eligible[0].model.sha256 and not job.is_retried]

    def _seconds_to_wait(self, jobs: Sequence[ImageJob]) -> float:
        """Return how many seconds to wait for announced requests; zero if the pass is full."""
        is_full = sum(len(job.images) for job in jobs) >= self.max_batch * len(self._idle)
        if is_full or not self._announced or self._stopping.is_set():
            return 0.0
        return min(job.submitted for job in jobs) + self.max_wait_seconds - time.monotonic()

    def _answer(self, batch: Sequence[ImageJob], worker: Worker) -> None:
        """Run one pass; if it fails, run each job alone, so that a bad image affects no other."""
        started = time.monotonic()
        try:
            images = np.concatenate([job.images for job in batch])
            outputs = worker.predict(batch[0].model, images, batch[0].request.client)
        except CheckpointError as error:
            refuse(batch, error)
            return
        except PassFailed as error:
            if len(batch) == 1:
                logger.error("a forward pass failed: %s", error)
                refuse(batch, AnswerFailed("the model failed on this image"))
            for job in batch if len(batch) > 1 else ():
                self._answer([job], worker)
            return
        start = 0
        for job in batch:
            rows = outputs[start : start + len(job.images)]
            start += len(job.images)
            if not np.isfinite(rows).all():
                refuse([job], AnswerFailed("the model returned NaN or infinity for this image"))
            else:
                with suppress(InvalidStateError):  # it was cancelled meanwhile
                    job.future.set_result(rows)
        if self._observer is not None:
            waited, took = started - min(job.submitted for job in batch), time.monotonic() - started
            self._observer(images=len(images), waited_seconds=waited, pass_seconds=took)


async def answers(jobs: Sequence[ImageJob]) -> np.ndarray:
    """Return the outputs of all jobs of one model, in order.  Raises as `Batcher.predict` does."""
    return np.concatenate(await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs)))
