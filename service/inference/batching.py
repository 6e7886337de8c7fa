"""The micro-batcher: every forward pass combines the images of as many requests as are waiting.

Images wait in the fair queue, by the seconds that they are estimated to compute.  A pass takes images of one model, up
to `max_batch` and to `PASS_SECONDS`, or up to its share when other workers are idle.  It waits for more only while
announced requests are still being decoded, so a single request is answered at once.

A worker that ends is replaced, and each request of its pass is tried once more, by itself.  A model at which that ends
a worker again is set aside for a while.
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
from typing import Protocol

import numpy as np
from cachetools import TTLCache

from service.inference.models import Model
from service.inference.processes import ProcessGone
from service.inference.workers import NeverBegan, PassFailed
from service.slots import FairQueue, Request, Ticket, holder, refuse
from stages.checkpoint.contract import CheckpointError

LOOK_SECONDS = 0.5  # between two looks at whether an idle worker is still there
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # before another start of a worker that ends again and again
PASS_SECONDS = 0.05  # estimated; another client waits for as long
ASIDE_SECONDS = 600.0
ACTIVE_SECONDS = 1.0  # after its last request, a client may well ask again
logger = logging.getLogger("claimcheck")


class InferenceStopped(RuntimeError):
    """The worker that was to answer is gone, or the service ends; a later request may be answered."""


class AnswerFailed(RuntimeError):
    """The model has no answer to this image: its pass raised an error or returned values that aren't probabilities."""


class SetAside(RuntimeError):
    """Workers end at this model, so it isn't asked for `ASIDE_SECONDS`."""

    @classmethod
    def at(cls, model: Model) -> SetAside:
        return cls(
            f"inference processes ended at the model of run {model.contract.run_key[:12]}, 2 in a row; "
            f"it is set aside for {ASIDE_SECONDS / 60:g} minutes"
        )


@dataclass(eq=False, kw_only=True)
class Job(Ticket):
    """Images uint8 [N, C, H, W] for one pass; `future` gets their probabilities float32 [N, K].

    `only`: the worker that must answer.  `is_retried`: a worker ended at it.
    """

    model: Model
    images: np.ndarray
    only: Runner | None = None
    is_retried: bool = False
    future: Future[np.ndarray] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)


class Runner(Protocol):
    """Runs passes, one at a time: see `Worker`."""

    @property
    def is_alive(self) -> bool: ...

    def has_loaded(self, model: Model) -> bool: ...

    def probabilities(self, model: Model, images: np.ndarray, client: str) -> np.ndarray: ...

    def restart(self) -> None: ...


