"""The micro-batcher: every forward pass combines the images of as many requests as are waiting.

Requests wait in a bounded queue and take turns: the next images are those of the request that has had the fewest served
since it came, where each request of a client comes one image behind its others that wait.  So whoever asks a thousand
times at once holds up itself; and where the queue is full, the last images of who has most there make room for others.
A pass takes images of one model, up to `max_batch`, or up to its share when other workers are idle.  It waits for more
only while announced requests are still being decoded, so a single request is answered at once.

A worker that ends is replaced, and the requests of its pass are told to come again (`suspects`: what becomes of a model
at which workers end).
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from service.inference.models import Model
from service.inference.pending import PendingRequest, answers, withdraw
from service.inference.processes import ProcessGone
from service.inference.suspects import SetAside, Suspects
from service.inference.workers import NeverBegan, PassFailed
from service.slots import holder
from stages.checkpoint.contract import CheckpointError

LOOK_SECONDS = 0.5  # between two looks at whether an idle worker is still there
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # before another start of a worker that ends again and again
logger = logging.getLogger("claimcheck")


class QueueFull(RuntimeError):
    """The queue has no room for more images; a later request may be answered."""


class InferenceStopped(RuntimeError):
    """The worker that was to answer is gone, or the service ends; a later request may be answered."""


class AnswerFailed(RuntimeError):
    """The model has no answer to this image: its pass raised an error or returned values that aren't probabilities."""


class Runner(Protocol):
    """Runs passes, one at a time: see `Worker`."""

    @property
    def is_alive(self) -> bool: ...

    def probabilities(self, model: Model, images: np.ndarray) -> np.ndarray: ...

    def restart(self) -> None: ...


class Observer(Protocol):
    """Called after each pass with its number of images, the longest wait and the duration of the pass in seconds."""

    def __call__(self, *, images: int, waited_seconds: float, pass_seconds: float) -> None: ...


