"""Test images of a data set, for users without an image at hand, and the recorded answers of runs to them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import SafetensorError, safe_open
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.comparing import are_of
from service.database.schemas import SampleOut
from stages.datasets.packed import PackedDataError, PackedInfo, read_info
from stages.results import Array, ExperimentComparison, Result, unpack_confusion, unpack_correct

MOST = 12  # fit in a row of the page


class NoSample(LookupError):
    """The image doesn't exist here; the message says what does."""


class Samples:
    """Test images of one data set below `root`: packed ones or, if those are missing or placeholders, a few from git.

    Raises:
        NoSample: none is here, or the data set has no images.
    """

    def __init__(self, root: Path, dataset: str, root_path: str = "") -> None:
        self._below = f"{root_path}/api/v1/datasets/{dataset}/samples"
        packed, few = (_open(root / "data" / place / dataset) for place in ("processed", "samples"))
        are_few = few is not None and (packed is None or packed[0].provenance == "embedded")
        found = few if are_few else packed
        if found is None:
            raise NoSample(f"the images of {dataset} are not here; `dvc repro preprocess@{dataset}` packs them")
        self.info, self._file = found
        if self.info.kind != "images":
            raise NoSample(f"{dataset} is a {self.info.kind} and has no images")
        if len(self._file.get_slice("labels").get_shape()) != 1:
            raise NoSample(f"the images of {dataset} have no class each, by which samples are chosen")
        self.positions: Sequence[int] = (self.info.test_rows or ()) if are_few else range(self.info.test_images)

    def __contains__(self, position: int) -> bool:
        return position in self.positions

    def chosen(self) -> list[SampleOut]:
        """Return the first image of each of a row of classes, spread over all classes."""
        classes, first = np.unique(self._file.get_tensor("labels"), return_index=True)
        spread = np.linspace(0, len(classes) - 1, min(MOST, len(classes))).round().astype(int)
        return [self.describe(self.positions[int(first[label])]) for label in spread]

    def describe(self, position: int) -> SampleOut:
        """Return class and address of one image by its position in the packed set.

        Raises:
            NoSample: it isn't here.
        """
        row = self._row(position)
        return SampleOut(
            position=position,
            true_class=self.info.classes[int(self._file.get_slice("labels")[row : row + 1][0])],
            provenance=self.info.provenance,
            address=f"{self._below}/{position}",
        )

    def _row(self, position: int) -> int:
        if position not in self:
            here = f"{self.info.dataset} has {self.info.test_images:,} test images here"
            raise NoSample(f"sample {position}: {here}")
        return self.positions.index(position)

    def png(self, position: int) -> bytes:
        """Return one image as PNG; raises as `describe` does."""
        row = self._row(position)
        pixels = self._file.get_slice("images")[row : row + 1][0]
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()


def _open(folder: Path) -> tuple[PackedInfo, Any] | None:
    """Open a packed set: its description and test images; None if they are not here."""
    try:
        return read_info(folder), safe_open(folder / "test.safetensors", framework="numpy")
    except (PackedDataError, SafetensorError, OSError):
        return None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Answers of `runs` runs: `confusion` counts true and predicted classes, `right` the right runs by image."""

    runs: int
    data_digest: str
    confusion: np.ndarray
    right: np.ndarray

    def mistakes(self, most: int) -> list[tuple[int, int, int]]:
        """Return the most frequent wrong answers, as (true class, predicted class, count)."""
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        found = [(int(true), int(answer)) for true, answer in zip(*np.unravel_index(order, wrong.shape), strict=True)]
        return [(true, answer, int(wrong[true, answer])) for true, answer in found if wrong[true, answer]]


def list_runs_of(session: Session, comparison: ExperimentComparison, arm: str) -> list[Result]:
    """Return this model's results in the comparison, by replicate."""
    query = select(Result).where(*are_of(comparison), Result.arm == arm).order_by(Result.replicate)
    return list(session.scalars(query))


def answers_of(session: Session, results: list[Result], classes: int) -> Answered | None:
    """Add up the recorded answers of these results; None if no result on real data has any."""
    real = [result.id for result in results if result.provenance != "embedded"]
    query = select(Array).where(Array.result_id.in_(real))
    kept = {(row.result_id, row.kind): row.content for row in session.scalars(query)}
    whole = [one for one in results if {(one.id, "correct"), (one.id, "confusion")} <= kept.keys()]
    if not whole:
        return None
    return Answered(
        runs=len(whole),
        data_digest=whole[0].data_digest,
        confusion=np.sum([unpack_confusion(kept[one.id, "confusion"], classes) for one in whole], axis=0),
        right=np.sum([unpack_correct(kept[one.id, "correct"], one.test_images) for one in whole], axis=0),
    )
