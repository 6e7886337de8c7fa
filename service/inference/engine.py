"""Predictions from uploaded images and chosen checkpoints: classes, labels, numbers or masks.

The checkpoints that a request refers to are found with one database query per content and question.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import io
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache
from PIL import Image
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from service.database import queries
from service.database.queries import MAX_NAMES, ServedCheckpoint, list_checkpoints
from service.database.schemas import (
    AnswerOut,
    ClassOut,
    ImageAnswersOut,
    LabelOut,
    LabelsAnswerOut,
    MaskAnswerOut,
    ModelOut,
    NumberOut,
    NumbersAnswerOut,
    PredictionOut,
    ShareOut,
)
from service.inference.batching import AnswerFailed, Batcher, ImageJob, InferenceStopped, ModelUnavailable, answers
from service.inference.decoding import Decoder, Upload, all_or_none
from service.inference.workers import Model, Models, Worker, cost_of, state_of
from service.slots import Busy, SessionPool
from stages.checkpoint.contract import CheckpointError, InputContract
from stages.results import UnknownName, database_url

CacheKey = tuple[object, ...]
MAX_REMEMBERED = 1024


class Choices:
    """Caches answers until the database changes: a replaced file, or new content behind a URL."""

    def __init__(self, database: str, asking: SessionPool) -> None:
        url = make_url(database_url(database))
        self._file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self._asking = asking
        self._found: LRUCache[CacheKey, list[ServedCheckpoint]] = LRUCache(MAX_REMEMBERED)

    async def named(self, names: Sequence[str], dataset: str | None, arms: Sequence[str]) -> list[ServedCheckpoint]:
        """Return the checkpoints with these names or, without names, those of the data set, for these or all arms."""

        def find(session: Session) -> list[ServedCheckpoint]:
            return (
                queries.choose_checkpoints(session, dataset, arms)
                if dataset
                else queries.find_checkpoints(session, names)
            )

        return await self.get((tuple(names), dataset, tuple(arms)), find)

    async def get(
        self, question: CacheKey, find: Callable[[Session], list[ServedCheckpoint]]
    ) -> list[ServedCheckpoint]:
        """Return the answer of `find` to `question`; errors aren't cached. Raises `Busy` like `SessionPool.ask`."""
        # Read first, so that an answer is never older than the content.
        content = state_of(self._file) if self._file else await self._asking.ask(queries.content_digest)
        key = content, question
        if (found := self._found.get(key)) is None:
            found = self._found[key] = await self._asking.ask(find)
        return found


class UnknownModel(UnknownName):
    """`known` lists the most similar models, or all if there are few."""

    kind = "model"


class UnknownVersion(UnknownName):
    kind = "version"


def find_versions(session: Session, model: str) -> list[ServedCheckpoint]:
    """Return the checkpoints of the model `<experiment>.<arm>` by replicate.

    Raises:
        UnknownModel: no weights of such a model are available; for a checkpoint's id, the message names its model.
    """
    experiment, _, arm = model.partition(".")
    found = list_checkpoints(session, arm_of=(experiment, arm))
    if not found:
        every = list_checkpoints(session)
        known = list(dict.fromkeys(row.model_name for row in every))
        if len(known) > MAX_NAMES:
            known = difflib.get_close_matches(model[:120], known, n=3, cutoff=0.0)
        own = (f"{row.model_name} (of which this is version {row.model_version})" for row in every if row.id == model)
        raise UnknownModel(model[:120], [*own] or known)
    return sorted(found, key=lambda served_checkpoint: served_checkpoint.replicate)


def find_version(versions: Sequence[ServedCheckpoint], version: str) -> ServedCheckpoint:
    """Return the version with this name.

    Raises:
        UnknownVersion: the model has no such version.
    """
    for served_checkpoint in versions:
        if served_checkpoint.model_version == version:
            return served_checkpoint
    raise UnknownVersion(version[:40], [served_checkpoint.model_version for served_checkpoint in versions[:MAX_NAMES]])


