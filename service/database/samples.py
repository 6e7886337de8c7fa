"""Test images of a data set, for anyone who wants to try a model and has no image at hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import SafetensorError, safe_open

from service.database.schemas import SampleOut
from stages.datasets.packed import PackedDataError, PackedInfo, read_info

MOST = 12  # a row of the page
PNG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
}
"""The answer of one sample, for OpenAPI."""


class NoSample(LookupError):
    """There is no such image here; the message says what there is."""


class Samples:
    """The packed test images of one data set below `root`.

    Raises:
        NoSample: they are not here, or the data set has none.
    """

    def __init__(self, root: Path, dataset: str) -> None:
        folder = root / "data" / "processed" / dataset
        try:
            self.info: PackedInfo = read_info(folder)
            if self.info.kind != "images":
                raise NoSample(f"{dataset} is a {self.info.kind} and has no images")
            self._file: Any = safe_open(folder / "test.safetensors", framework="numpy")
        except (PackedDataError, SafetensorError, OSError):
            raise NoSample(
                f"the images of {dataset} are not here; `dvc repro preprocess@{dataset}` packs them"
            ) from None

    def chosen(self) -> list[SampleOut]:
        """The first image of each of as many classes as fit in a row, spread over all classes."""
        classes, first = np.unique(self._file.get_tensor("labels"), return_index=True)
        spread = np.linspace(0, len(classes) - 1, min(MOST, len(classes))).round().astype(int)
        return [self.describe(int(first[label])) for label in spread]

    def describe(self, index: int) -> SampleOut:
        """Class and address of one image by its position in the packed set.

        Raises:
            NoSample: there are fewer images.
        """
        self._require(index)
        return SampleOut(
            position=index,
            true_class=self.info.classes[int(self._file.get_slice("labels")[index : index + 1][0])],
            provenance=self.info.provenance,
            address=f"/api/v1/datasets/{self.info.dataset}/samples/{index}",
        )

    def _require(self, index: int) -> None:
        if index >= self.info.test_images:
            raise NoSample(f"sample {index}: {self.info.dataset} has {self.info.test_images:,} test images here")

    def png(self, index: int) -> bytes:
        """One image as PNG; raises as `describe`."""
        self._require(index)
        pixels = self._file.get_slice("images")[index : index + 1][0]
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()