class Batcher:
    """Safe to use from several threads and event loops.  `start` it before, `stop` it after.

    Every worker has a thread that hands it passes and replaces it where it has ended.  `observer` is called after each
    pass with its `images`, the longest wait (`waited_seconds`) and its duration (`pass_seconds`).
    """

    def __init__(
        self,
        workers: Sequence[Runner],
        *,
        max_batch: int,
        max_wait_seconds: float,
        max_waiting_seconds: float,
        observer: Callable[..., None] | None = None,
    ) -> None:
        self.workers, self._observer = workers, observer
        self.max_batch, self.max_wait_seconds = max_batch, max_wait_seconds
        self.max_waiting_seconds = max_waiting_seconds
        self._queue = FairQueue[Job]("asking models", max_waiting_seconds)
        self._changed = threading.Lock()
        self._wakers = {worker: threading.Condition(self._changed) for worker in workers}
        self._announced = 0
        self._idle: set[Runner] = set()
        self._stopping = threading.Event()
        self._given_up: set[Runner] = set()  # for now: they end again and again
        self._running: dict[Runner, str] = {}  # the client of each pass
        self._active: TTLCache[str, None] = TTLCache(1000, ACTIVE_SECONDS)  # clients that ask
        self._set_aside: dict[str, tuple[Model, float]] = {}  # until when
        self._threads = [
            threading.Thread(target=self._run, args=(worker,), name="inference", daemon=True) for worker in workers
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Answer what is waiting, then end the threads; a pass that takes longer than that is abandoned."""
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
        """Number of workers that run."""
        return sum(worker.is_alive for worker in self.workers)

    @property
    def waiting(self) -> int:
        """Number of images in the queue."""
        with self._changed:
            return sum(len(job.images) for job in self._queue.in_order())

    @property
    def set_aside(self) -> list[Model]:
        """The models that aren't asked for now."""
        return [model for model, until in list(self._set_aside.values()) if time.monotonic() < until]

    def require_fit(self, model: Model) -> None:
        """Raises:
        SetAside: workers end at this model.
        """
        _, until = self._set_aside.get(model.sha256, (None, 0.0))
        if time.monotonic() < until:
            raise SetAside.at(model)

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
                self._wake()

    @contextmanager
    def submitted(
        self, questions: Sequence[tuple[Model, np.ndarray]], only: Runner | None = None
    ) -> Iterator[list[list[Job]]]:
        """Queue the images of one request for each model; whatever hasn't begun at the end leaves the queue.

        Raises:
            Busy: there is no room for all of them; a job's future, too, where others need the room.
            InferenceStopped: no worker serves.
            SetAside: workers end at one of the models.
        """
        request = Request()
        with self._changed:
            if self._stopping.is_set() or len(self._given_up) == len(self.workers):
                raise InferenceStopped("inference isn't running at the moment")
            jobs = [self._jobs_of(request, model, images, only) for model, images in questions]
            self._queue.put(list(itertools.chain(*jobs)))
            self._active[request.client] = None
            self._wake()
        try:
            yield jobs
        finally:
            for job in itertools.chain(*jobs):
                job.future.cancel()

    def require_room(self, images: int, models: Sequence[Model]) -> None:
        """Raise `Busy` where `submitted` would: before images are decoded in vain."""
        with self._changed:
            self._queue.require_room(holder.get(), sum(images * model.seconds for model in models))

    def _jobs_of(self, request: Request, model: Model, images: np.ndarray, only: Runner | None) -> list[Job]:
        self.require_fit(model)
        size = max(1, min(self.max_batch, int(PASS_SECONDS / model.seconds)))
        parts = [images[start : start + size] for start in range(0, len(images), size)]
        return [
            Job(request=request, cost=len(part) * model.seconds, model=model, images=part, only=only) for part in parts
        ]

    async def probabilities(self, model: Model, images: np.ndarray, only: Runner | None = None) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W]; a cancelled call leaves the queue.

        Raises:
            Busy, InferenceStopped, SetAside: as `submitted`.
            AnswerFailed: the model has no answer to one of the images.
            CheckpointError: the weights can't be loaded.
        """
        with self.submitted([(model, images)], only) as (jobs,):
            return await answers(jobs)

    def _run(self, worker: Runner) -> None:
        deaths = 0  # in a row: neither an answer nor a while of life in between
        try:
            while (batch := self._next_batch(worker)) is not None:
                if self._serve(batch, worker) if batch else worker.is_alive:
                    deaths = 0
                    continue
                if not self._replaced(worker, deaths):
                    return
                deaths += 1
        finally:
            self._give_up(worker)

    def _replaced(self, worker: Runner, deaths: int) -> bool:
        """Start another one, at once or, where that didn't help, after a while; False once the batcher stops."""
        logger.error("an inference process is gone and is replaced")
        while not self._stopping.is_set():
            if deaths > 1:  # a request that ends workers ends two
                self._give_up(worker)
                self._stopping.wait(min(FIRST_PAUSE * 2**deaths, LONGEST_PAUSE))
            try:
                worker.restart()
            except OSError as error:
                logger.error("no inference process can be started: %s", error)
                deaths += 1
            else:
                self._given_up.discard(worker)
                return True
        return False

    def _give_up(self, worker: Runner) -> None:
        """Nothing waits for this worker; where no other one serves, what waits is refused."""
        with self._changed:
            self._given_up.add(worker)
            if len(self._given_up) == len(self.workers):
                refuse(self._queue.in_order(), InferenceStopped("inference isn't running at the moment"))

    def _serve(self, batch: Sequence[Job], worker: Runner) -> bool:
        """Answer the batch; False where the worker ended at it."""
        try:
            self._answer(batch, worker)
        except ProcessGone as error:
            model = batch[0].model
            logger.error("%s, at %s (run %s)", error, model.path, model.contract.run_key)
            self._retry(batch, has_begun=not isinstance(error, NeverBegan))
            return False
        except Exception:  # no memory, for example, which the next pass may have
            logger.exception("a pass of %s failed", batch[0].model.path)
            refuse(batch, AnswerFailed("the model failed on this image"))
        finally:
            with self._changed:
                del self._running[worker]
                self._wake()
        return True

    def _retry(self, batch: Sequence[Job], *, has_begun: bool) -> None:
        """Queue again what a worker ended at; a model at which a job ends two of them is set aside."""
        with self._changed:
            model = batch[0].model
            if has_begun and any(job.is_retried and not job.future.done() for job in batch):
                logger.error("%s (run %s) is set aside", model.path, model.contract.run_key)
                self._set_aside[model.sha256] = model, time.monotonic() + ASIDE_SECONDS
                same = [job for job in self._queue.in_order() if job.model.sha256 == model.sha256]
                refuse([*batch, *same], SetAside.at(model))
            for job in batch:
                job.is_retried |= has_begun
            self._queue.put_back(batch)

    def _next_batch(self, worker: Runner) -> list[Job] | None:
        """The next jobs of one model that run together; empty where the worker is gone, or after a while without jobs,
        so that it is looked after; None once the batcher stops and nothing is left.
        """
        with self._changed:
            self._idle.add(worker)
            try:
                while True:
                    waiting = self._queue.in_order()
                    if not waiting and self._stopping.is_set():
                        return None
                    jobs = self._same_model(waiting, worker)
                    if not jobs or (time_left := self._worth_waiting(jobs)) > 0:
                        if not self._wakers[worker].wait(time_left if jobs else LOOK_SECONDS) and not jobs:
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
                self._wake()  # the waiting images may be enough for the remaining workers

    def _wake(self) -> None:
        """Wake one idle worker that may run something, which wakes the next one."""
        waiting = self._queue.in_order() if self._idle else []
        if worker := next((idle for idle in self._idle if waiting and self._same_model(waiting, idle)), None):
            self._wakers[worker].notify()

    def _same_model(self, waiting: Sequence[Job], worker: Runner) -> list[Job]:
        """The next jobs of one model for this worker, which loads none that an idle one has.

        A client has all workers but one while others ask, too.
        """
        held, most = Counter(self._running.values()), max(1, len(self.workers) - 1)
        full = {client for client, count in held.items() if count >= most and {*self._active} - {client}}
        mine = [
            job
            for job in waiting
            if job.only is worker
            or (
                job.only is None
                and job.request.client not in full
                and (worker.has_loaded(job.model) or not any(idle.has_loaded(job.model) for idle in self._idle))
            )
        ]
        if mine and mine[0].is_retried:
            return mine[:1]
        return [job for job in mine if job.model.sha256 == mine[0].model.sha256 and not job.is_retried]

    def _worth_waiting(self, jobs: Sequence[Job]) -> float:
        """Seconds in which announced requests may still join; zero if they would find no room."""
        is_full = sum(len(job.images) for job in jobs) >= self.max_batch * len(self._idle)
        if is_full or not self._announced or self._stopping.is_set():
            return 0.0
        return min(job.submitted for job in jobs) + self.max_wait_seconds - time.monotonic()

    def _answer(self, batch: Sequence[Job], worker: Runner) -> None:
        """Run one pass; if it fails, run each job by itself, so that one bad image spoils no other's answer."""
        started = time.monotonic()
        try:
            images = np.concatenate([job.images for job in batch])
            found = worker.probabilities(batch[0].model, images, batch[0].request.client)
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
            rows = found[start : start + len(job.images)]
            start += len(job.images)
            if not np.isfinite(rows).all():
                refuse([job], AnswerFailed("the model's answer to this image is not a number"))
            else:
                with suppress(InvalidStateError):  # cancelled meanwhile
                    job.future.set_result(rows)
        if self._observer is not None:
            waited, took = started - min(job.submitted for job in batch), time.monotonic() - started
            self._observer(images=len(images), waited_seconds=waited, pass_seconds=took)


async def answers(jobs: Sequence[Job]) -> np.ndarray:
    """The probabilities of all jobs of one model, in their order.  Raises as `Batcher.probabilities`."""
    return np.concatenate(await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs)))
