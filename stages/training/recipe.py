"""Additions to the training on images: label smoothing, class weights, other losses, and transforms.

Nothing else imports this module, so it is in the run keys of those runs alone that use it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import isclass
from typing import Any, cast
from typing import Protocol as Interface

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.run import RecipeSpec
from stages.training.images import ImageClassification
from stages.training.loop import Task
from stages.training.protocol import training_rows
from stages.training.session import Session


class Learned(Task, Interface):
    """A task on images that a recipe can change; B rows in a batch, K classes or labels."""

    @property
    def images(self) -> ImageClassification: ...

    @property
    def classes(self) -> int: ...

    def targets_of(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Return the targets of `rows`, moved by the same draws as their images."""
        ...

    def balanced(self, rows: Tensor, classes: int) -> Tensor:
        """Return the weight of each class that makes up for its share of `rows`, float32 [K]."""
        ...

    def loss(
        self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor: ...

    def mass(self, targets: Tensor, weights: Tensor | None = None) -> Tensor | int:
        """Return what the loss divides by."""
        ...


class _Classes(ImageClassification):
    """The plain task, with weights of classes."""

    @property
    def images(self) -> ImageClassification:
        return self

    @property
    def classes(self) -> int:
        return int(self.data.labels.max()) + 1

    def targets_of(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return self.data.labels[rows]

    def balanced(self, rows: Tensor, classes: int) -> Tensor:
        return len(rows) / (classes * self.data.labels[rows].bincount(minlength=classes).clamp(min=1))

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Mean cross entropy of logits [B, K] and classes, or shares of classes [B, K]."""
        settings: dict[str, Any] = {"weight": weights, "label_smoothing": smoothing, "reduction": "sum"}
        return F.cross_entropy(logits.float(), labels, **settings) / self.mass(labels, weights)

    def mass(self, labels: Tensor, weights: Tensor | None = None) -> Tensor | int:
        """Return the number of rows, or the sum of the weights of their classes; mixed labels count as rows."""
        if weights is None or labels.ndim == 2:
            return len(labels)
        return weights[labels].sum().clamp(min=torch.finfo(torch.float32).tiny)

    def sums(self, logits: Tensor, labels: Tensor, loss: Tensor) -> Tensor:
        """`scores`; the class of a mixed image is the one that it has most of."""
        return super().sums(logits, labels.argmax(1) if labels.ndim == 2 else labels, loss)


def learned(task: Task) -> Learned:
    """Return a task on images as one that a recipe can change."""
    if isinstance(task, ImageClassification):
        return _Classes(task.data, task.protocol)
    return cast(Learned, task)  # those of stages.training.tasks, which isn't imported for the sake of run keys


class RecipeTask:
    """The task `plain`, with a recipe's loss and transforms while it trains on `rows`."""

    def __init__(self, plain: Learned, recipe: RecipeSpec, classes: int, rows: Tensor) -> None:
        self.plain = plain
        self.scores, self.device = plain.scores, plain.device
        self.smoothing = recipe.label_smoothing or 0.0
        self.weights: Tensor | None = None
        if recipe.class_weights == "balanced":
            self.weights = plain.balanced(rows.to(self.device), classes)
        elif recipe.class_weights is not None:
            self.weights = torch.tensor(recipe.class_weights, dtype=torch.float32, device=self.device)
        self.losses = _build([recipe.loss] if recipe.loss else (), self.device)
        self.transforms = _build(recipe.transforms or (), self.device)
        self.mix = _build(recipe.mix or (), self.device, num_classes=classes)

    def __len__(self) -> int:
        return len(self.plain)

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.plain.plain_batches(rows, batch_size)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Crop and flip, then transform each image, normalise, and mix the batch: labels are then float32 [B, K].

        Raises:
            ValueError: a transform can't move masks, or changes the size of images.
        """
        if not (self.transforms or self.mix):
            return self.plain.training_batch(rows, generator)
        before = generator.get_state()
        targets = self.plain.targets_of(rows, generator)
        generator.set_state(before)  # the same draws
        images = self.plain.images._augmenter.batch(rows, generator)
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        with _seeded(seed), torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)  # torchvision draws from the global generator
            for transform in self.transforms:
                images, targets = _transformed(transform, images, targets)
            if images.shape[1:] != (expected := self.plain.images.data.images.shape[1:]):
                raise ValueError(f"recipe.transforms make images {[*images.shape[1:]]}; expected {[*expected]}")
            inputs = self.plain.images._normalize(images)
            for transform in self.mix:
                inputs, targets = transform(inputs, targets)
        return inputs, targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The recipe's loss in training, the plain one where nothing is learned from it."""
        if not torch.is_grad_enabled():
            return self.plain.loss(outputs, targets)
        if self.losses:
            return self.losses[0](outputs.float(), targets)
        return self.plain.loss(outputs, targets, self.weights, self.smoothing)

    def mass(self, targets: Tensor) -> Tensor | int:
        """Return what the loss in training divides by."""
        return self.plain.mass(targets, self.weights)

    def sums(self, outputs: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        return self.plain.sums(outputs, targets, loss)


def _transformed(transform: nn.Module, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Transform each of the images uint8 [B, C, H, W], with its mask if the targets are int64 [B, H, W].

    A mask has -1 for pixels that don't count; torchvision fills new corners with 0, so it gets masks that are raised.
    """
    if targets.ndim != 3:
        return torch.stack([transform(image) for image in images]), targets
    kinds = import_module("torchvision.tv_tensors")  # by name, so that only recipes with transforms have its version
    pairs = zip(images, (targets + 1).byte(), strict=True)
    try:
        moved = [transform(kinds.Image(image), kinds.Mask(mask)) for image, mask in pairs]
    except TypeError as error:
        raise ValueError(f"recipe.transforms: {type(transform).__name__} can't move masks ({error})") from None
    images, masks = (torch.stack([one.as_subclass(Tensor) for one in part]) for part in zip(*moved, strict=True))
    return images, masks.long() - 1


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and numpy, from which transforms of other packages draw, for a while."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _build(specs: Sequence[Mapping[str, Any]], device: torch.device, **given: Any) -> list[Any]:
    """Build transforms of torchvision, or modules of the package in front of their name, with constants on `device`.

    Raises:
        ValueError: one isn't an `nn.Module`, as all of torchvision's are, or has a state.
    """
    made = []
    for spec in specs:
        package, _, name = spec["name"].rpartition(":")
        make = getattr(import_module(package or "torchvision.transforms.v2"), name)
        if not (isclass(make) and issubclass(make, nn.Module)):
            raise ValueError(f"{spec['name']} is no nn.Module")
        # torchvision can't draw with an alpha that is an int
        arguments = {key: float(value) if key == "alpha" else value for key, value in spec.items() if key != "name"}
        module = make(**given, **arguments)
        if module.state_dict():
            raise ValueError(
                f"{spec['name']} has parameters or buffers, which nothing would train or save; "
                "register constants with persistent=False"
            )
        made.append(module.to(device))
    return made


def with_recipe(session: Session, devices: int) -> Session:
    """The session with its protocol's recipe.

    Raises:
        ValueError: several devices share the training, each of which would draw and weight for itself.
    """
    if devices > 1:
        raise ValueError("a training with a recipe can't be shared among devices; name one device")
    spec, plain = session.spec, learned(session.task)
    assert spec.protocol.recipe is not None, "the caller asks for it"
    classes = spec.model.arguments.get("num_classes") or plain.classes
    rows, _ = training_rows(len(plain), spec.protocol, spec.replicate)
    return dataclasses.replace(session, task=RecipeTask(plain, spec.protocol.recipe, classes, rows))