class Batcher:
    """Safe to use from several threads and event loops.  `start` it before, `stop` it after.

    Every worker has a thread that hands it passes and replaces it where it has ended.
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
        self._jobs: list[PendingRequest] = []  # by turn
        self._clock = 0  # the turn that was served last
        self._changed = threading.Condition()
        self._announced = self._idle = 0
        self._stopping = threading.Event()
        self._given_up: set[Runner] = set()  # for now: they end again and again
        self.suspects = Suspects()
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
            self._changed.notify_all()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:  # started
                thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_alive(self) -> bool:
        """True where at least one worker serves."""
        return not self._stopping.is_set() and self.serving > 0

    @property
    def serving(self) -> int:
        """Number of workers that run."""
        return sum(worker.is_alive for worker in self.workers)

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
                if self._jobs:
                    self._changed.notify()

    def submit(self, model: Model, images: np.ndarray) -> list[PendingRequest]:
        """Queue `images`, in jobs of at most `max_batch`.

        Raises:
            QueueFull: there is no room for all of them.
            InferenceStopped: no worker serves.
            SetAside: workers end at this model.
        """
        with self._changed:
            if self._stopping.is_set() or len(self._given_up) == len(self.workers):
                raise InferenceStopped("inference isn't running at the moment")
            self.suspects.require_fit(model)
            client = holder.get()
            self._make_room(client, len(images))
            begin = self._clock + sum(job.client == client and job.is_first for job in self._jobs)
            jobs = [
                PendingRequest(model, images[start : start + self.max_batch], client, begin + start, start == 0)
                for start in range(0, len(images), self.max_batch)
            ]
            for job in jobs:
                insort(self._jobs, job, key=lambda waiting: waiting.turn)
            self._changed.notify()  # who takes some of them wakes the next one
        return jobs

    def _make_room(self, client: str, count: int) -> None:
        """Refuse `count` images, or in their place waiting ones, the last of each time whoever has most waiting."""
        lacking = self._count() + count - self.max_waiting
        if lacking <= 0:
            return
        waiting = [job for job in self._jobs if not job.future.cancelled()]
        held = Counter[str]()
        for job in waiting:
            held[job.client] += len(job.images)
        refusal = QueueFull(f"{held.total()} images are waiting already; at most {self.max_waiting} may")
        given_up: list[PendingRequest] = []
        while lacking > 0:
            most, images = max(held.items(), key=lambda item: item[1], default=("", 0))
            last = next((job for job in reversed(waiting) if job.client == most and job not in given_up), None)
            if last is None or images <= held[client] + count:
                raise refusal
            given_up.append(last)
            held[most] -= len(last.images)
            lacking -= len(last.images)
        for job in given_up:
            self._jobs.remove(job)
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(refusal)

    def submit_all(self, questions: Sequence[tuple[Model, np.ndarray]]) -> list[list[PendingRequest]]:
        """Queue the images of one request for each model, in turns one behind the other: all of them or none.

        Raises:
            QueueFull, InferenceStopped, SetAside: as `submit`.
        """
        jobs: list[list[PendingRequest]] = []
        try:
            for model, images in questions:
                jobs.append(self.submit(model, images))
        except BaseException:
            withdraw(jobs)
            raise
        return jobs

    async def probabilities(self, model: Model, images: np.ndarray) -> np.ndarray:
        """Class probabilities, float32 [N, K], of uint8 images [N, C, H, W]; a cancelled call leaves the queue.

        Raises:
            QueueFull, InferenceStopped, SetAside: as `submit`; QueueFull later, too, where others need the room.
            InferenceStopped: the worker ended, too.
            AnswerFailed: the model has no answer to one of the images.
            CheckpointError: the weights can't be loaded.
        """
        jobs = self.submit(model, images)
        try:
            return await answers(jobs)
        finally:
            withdraw([jobs])

    def _count(self) -> int:
        return sum(len(job.images) for job in self._jobs if not job.future.cancelled())

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
            if deaths:
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
            if len(self._given_up) < len(self.workers):
                return
            left, self._jobs = self._jobs, []
        for job in left:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(InferenceStopped("inference isn't running at the moment"))

    def _serve(self, batch: Sequence[PendingRequest], worker: Runner) -> bool:
        """Answer the batch; False where the worker ended at it."""
        model, started = batch[0].model, time.monotonic()
        try:
            self._answer(batch, worker)
            self.suspects.clear(model)
        except ProcessGone as error:
            logger.error("%s, at %s (run %s)", error, model.path, model.contract.run_key)
            if not isinstance(error, NeverBegan):
                self._blame(model, started)
            self._fail(batch, InferenceStopped("the process that was to answer ended; ask again"))
            return False
        except Exception:  # no memory, for example, which the next pass may have
            logger.exception("a pass of %s failed", model.path)
            self._fail(batch, AnswerFailed("the model failed on this image"))
        return True

    @staticmethod
    def _fail(batch: Sequence[PendingRequest], error: Exception) -> None:
        for job in batch:
            if not job.future.done():
                job.future.set_exception(error)

    def _blame(self, model: Model, started: float) -> None:
        """Count the death; where the model is set aside by it, refuse what waits for it."""
        with self._changed:
            if not self.suspects.blame(model, started):
                return
            waiting = [job for job in self._jobs if job.model.sha256 == model.sha256]
            self._jobs = [job for job in self._jobs if job.model.sha256 != model.sha256]
        started_jobs = [job for job in waiting if job.future.set_running_or_notify_cancel()]
        self._fail(started_jobs, SetAside.at(model))

    def _next_batch(self, worker: Runner) -> list[PendingRequest] | None:
        """The next jobs of one model that run together; empty where the worker is gone, or after a while without jobs,
        so that it is looked after; None once the batcher stops and nothing is left.
        """
        with self._changed:
            self._idle += 1
            try:
                while True:
                    self._jobs = [job for job in self._jobs if not job.future.cancelled()]
                    if not self._jobs and self._stopping.is_set():
                        return None
                    if not self._jobs or (time_left := self._worth_waiting()) > 0:
                        is_woken = self._changed.wait(time_left if self._jobs else LOOK_SECONDS)
                        if not is_woken and not self._jobs:
                            return []
                        continue
                    if not worker.is_alive:
                        return []
                    batch = self._share()
                    self._clock = max(self._clock, batch[0].turn)
                    for job in batch:
                        self._jobs.remove(job)
                    if started := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                        return started
            finally:
                self._idle -= 1
                if self._jobs:
                    self._changed.notify()  # the waiting images may be enough for the remaining workers

    def _same_model(self) -> list[PendingRequest]:
        return [job for job in self._jobs if job.model.sha256 == self._jobs[0].model.sha256]

    def _worth_waiting(self) -> float:
        """Seconds in which announced requests may still join; zero if they would find no room."""
        is_full = sum(len(job.images) for job in self._same_model()) >= self.max_batch * self._idle
        if is_full or not self._announced or self._stopping.is_set():
            return 0.0
        return min(job.submitted for job in self._same_model()) + self.max_wait_seconds - time.monotonic()

    def _share(self) -> list[PendingRequest]:
        """The next jobs of one model for a pass: as many as fit, divided evenly among idle workers."""
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
