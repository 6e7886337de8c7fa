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
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.run import RecipeSpec
from stages.training.images import ImageClassification
from stages.training.session import Session
from stages.training.split import training_rows


class RecipeTask(ImageClassification):
    """The task of `plain`, with a recipe's loss and transforms while it trains."""

    def __init__(self, plain: ImageClassification, recipe: RecipeSpec, classes: int, rows: Tensor) -> None:
        super().__init__(plain.data, plain.protocol)
        self.smoothing = recipe.label_smoothing or 0.0
        self.weights: Tensor | None = None
        if recipe.class_weights == "balanced":
            labels = self.data.labels[rows.to(self.device)]  # of the rows that are trained on
            self.weights = len(labels) / (classes * labels.bincount(minlength=classes).clamp(min=1))
        elif recipe.class_weights is not None:
            self.weights = torch.tensor(recipe.class_weights, device=self.device)
        self.losses = _build([recipe.loss] if recipe.loss else (), self.device)
        self.transforms = _build(recipe.transforms or (), self.device)
        self.mix = _build(recipe.mix or (), self.device, num_classes=classes)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Crop and flip, then transform each image, normalise, and mix the batch: labels are then float32 [B, K]."""
        if not (self.transforms or self.mix):
            return super().training_batch(rows, generator)
        images = self._augmenter.batch(rows, generator)
        labels = self.data.labels[rows]
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        with _seeded(seed), torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)  # torchvision draws from the global generator
            for transform in self.transforms:
                images = torch.stack([transform(image) for image in images])
            inputs = self._normalize(images)
            for transform in self.mix:
                inputs, labels = transform(inputs, labels)
        return inputs, labels

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The recipe's loss in training, the plain one where nothing is learned from it."""
        if not torch.is_grad_enabled():
            return super().loss(logits, labels)
        if self.losses:
            return self.losses[0](logits.float(), labels)
        settings: dict[str, Any] = {"weight": self.weights, "label_smoothing": self.smoothing, "reduction": "sum"}
        return F.cross_entropy(logits.float(), labels, **settings) / self.mass(labels)

    def mass(self, labels: Tensor) -> Tensor | int:
        """Return what the loss divides by: rows, or the weights of their classes; mixed labels count as rows."""
        if self.weights is None or labels.ndim == 2:
            return len(labels)
        return self.weights[labels].sum().clamp(min=torch.finfo(torch.float32).tiny)

    def sums(self, logits: Tensor, labels: Tensor, loss: Tensor) -> Tensor:
        """`scores`; the class of a mixed image is the one that it has most of."""
        return super().sums(logits, labels.argmax(1) if labels.ndim == 2 else labels, loss)


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
    recipe, plain = session.spec.protocol.recipe, session.task
    assert recipe is not None and isinstance(plain, ImageClassification), "checked when the params are read"
    classes = session.spec.model.arguments.get("num_classes") or int(plain.data.labels.max()) + 1
    rows, _ = training_rows(len(plain), plain.protocol, session.spec.replicate)
    return dataclasses.replace(session, task=RecipeTask(plain, recipe, classes, rows))
