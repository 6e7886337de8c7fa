"""Batches of images on a CPU in one pass: crop, flip and normalisation (`images_native.cpp`), identical bit by bit.

A pixel has 256 values, so normalisation is a table of 256 numbers per channel, filled by the reference.

N images in all, B in a batch, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from stages.ops.agreement_native import agrees_here
from stages.ops.native import call, load_library
from stages.run import AugmentationSpec
from stages.training.images import ImageClassification, LabelledImages
from stages.training.loop import Task

_SOURCE = Path(__file__).with_suffix(".cpp")
_TRIED = 64  # images at most


def with_fast_batches(task: Task) -> Task:
    """`task`, or one that makes the same batches faster if there is one."""
    if not isinstance(task, ImageClassification) or type(task) is not ImageClassification or len(task) == 0:
        return task  # a subclass may have its own batches
    is_known = task.device.type == "cpu" and task.data.images.dtype == torch.uint8
    is_faster = is_known and load_library(_SOURCE) is not None and _agrees(task)
    return FastImageClassification(task.data, task.protocol) if is_faster else task


def _agrees(task: ImageClassification) -> bool:
    """True if batches of this size and normalisation agree, with every value that a pixel can have."""
    protocol, size, count = task.protocol, task.data.images.shape[1:], min(task.protocol.batch_size, _TRIED)

    def tried(kind: type[ImageClassification]) -> Iterator[Tensor]:
        pixels = torch.arange(count * size.numel(), device="cpu").mul_(7).to(torch.uint8)
        labels = torch.arange(count, device="cpu")
        same = kind(LabelledImages(pixels.view(count, *size), labels), protocol)
        yield from same.training_batch(labels, torch.Generator().manual_seed(0))
        yield from next(same.plain_batches(labels, count))

    claim = f"batches of {count} images {[*size]}, mean {[*protocol.mean]}, standard deviation {[*protocol.std]}"
    return agrees_here(claim, lambda: tried(FastImageClassification), lambda: tried(ImageClassification))


class FastImageClassification(ImageClassification):
    """`ImageClassification` on a CPU; the draws of `BatchAugmenter`, in its order."""

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs float32 [B, C, H, W] and labels int64 [B] of `rows` (int64 [B])."""
        spec, count = self.protocol.augmentation, len(rows)
        top = left = rows.new_zeros(count, dtype=torch.int64)
        mirrored = None
        if spec != AugmentationSpec():
            top, left = torch.randint(0, 2 * spec.crop_padding + 1, (2, count, 1), generator=generator).unbind()
        if spec.horizontal_flip:
            mirrored = torch.rand(count, 1, generator=generator) < 0.5
        return self._windows(self._augmenter.padded, rows, top, left, mirrored), self.data.labels[rows]

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same without augmentation, in order."""
        for part in rows.split(batch_size):
            zeros = torch.zeros_like(part, dtype=torch.int64)
            yield self._windows(self.data.images, part, zeros, zeros, None), self.data.labels[part]

    @cached_property
    def _numbers(self) -> Tensor:
        """The number that each pixel value becomes.  [C, 256]."""
        values = torch.arange(256, dtype=torch.uint8, device="cpu").expand(1, self.data.images.shape[1], 256)
        return self._normalize(values[..., None]).view(-1, 256).contiguous()

    def _windows(self, images: Tensor, rows: Tensor, top: Tensor, left: Tensor, mirrored: Tensor | None) -> Tensor:
        if len(rows) and not -len(images) <= rows.min() <= rows.max() < len(images):
            raise IndexError(f"rows go from {rows.min()} to {rows.max()}; there are {len(images)} images")
        rows = torch.where(rows < 0, rows + len(images), rows.long())
        size = self.data.images.shape[1:]
        out = torch.empty(len(rows), *size, dtype=torch.float32, device="cpu")
        images, rows, top, left = (tensor.contiguous() for tensor in (images, rows, top, left))
        sizes = (len(rows), *images.shape[1:], *size[1:])
        call(_SOURCE, "windows", images, rows, top, left, mirrored, self._numbers, out, *sizes)
        return out
