"""Uploaded images and chosen checkpoints to predictions.  Runs in a worker thread, never on the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.predictors import PredictorCache
from service.queries import Answerer
from service.schemas import AnswerOut, ClassOut, ImageAnswersOut, ModelOut, PredictionOut
from stages.checkpoint import Predictor
from stages.images import ImageError, decode_image

# A large image takes some 150 MB while it is decoded, and requests come on forty threads.
_DECODING = threading.BoundedSemaphore(2)


@dataclass(frozen=True)
class Upload:
    """A file as it came; `name` is the client's word and only ever shown."""

    name: str
    content: bytes


def predict(
    uploads: Sequence[Upload], answerers: Sequence[Answerer], predictors: PredictorCache, *, top_k: int
) -> PredictionOut:
    """What each checkpoint says about each image.

    Raises:
        ImageError: a file is no image that we read; the message names the file.
        CheckpointError: weights are gone, or aren't those that were recorded.
    """
    started = time.perf_counter()
    images: dict[tuple[int, int, int], np.ndarray] = {}
    models, answers = [], []
    for answerer in answerers:
        predictor = predictors.get(answerer.path, answerer.sha256)
        shape = predictor.contract.shape
        if shape not in images:
            images[shape] = np.stack([_decode(upload, shape) for upload in uploads])
        before = time.perf_counter()
        probabilities = predictors.probabilities(predictor, images[shape])
        models.append(_model(answerer, time.perf_counter() - before))
        answers.append([_answer(answerer.id, predictor, row, top_k) for row in probabilities])
    return PredictionOut(
        images=[
            ImageAnswersOut(file=upload.name, answers=[column[number] for column in answers])
            for number, upload in enumerate(uploads)
        ],
        models=models,
        seconds=time.perf_counter() - started,
    )


def _decode(upload: Upload, shape: tuple[int, int, int]) -> np.ndarray:
    try:
        with _DECODING:
            return decode_image(upload.content, shape)
    except ImageError as error:
        raise type(error)(f"{upload.name}: {error}") from None


def _answer(checkpoint: str, predictor: Predictor, probabilities: np.ndarray, top_k: int) -> AnswerOut:
    """The `top_k` likeliest classes; equal probabilities in the order of the classes."""
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    names = predictor.contract.classes
    return AnswerOut(
        checkpoint=checkpoint,
        top=[ClassOut(index=int(k), name=names[k], probability=float(probabilities[k])) for k in order],
    )


def _model(answerer: Answerer, seconds: float) -> ModelOut:
    return ModelOut(
        checkpoint=answerer.id,
        experiment=answerer.experiment,
        arm=answerer.arm,
        title=answerer.title,
        role=answerer.role,
        replicate=answerer.replicate,
        dataset=answerer.dataset,
        run_key=answerer.run_key,
        weights_sha256=answerer.sha256,
        profile=answerer.profile,
        provenance=answerer.provenance,
        label=answerer.label,
        our_accuracy=answerer.accuracy,
        paper_accuracy=answerer.paper_accuracy,
        paper_claim=answerer.paper_claim,
        seconds=seconds,
    )
