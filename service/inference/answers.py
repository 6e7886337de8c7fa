"""Answers of models to images, by the kind of what they learned: classes, labels, numbers or masks."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from service.database.schemas import (
    AnswerOut,
    ClassOut,
    LabelOut,
    LabelsAnswerOut,
    MaskAnswerOut,
    NumberOut,
    NumbersAnswerOut,
    ShareOut,
)
from stages.checkpoint.contract import InputContract

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
        return MaskAnswerOut(checkpoint=checkpoint, shares=found, mask=_png_of(output))
    order = np.argsort(-output, kind="stable")[:top_k]
    top = [ClassOut(index=k, name=name(k), probability=float(output[k])) for k in order.tolist()]
    return AnswerOut(checkpoint=checkpoint, top=top)


def _png_of(mask: np.ndarray) -> str:
    image = Image.fromarray(mask)
    image.putpalette(COLOURS.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
