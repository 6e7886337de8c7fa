"""Predictions from uploaded images and chosen checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from service.database.queries import ServedCheckpoint
from service.database.schemas import ImageAnswersOut, ModelOut, PredictionOut
from service.inference.answers import TooManyAnswers, describe_answer, require_size
from service.inference.batching import AnswerFailed, Batcher, ImageJob, InferenceStopped, ModelUnavailable, answers
from service.inference.decoding import Decoder, Upload, all_or_none
from service.inference.models import Model, Models, cost_of
from service.inference.workers import Worker
from service.slots import Busy
from stages.checkpoint.contract import CheckpointError

THREADS = 4
Done = TypeVar("Done")
logger = logging.getLogger("claimcheck")


@dataclass(frozen=True)
class Engine:
    """Contracts of models, the decoder, and the batcher with its workers."""

    models: Models
    decoder: Decoder
    workers: Sequence[Worker]
    batcher: Batcher
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "answering"))

    def start(self) -> None:
        for worker in self.workers:
            worker.start()
        self.decoder.start()
        self.batcher.start()

    def stop(self) -> None:
        """Answer waiting requests, then stop."""
        self.decoder.stop()
        self.batcher.stop()
        for worker in self.workers:
            worker.stop()
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], Done]) -> Done:
        """Return the result of `work`, run in threads that pages don't wait for."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def model(self, served_checkpoint: ServedCheckpoint) -> Model:
        """Return the model of the served checkpoint, after checking its file once.

        Raises:
            CheckpointError: the weights are missing, or aren't the recorded ones.
            ModelUnavailable: it crashes workers, so it is disabled.
        """
        path, sha256, flops = served_checkpoint.path, served_checkpoint.sha256, served_checkpoint.flops_per_image
        found = self.models.known(path, sha256)
        if found is None:
            found = await self.in_thread(lambda: self.models.get(path, sha256, flops))
        try:
            self.batcher.require_enabled(found)
        except ModelUnavailable as error:
            raise ModelUnavailable(f"{served_checkpoint.id}: {error}") from None
        return found

    def require_capacity(self, images: int, served_checkpoints: Sequence[ServedCheckpoint]) -> None:
        """Check that this many predictions fit into an empty queue.

        Raises:
            TooManyAnswers: they would take longer than the queue allows.
        """
        costs = [cost_of(one.size_bytes, one.flops_per_image) for one in served_checkpoints]
        seconds = sum(images * of_image + of_load for of_image, of_load in costs)
        if seconds > (most := self.batcher.max_waiting_seconds):
            raise TooManyAnswers(
                f"{images} images by {len(costs)} checkpoints take some {seconds:.1g} s of computing; one request "
                f"takes at most {most:g} s (CLAIMCHECK_MAX_WAITING_SECONDS)"
            )

    async def warm_up(
        self, served_checkpoint: ServedCheckpoint, workers: Sequence[Worker], sizes: Sequence[int] = (1,)
    ) -> None:
        """Run the first passes, which are slow, so that no client waits for them; skip models that can't be loaded."""
        try:
            model = await self.model(served_checkpoint)
            for size in sizes:
                images = np.zeros((size, *model.contract.shape), dtype=np.uint8)
                await asyncio.gather(*(self.batcher.predict(model, images, only=worker) for worker in workers))
        except (CheckpointError, Busy, InferenceStopped, AnswerFailed, ModelUnavailable) as error:
            logger.error("warming up with %s: %s", served_checkpoint.id, error)


async def predict(
    uploads: Sequence[Upload], served_checkpoints: Sequence[ServedCheckpoint], engine: Engine, *, top_k: int
) -> PredictionOut:
    """Predict every readable image with every checkpoint.

    Raises:
        ImageError: no file is a supported image; the message names the first one.
        CheckpointError: the weights are missing, or aren't the recorded ones.
        TooManyAnswers: the answer would be too large (`require_size`).
        Busy, InferenceStopped, AnswerFailed, ModelUnavailable: see `Batcher`.
    """
    started = time.perf_counter()
    with engine.batcher.announce():
        models = [await engine.model(served_checkpoint) for served_checkpoint in served_checkpoints]
        require_size([model.contract for model in models], len(uploads), top_k)
        engine.batcher.require_capacity(len(uploads), models)
        shapes = sorted({model.contract.shape for model in models})
        decoded, errors = await engine.decoder.decode(uploads, shapes)
        images = dict(zip(shapes, decoded, strict=True))
    with engine.batcher.submitted([(model, images[model.contract.shape]) for model in models]) as jobs:
        answered = await all_or_none([asyncio.ensure_future(_timed(of_model)) for of_model in jobs])

    def describe() -> list[list[Any]]:
        return [
            [describe_answer(served_checkpoint.id, model.contract, row, top_k) for row in outputs]
            for served_checkpoint, model, (outputs, _) in zip(served_checkpoints, models, answered, strict=True)
        ]

    has_masks = any(model.contract.kind == "segmentation" for model in models)  # compressing them takes a while
    by_model = await engine.in_thread(describe) if has_masks else describe()
    of_image = iter(zip(*by_model, strict=True))
    return PredictionOut(
        images=[
            ImageAnswersOut(file=upload.name, answers=[], problem=str(errors[number]))
            if number in errors
            else ImageAnswersOut(file=upload.name, answers=list(next(of_image)))
            for number, upload in enumerate(uploads)
        ],
        models=[
            _model(served_checkpoint, seconds)
            for served_checkpoint, (_, seconds) in zip(served_checkpoints, answered, strict=True)
        ],
        seconds=time.perf_counter() - started,
    )


async def _timed(jobs: Sequence[ImageJob]) -> tuple[np.ndarray, float]:
    before = time.perf_counter()
    return await answers(jobs), time.perf_counter() - before


def _model(served_checkpoint: ServedCheckpoint, seconds: float) -> ModelOut:
    own = {
        "checkpoint": served_checkpoint.id,
        "weights_sha256": served_checkpoint.sha256,
        "our_accuracy": None if served_checkpoint.is_stand_in else served_checkpoint.accuracy,
        "seconds": seconds,
    }
    return ModelOut.model_validate(vars(served_checkpoint) | own)
