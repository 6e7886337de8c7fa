"""Inversion of prototypes (w → −w) in a trained one-layer network, as the authors' page on experiments describes it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from stages.papers import Observed, refuse_model
from stages.papers.nmn.prototypes import DotPrototypes, YatPrototypes

MODELS = (DotPrototypes, YatPrototypes)
IMAGES = None  # an accuracy needs the whole test set


def observe(model: nn.Module, images: Tensor, labels: Tensor) -> Observed:
    """Return accuracy on `images` after the weights change sign; biases, α and ε stay, which is our reading.

    Raises:
        TypeError: the model has no prototypes.
    """
    if not isinstance(model, MODELS):
        raise refuse_model(model, MODELS)
    inverted = copy.deepcopy(model)
    with torch.no_grad():
        inverted.units.weight.neg_()
        correct = (inverted(images).argmax(dim=1) == labels).sum().item()
    return Observed(numbers={"accuracy_after_inversion": correct / len(images)}, layers={}, images=len(images))
