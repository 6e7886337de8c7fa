"""Observations of a paper inside a trained network, and in the same network before any step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.checkpoint.predictor import Predictor
from stages.datasets.packed import ImageSet
from stages.observation import Observed
from stages.papers import Observations, build_model, find_observations
from stages.run import ModelSpec, Replicate, canonical_json
from stages.runs.evidence import Layers, Measurement, Moment
from stages.training.kinds import RowSet
from stages.training.loop import seeded_model

IMAGES = 8
"""Number of test images that are observed, the first ones, unless the paper's module has its own `IMAGES`: transition
matrices are diagonalised, one an image and head."""
DIGITS = 7
"""Significant ones: as many as weights in single precision give."""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """The part of a result line about a network's inside; empty if no paper says anything about it."""

    metrics: tuple[Measurement, ...] = ()
    layers: Mapping[Moment, Layers] | None = None


class Observer:
    """Observes the networks of one test set; networks with the same initial weights share one look before training."""

    def __init__(self, test_set: RowSet) -> None:
        self.test_set = test_set if isinstance(test_set, ImageSet) else None
        self.untrained: dict[str, Observed] = {}

    def observe(self, predictor: Predictor, replicate: Replicate) -> Inside:
        """Observe a network of images that its paper studies; `replicate` gave it its initial weights.

        Raises:
            TypeError: the paper's module refuses a model that it claims to cover.
        """
        model = predictor.contract.model
        observations = None if self.test_set is None else find_observations(model)
        if observations is None or self.test_set is None:
            return Inside()
        number = getattr(observations, "IMAGES", IMAGES)
        images = predictor.inputs(torch.from_numpy(self.test_set.images[:number]))
        labels = torch.from_numpy(self.test_set.labels[:number]).long().to(images.device)
        trained = _look(observations, predictor.network, images, labels)
        split, n = ("test", trained.images) if trained.images else ("none", None)
        numbers = {name: _rounded(value) for name, value in trained.numbers.items()}
        return Inside(
            metrics=tuple(
                Measurement(metric=name, split=split, value=value, n=n)  # type: ignore[arg-type]  # one of two literals
                for name, value in numbers.items()
                if value is not None
            ),
            layers={
                "start": _layers(self._untrained(observations, model, replicate, images, labels)),
                "trained": _layers(trained),
            }
            if trained.layers
            else None,
        )

    def _untrained(
        self, observations: Observations, model: ModelSpec, replicate: Replicate, images: Tensor, labels: Tensor
    ) -> Observed:
        key = canonical_json([model.path, dict(model.arguments), replicate.seed, replicate.fold])
        if key not in self.untrained:
            network = seeded_model(lambda: build_model(model), replicate)
            self.untrained[key] = _look(observations, network.eval().to(images.device), images, labels)
        return self.untrained[key]


def _look(observations: Observations, network: nn.Module, images: Tensor, labels: Tensor) -> Observed:
    observe: Callable[..., Observed] = observations.observe
    wanted = {"labels": labels} if "labels" in inspect.signature(observe).parameters else {}
    with torch.no_grad():
        return observe(network, images, **wanted)


def _layers(observed: Observed) -> Layers:
    return {
        name: tuple(tuple(_rounded(value) for value in heads) for heads in blocks)
        for name, blocks in observed.layers.items()
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