MOST_CLASSES = 20_480
"""Classes in one answer, which is written on the event loop: 10 for each of 32 images by 64 models."""
MOST_MASK_PIXELS = 8_000_000
"""Pixels of all masks in one answer: at worst as many bytes before base64."""
COLOURS = np.stack(
    [sum((np.arange(256) >> 3 * bit + channel & 1) << 7 - bit for bit in range(3)) for channel in range(3)], axis=1
).astype(np.uint8)
"""Red, green and blue of each class in a mask, [256, 3], as in PASCAL VOC."""


class TooManyAnswers(ValueError):
    """A request needs more answers than the queue or a response can hold."""


def require_size(contracts: Sequence[InputContract], images: int, top_k: int) -> None:
    """Check that the answers of these models to so many images aren't too large.

    Raises:
        TooManyAnswers: they would have more than `MOST_CLASSES` or `MOST_MASK_PIXELS`.
    """
    sizes = [min(top_k, len(one.classes)) if one.kind == "images" else len(one.classes) for one in contracts]
    advice = "send fewer images or name fewer models"
    if (classes := images * sum(sizes)) > MOST_CLASSES:
        advice = "lower top_k" if all(one.kind == "images" for one in contracts) else advice
        raise TooManyAnswers(f"the answer would have {classes:,} classes; at most {MOST_CLASSES:,}: {advice}")
    pixels = images * sum(one.shape[1] * one.shape[2] for one in contracts if one.kind == "segmentation")
    if pixels > MOST_MASK_PIXELS:
        raise TooManyAnswers(f"the masks would have {pixels:,} pixels; at most {MOST_MASK_PIXELS:,}: {advice}")


def describe_answer(
    checkpoint: str, contract: InputContract, output: np.ndarray, top_k: int
) -> AnswerOut | LabelsAnswerOut | NumbersAnswerOut | MaskAnswerOut:
    """Describe the model's output for one image, a row of what `Predictor.predict` returns.

    A classifier's `top_k` likeliest classes come first, ties in class order; a mask's classes by their shares.
    """

    def name(index: int) -> str:  # a network may have more outputs than its data have classes
        return contract.classes[index] if index < len(contract.classes) else f"output {index}"

    if contract.kind == "multi-label":
        labels = [
            LabelOut(index=k, name=name(k), probability=p, is_predicted=p >= 0.5) for k, p in enumerate(output.tolist())
        ]
        return LabelsAnswerOut(checkpoint=checkpoint, labels=labels)
    if contract.kind == "regression":
        numbers = [NumberOut(index=k, name=name(k), value=value) for k, value in enumerate(output.tolist())]
        return NumbersAnswerOut(checkpoint=checkpoint, numbers=numbers)
    if contract.kind == "segmentation":
        shares = np.bincount(output.reshape(-1)) / output.size
        found = [
            ShareOut(index=k, name=name(k), share=shares[k], colour=f"#{COLOURS[k].tobytes().hex()}")
            for k in np.argsort(-shares, kind="stable").tolist()
            if shares[k]
        ]
        image, buffer = Image.fromarray(output), io.BytesIO()
        image.putpalette(COLOURS.tobytes())
        image.save(buffer, "PNG")
        mask = base64.b64encode(buffer.getvalue()).decode("ascii")
        return MaskAnswerOut(checkpoint=checkpoint, shares=found, mask=mask)
    order = np.argsort(-output, kind="stable")[:top_k]
    top = [ClassOut(index=k, name=name(k), probability=float(output[k])) for k in order.tolist()]
    return AnswerOut(checkpoint=checkpoint, top=top)


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
            ModelOut.model_validate(
                {
                    **vars(one),
                    "checkpoint": one.id,
                    "weights_sha256": one.sha256,
                    "our_accuracy": None if one.is_stand_in else one.accuracy,
                    "seconds": seconds,
                }
            )
            for one, (_, seconds) in zip(served_checkpoints, answered, strict=True)
        ],
        seconds=time.perf_counter() - started,
    )


async def _timed(jobs: Sequence[ImageJob]) -> tuple[np.ndarray, float]:
    before = time.perf_counter()
    return await answers(jobs), time.perf_counter() - before
