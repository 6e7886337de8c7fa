"""Networks of the MNIST experiments against their equations, and the accuracy after their weights change sign."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.papers.nmn import DotPrototypes, ResNet18, YatMLP, YatPrototypes
from stages.papers.nmn.observations import observe

MNIST = {"image_size": 28, "in_channels": 1, "num_classes": 10}
PACKAGE = {"scale": "multiplier", "epsilon": 1e-5}
TWO = {"image_size": 1, "in_channels": 2, "num_classes": 2}
POINTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]]).view(4, 2, 1, 1)
"""Two pixels each; the larger pixel is the class."""
CLASSES = torch.tensor([0, 1, 0, 1])


def yat(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, alpha: float) -> np.ndarray:
    """The released package's layer, unit by unit: alpha (x·w + b)² / (‖x − w‖² + 1e-5)."""
    units = [(x @ w + b) ** 2 / (((x - w) ** 2).sum(axis=1) + 1e-5) for w, b in zip(weight, bias, strict=True)]
    return alpha * np.stack(units, axis=1)


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def some_images() -> Tensor:
    return torch.rand(3, 1, 28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_perceptron_is_two_yat_layers_and_a_linear_one() -> None:
    torch.manual_seed(0)
    model = YatMLP(**MNIST, hidden1=16, hidden2=8, **PACKAGE).double()
    with torch.no_grad():
        model.first.scale.alpha.fill_(1.5)
        model.second.scale.alpha.fill_(0.7)
    own, images = arrays(model), some_images()
    hidden = yat(images.flatten(1).numpy(), own["first.weight"], own["first.bias"], 1.5)
    hidden = yat(hidden, own["second.weight"], own["second.bias"], 0.7)
    expected = hidden @ own["head.weight"].T + own["head.bias"]
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-9)


def test_yat_prototypes_are_one_yat_layer() -> None:
    torch.manual_seed(0)
    model = YatPrototypes(**MNIST, **PACKAGE).double()
    own, images = arrays(model), some_images()
    expected = yat(images.flatten(1).numpy(), own["units.weight"], own["units.bias"], 1.0)
    np.testing.assert_allclose(model(images).detach().numpy(), expected, rtol=1e-9)


def dot_prototypes(bias: list[float]) -> DotPrototypes:
    model = DotPrototypes(**TWO)
    with torch.no_grad():
        model.units.weight.copy_(torch.eye(2))
        model.units.bias.copy_(torch.tensor(bias))
    return model


def test_inverted_dot_products_reverse_the_order_of_the_classes() -> None:
    """W = I: every point is right, and every point is wrong with −I."""
    model = dot_prototypes([0.0, 0.0])
    assert (model(POINTS).argmax(1) == CLASSES).all()
    observed = observe(model, POINTS, CLASSES)
    assert (dict(observed.numbers), observed.images) == ({"accuracy_after_inversion": 0.0}, 4)


def test_inversion_leaves_the_bias_as_it_is() -> None:
    """With −I and a bias of 10 for class 0, every point is of class 0; with −10 it would be of class 1."""
    observed = observe(dot_prototypes([10.0, 0.0]), POINTS[:3], CLASSES[:3])
    assert observed.numbers["accuracy_after_inversion"] == pytest.approx(2 / 3)


def test_inverted_yat_units_keep_classes_where_alignment_decides() -> None:
    """W = I without bias: −I squares to the same alignment, and the distances hardly differ for large inputs."""
    model = YatPrototypes(**TWO, **PACKAGE)
    with torch.no_grad():
        model.units.weight.copy_(torch.eye(2))
        model.units.bias.zero_()
    assert observe(model, POINTS, CLASSES).numbers["accuracy_after_inversion"] == 1.0


def test_observation_leaves_the_network_as_it_is() -> None:
    model = dot_prototypes([0.0, 0.0])
    observe(model, POINTS, CLASSES)
    assert torch.equal(model.units.weight, torch.eye(2))


def test_another_model_is_refused() -> None:
    other = ResNet18(image_size=8, in_channels=1, num_classes=2, width=2)
    with pytest.raises(
        TypeError, match="model is a ResNet18; this paper's observations are about DotPrototypes, YatPr"
    ):
        observe(other, POINTS, CLASSES)
