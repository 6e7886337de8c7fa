"""The numbers that evaluation reads from a trained HyperBF are those of its parameters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stages.papers.hyperbf import HyperBF, HyperBFAsWritten, ViT
from stages.papers.hyperbf.observations import observe
from tests.papers.hyperbf.conftest import OWN, SMALL

IMAGES = torch.zeros(1, 3, 12, 12)


def built(name: str) -> nn.Module:
    model_class, own = OWN[name]
    return model_class(**SMALL | own)


def test_numbers_are_means_over_the_blocks() -> None:
    model = built("both-metrics")
    assert isinstance(model, HyperBF)
    widths = ((0.5, 2.0), (1.0, 4.0))
    with torch.no_grad():
        for block, (attention, feedforward) in zip(model.blocks, widths, strict=True):
            block.attention.beta.fill_(1 / (2 * attention**2))
            block.feedforward.beta.fill_(1 / (2 * feedforward**2))
        model.blocks[0].attention.metric_factor.mul_(2)  # M = 4 I there, I elsewhere
    observed = observe(model, IMAGES)
    assert observed.numbers == pytest.approx({"kernel_width_gap": math.log(4), "metric_distance_from_identity": 3 / 4})
    assert [value for (value,) in observed.layers["attention_sigma"]] == pytest.approx([0.5, 1.0])
    assert [value for (value,) in observed.layers["attention_metric_change"]] == pytest.approx([3.0, 0.0])
    assert observed.images == 0, "weights alone"


def test_without_a_learned_metric_there_is_no_distance() -> None:
    model_class, own = OWN["hyperbf"]
    plain = model_class(**SMALL | own | {"attention_metric": "euclidean"})
    assert observe(plain, IMAGES).numbers.keys() == {"kernel_width_gap"}


def test_a_width_that_is_not_defined_is_no_number() -> None:
    model = built("hyperbf")
    assert isinstance(model, HyperBF)
    with torch.no_grad():
        model.blocks[1].attention.beta.fill_(-0.1)
    observed = observe(model, IMAGES)
    assert math.isnan(observed.numbers["kernel_width_gap"])
    first, second = observed.layers["attention_sigma"]
    assert math.isfinite(first[0]) and math.isnan(second[0])


def test_only_this_architecture_is_looked_into() -> None:
    written = HyperBFAsWritten(**SMALL | OWN["hyperbf"][1])
    assert observe(written, IMAGES).layers.keys() >= {"attention_sigma", "feedforward_sigma"}
    vit = ViT(**SMALL | OWN["vit"][1])
    with pytest.raises(TypeError, match="model is a ViT; this paper's observations are about HyperBF"):
        observe(vit, IMAGES)
