"""Tasks other than to name one class of an image or one number of a table's row.

The loop doesn't import this module, so it is in the run keys of those runs alone whose spec has such a task.

B rows in a batch, K targets of each.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import isclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.datasets.packed import PackedInfo
from stages.run import RunSpec
from stages.training.images import BatchAugmenter, ImageClassification
from stages.training.loop import Task, measure
from stages.training.session import Session, task_of


class OtherTask:
    """The rows of `plain`, whose targets mean something else; its subclasses read them and define the loss."""

    scores: tuple[str, ...] = ("loss",)

    def __init__(self, plain: Task) -> None:
        self.plain, self.device = plain, plain.device

    def __len__(self) -> int:
        return len(self.plain)

    @property
    def images(self) -> ImageClassification:
        assert isinstance(self.plain, ImageClassification), "recipes are for images"
        return self.plain

    @property
    def classes(self) -> int:
        return self.images.data.labels.shape[1]

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets float32 [B, K] of `rows`, augmented as those of `plain` are."""
        inputs, targets = self.plain.training_batch(rows, generator)
        return inputs, self.read(targets)

    def targets_of(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return the targets float32 [B, K] of `rows`; `generator` is unused."""
        return self.read(self.images.data.labels[rows])

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same without augmentation, in order."""
        for inputs, targets in self.plain.plain_batches(rows, batch_size):
            yield inputs, self.read(targets)

    def read(self, targets: Tensor) -> Tensor:
        """Convert packed targets [B, K] to float32."""
        return targets.float()

    def predict(self, outputs: Tensor) -> Tensor:
        """Return what the outputs of `plain_batches` say of the targets: logits of labels or pixels, or numbers."""
        return outputs

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Return the quantity to minimise, a mean over all B x K outputs, float32; `weights` are of classes.

        Raises:
            ValueError: the network's outputs aren't [B, K].
        """
        if outputs.shape != targets.shape:
            raise ValueError(f"the network returns {[*outputs.shape]}; its task needs {[*targets.shape]}")
        return self.mean(outputs.float(), targets, weights, smoothing)

    @abstractmethod
    def mean(self, outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        """Return the mean loss of outputs and targets."""

    def mass(self, targets: Tensor, weights: Tensor | None = None) -> Tensor | int:
        """Return the number of rows, by which the loss divides."""
        return len(targets)

    def balanced(self, rows: Tensor, classes: int) -> Tensor:
        """Return how many of `rows` lack a label for each that has it, float32 [K]."""
        has = self.images.data.labels[rows].sum(0)
        return (len(rows) - has) / has.clamp(min=1)

    def sums(self, outputs: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """`scores` summed over the batch, float64 [1]; `loss` is the batch mean."""
        return (loss.double() * len(targets)).reshape(1)


class MultiLabel(OtherTask):
    """Binary cross entropy in nats over K labels, each of which a row has (1) or lacks (0).

    The weight of a label counts for rows that have it (PyTorch's `pos_weight`).
    """

    def mean(self, outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights)


class ImageRegression(OtherTask):
    """Mean squared error over K numbers per image, packed as the bits of float64 in int64."""

    def read(self, targets: Tensor) -> Tensor:
        return targets.view(torch.float64).float()

    def mean(self, outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        return F.mse_loss(outputs, targets)


class Segmentation(OtherTask):
    """Cross entropy of each pixel over K classes, without those pixels that don't count.

    A mean is over pixels, as in PyTorch: of a batch that trains, and of all rows that are measured.

    Masks are packed as bytes, eight in an int64: 0 for a pixel that doesn't count, as in the padding of crops, else its
    class and one.
    """

    def __init__(self, plain: Task) -> None:
        super().__init__(plain)
        data, protocol = self.images.data, self.images.protocol
        self._size, self._most = data.images.shape[-2:], protocol.batch_size
        masks = self._unpack(data.labels).unsqueeze(1)
        self._masks = BatchAugmenter(masks, protocol.augmentation)
        self._classes = int(masks.max()) if len(masks) else 0
        self._row_mass: Tensor | None = None
        """Pixels that count in each of the rows that are being measured, on average."""

    @property
    def classes(self) -> int:
        return self._classes

    def _unpack(self, packed: Tensor) -> Tensor:
        """Return uint8 [B, H, W] of int64 [B, ceil(H W / 8)]."""
        height, width = self._size
        return packed.view(torch.uint8)[:, : height * width].reshape(-1, height, width)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and classes int64 [B, H, W] of `rows`, cropped and flipped together; -1 doesn't count."""
        before = generator.get_state()
        inputs, _ = self.plain.training_batch(rows, generator)
        generator.set_state(before)  # the same draws
        return inputs, self.targets_of(rows, generator)

    def targets_of(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return classes int64 [B, H, W] of `rows`, cropped and flipped; -1 doesn't count."""
        return self._masks.batch(rows, generator).squeeze(1).long() - 1

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same in order, in batches no larger than training's: logits [B, K, H, W] are most of the memory."""
        counts = [self.mass(self.read(self.images.data.labels[part])) for part in rows.split(self._most)]
        self._row_mass = torch.stack(counts).sum().double() / len(rows) if counts else None
        yield from super().plain_batches(rows, min(batch_size, self._most))

    def read(self, targets: Tensor) -> Tensor:
        return self._unpack(targets).long() - 1

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Mean cross entropy of logits [B, K, H, W] over the pixels that count, float32; `weights` are of classes.

        Raises:
            ValueError: the network's outputs aren't [B, K, H, W].
        """
        count, height, width = targets.shape
        given = outputs.shape
        if given[:1] + given[2:] != targets.shape or given[1] < self._classes:
            needed = f"[{count}, {self._classes}, {height}, {width}]"
            raise ValueError(f"the network returns {[*given]}; its task needs {needed}")
        return self.mean(outputs.float(), targets, weights, smoothing)

    def mean(self, outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        settings: dict[str, Any] = {"weight": weights, "label_smoothing": smoothing, "reduction": "sum"}
        return F.cross_entropy(outputs, targets, ignore_index=-1, **settings) / self.mass(targets, weights)

    def mass(self, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the number of pixels that count, or the sum of their classes' weights; never quite 0."""
        counts = targets >= 0
        whole = counts.sum() if weights is None else (weights[targets.clamp(min=0)] * counts).sum()
        return whole.clamp(min=torch.finfo(torch.float32).tiny)

    def balanced(self, rows: Tensor, classes: int) -> Tensor:
        """Return the inverse share of each class among the pixels of `rows` that count, float32 [K]."""
        parts = [self._unpack(self.images.data.labels[part]).flatten() for part in rows.split(self._most)]
        counts = torch.stack([part.bincount(minlength=classes + 1) for part in parts]).sum(0)[1:]
        return counts.sum() / (classes * counts.clamp(min=1))

    def sums(self, outputs: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """`scores` summed over the batch, float64 [1].

        In measurements a row of a batch counts by its pixels, as if all rows were one batch.
        """
        if torch.is_grad_enabled() or self._row_mass is None:
            return super().sums(outputs, targets, loss)
        return (loss.double() * self.mass(targets) / self._row_mass).reshape(1)


TASKS: Mapping[str, type[OtherTask]] = {
    "multi-label": MultiLabel,
    "regression": ImageRegression,
    "segmentation": Segmentation,
}


def task_named(name: str | None, plain: Task) -> Task:
    """Return the task of this name on the rows of `plain`; `plain` itself if the name is None or a kind of data."""
    return TASKS[name](plain) if name is not None and name in TASKS else plain


def task_learned(spec: RunSpec, plain: Task) -> Task:
    """Return what `spec` learns on the rows of `plain`: its `task_class`, or as `task_named`.

    Raises:
        ValueError: the class isn't one for the spec's task.
    """
    if spec.task_class is None:
        return task_named(spec.task, plain)
    arguments = dict(spec.task_class)
    module, _, name = (address := arguments.pop("name")).partition(":")
    base, found = TASKS[spec.task or ""], getattr(import_module(module), name)
    if not (isclass(found) and issubclass(found, base)):
        raise ValueError(f"{address} is no subclass of stages.training.tasks.{base.__name__}, whose targets it learns")
    task: Task = found(plain, **arguments)
    return task


def with_task(session: Session, data: Path, info: PackedInfo, devices: int) -> Session:
    """Return the session with the task that its spec names; `data` is the folder of its packed set.

    Raises:
        ValueError: devices share the batches of a segmentation, whose mean counts pixels, not images, or of another
            package's task.
    """
    spec, observe = session.spec, None
    if spec.task == "segmentation" and devices > 1:
        raise ValueError("a segmentation's loss counts pixels, so devices can't share it; name one device")
    if spec.task_class is not None and devices > 1:
        raise ValueError("devices can't share a task_class, whose loss may not be a mean over rows; name one device")
    if session.observe is not None:
        test = task_learned(spec, task_of(spec, data, info, "test", session.task.device))

        def observe(model: nn.Module) -> dict[str, float]:
            return {f"test_{name}": value for name, value in measure(model, test).items()}

    return dataclasses.replace(session, task=task_learned(spec, session.task), observe=observe)
