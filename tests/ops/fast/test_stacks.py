"""Operators for several networks at once (DAC layers and dense steps) equal PyTorch's, network by network."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.dac import dac_linear_reference
from stages.ops.fast import dense_stack
from stages.ops.fast.dac_stack import dac_stack
from stages.training.tf32 import RoundedOperands
from tests.ops.gradients import Layer, as_leaves, assert_alike, in_doubles, leaves, value_and_gradients

pytestmark = pytest.mark.skipif(not dense_stack.is_available(), reason="no C++ compiler here")


def dac_operands(networks: int, samples: int, inputs: int, units: int) -> list[Tensor]:
    """Return x [M, I, B], and weight and bias [M, U, I]."""
    return leaves((networks, inputs, samples), (networks, units, inputs), (networks, units, inputs))


def dac_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    each = [dac_linear_reference(one.T, *own).T for one, *own in zip(x, weight, bias, strict=True)]
    return torch.stack(each)


@pytest.mark.parametrize(
    ("networks", "samples", "inputs", "units"), [(1, 1, 1, 1), (3, 40, 14, 18), (2, 1100, 25, 1), (4, 257, 35, 33)]
)
def test_dac_stack_equals_the_reference_in_float64(networks: int, samples: int, inputs: int, units: int) -> None:
    tensors = dac_operands(networks, samples, inputs, units)
    assert_alike(value_and_gradients(dac_stack, tensors), value_and_gradients(dac_reference, in_doubles(tensors)))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_stays_in_its_network(place: int) -> None:
    tensors = dac_operands(3, 20, 5, 4)
    with torch.no_grad():
        tensors[place][1].view(-1)[0] = float("nan")
    for tensor in value_and_gradients(dac_stack, tensors)[:3]:
        assert not tensor[[0, 2]].isnan().any()
    assert dac_stack(*tensors)[1].isnan().any()


@pytest.mark.parametrize("place", [0, 1])
def test_nan_reaches_only_the_gradients_of_its_network(place: int) -> None:
    tensors = dac_operands(3, 20, 5, 4)
    grad = torch.ones(3, 4, 20)
    with torch.no_grad():
        (tensors[1] if place else grad)[1].view(-1)[0] = float("nan")
    to_x, *_ = torch.autograd.grad(dac_stack(*tensors), tensors, grad)
    assert to_x[1].isnan().any() and not to_x[[0, 2]].isnan().any()


EPSILON = 1e-5
SIZES = pytest.mark.parametrize(
    ("networks", "samples", "features", "widths"),
    [
        (1, 3, 2, [1]),
        (3, 40, 14, [18, 18]),
        (2, 63, 9, [7, 5, 3]),
        (2, 65, 4, [6, 8]),
        (2, 1024, 14, [25] * 6),
        (4, 257, 5, [35, 33, 16]),
        (2, 1100, 250, [250, 141, 9]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else str(value),
)


def operands(networks: int, samples: int, features: int, widths: list[int]) -> list[Tensor]:
    """Return features [M, B, F], targets [M, B] and parameters, in the order of `dense_stack.losses`."""
    generator = torch.Generator().manual_seed(networks + samples + features + sum(widths))

    def normal(*shape: int) -> Tensor:
        return torch.randn(networks, *shape, generator=generator)

    parameters = []
    for inputs, units in pairwise([features, *widths]):
        parameters += [normal(units, inputs) * (2 / inputs) ** 0.5, 1 + 0.3 * normal(units), 0.3 * normal(units)]
    parameters += [normal(1, widths[-1]) / widths[-1] ** 0.5, normal(1)]
    return [normal(samples, features), normal(samples), *(parameter.requires_grad_() for parameter in parameters)]


def fast(features: Tensor, targets: Tensor) -> Callable[..., Tensor]:
    return lambda *parameters: dense_stack.losses(features, targets, parameters, EPSILON)[0]


def plain(features: Tensor, targets: Tensor) -> Callable[..., Tensor]:
    def losses(*parameters: Tensor) -> Tensor:
        return torch.stack(
            [
                (outputs(*own, training=True)[0] - wanted).square().mean()
                for *own, wanted in zip(features, *parameters, targets, strict=True)
            ]
        )

    return losses


def outputs(
    x: Tensor, *parameters: Tensor, training: bool, statistics: tuple[Tensor, ...] = ()
) -> tuple[Tensor, list[Tensor]]:
    """Return one network's predictions [B] from features [B, F] by PyTorch's operators, and the batch's statistics."""
    found: list[Tensor] = []
    *hidden, weight, bias = parameters
    for place in range(0, len(hidden), 3):
        z = x @ hidden[place].T
        found += [z.mean(0), z.var(0, correction=0)]
        layer = 2 * (place // 3)
        mean, variance = (None, None) if training else statistics[layer : layer + 2]
        x = F.relu(F.batch_norm(z, mean, variance, *hidden[place + 1 : place + 3], training=training, eps=EPSILON))
    return (x @ weight.T + bias).squeeze(1), found


@SIZES
def test_losses_and_gradients_equal_single_networks_in_float64(
    networks: int, samples: int, features: int, widths: list[int]
) -> None:
    x, targets, *parameters = operands(networks, samples, features, widths)
    expected = value_and_gradients(plain(x.double(), targets.double()), in_doubles(parameters))
    assert_alike(value_and_gradients(fast(x, targets), parameters), expected)


@SIZES
def test_statistics_equal_those_of_the_batch(networks: int, samples: int, features: int, widths: list[int]) -> None:
    x, targets, *parameters = operands(networks, samples, features, widths)
    _, statistics = dense_stack.losses(x, targets, parameters, EPSILON)
    doubles = [x.double(), *in_doubles(parameters)]
    each = [outputs(*own, training=True)[1] for own in zip(*doubles, strict=True)]
    assert_alike(statistics, [torch.stack(own).detach() for own in zip(*each, strict=True)])
    assert not any(tensor.requires_grad for tensor in statistics)


@SIZES
def test_predictions_use_the_given_statistics(networks: int, samples: int, features: int, widths: list[int]) -> None:
    x, _, *parameters = operands(networks, samples, features, widths)
    generator = torch.Generator().manual_seed(1)
    statistics = [torch.rand(networks, units, generator=generator) + 0.1 for units in widths for _ in range(2)]
    doubles = [tensor.detach().double() for tensor in (x, *parameters, *statistics)]
    expected = []
    for own, *others in zip(*doubles, strict=True):
        of_network, norms = others[: len(parameters)], tuple(others[len(parameters) :])
        expected.append(outputs(own, *of_network, training=False, statistics=norms)[0])
    assert_alike([dense_stack.predict(x, parameters, statistics, EPSILON)], [torch.stack(expected)])


def test_variances_are_accurate_despite_a_large_mean() -> None:
    x, targets, *parameters = operands(2, 200, 3, [4])
    x += 1000
    _, (_, variance) = dense_stack.losses(x, targets, parameters, EPSILON)
    z = x.double() @ parameters[0].detach().double().mT
    torch.testing.assert_close(variance.double(), z.var(1, correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("samples", "features", "widths"), [(2, 5, [4, 4]), (3, 1, [1]), (70, 1, [1, 1, 1])], ids=str)
def test_gradients_that_vanish_without_epsilon_are_accurate(samples: int, features: int, widths: list[int]) -> None:
    x, targets, *parameters = operands(3, samples, features, widths)
    ours = value_and_gradients(fast(x, targets), parameters)
    expected = value_and_gradients(plain(x.double(), targets.double()), in_doubles(parameters))
    largest = max(float(tensor.abs().max()) for tensor in expected)
    for got, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5 * largest)


def test_shared_features_are_supported() -> None:
    x, _, *parameters = operands(3, 20, 8, [8, 8])
    statistics = [torch.ones(3, 8)] * 4
    shared = x[:1].expand(3, 20, 8)
    ours = dense_stack.predict(shared, parameters, statistics, EPSILON)
    assert torch.equal(ours, dense_stack.predict(shared.contiguous(), parameters, statistics, EPSILON))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", range(7))
def test_nan_and_infinity_stay_in_their_network_and_are_detected(place: int, value: float) -> None:
    x, targets, *parameters = tensors = operands(3, 20, 5, [4])
    with torch.no_grad():
        tensors[place][1].view(-1)[0] = value
    ours = value_and_gradients(fast(x, targets), parameters)
    expected = value_and_gradients(plain(x, targets), parameters)
    assert not ours[0][1].isfinite()
    for got, wanted in zip(ours, expected, strict=True):
        assert got[[0, 2]].isfinite().all()
        assert torch.equal(got[1].isfinite(), wanted[1].isfinite())


def test_mismatched_statistics_are_refused() -> None:
    x, _, *parameters = operands(2, 20, 5, [4])
    with pytest.raises(ValueError, match="statistics have shapes"):
        dense_stack.predict(x, parameters, [torch.ones(2, 4), torch.ones(2, 5)], EPSILON)


def test_dense_stack_is_not_used_under_rounding_or_for_feature_gradients() -> None:
    x, *_ = operands(2, 20, 5, [4])
    assert dense_stack.applies(x)
    assert not dense_stack.applies(x.double()) and not dense_stack.applies(x.requires_grad_())
    with RoundedOperands():
        assert not dense_stack.applies(x.detach())


def dense_losses(features: Tensor, targets: Tensor, *parameters: Tensor) -> Tensor:
    return dense_stack.losses(features, targets, parameters, EPSILON)[0]


STACKS: dict[str, tuple[Layer, Callable[..., list[Tensor]], int]] = {
    "DAC": (dac_stack, lambda: dac_operands(5, 33, 7, 6), 0),
    "dense": (dense_losses, lambda: operands(5, 33, 7, [6, 5]), 2),
}
"""The operator, its operands, and the number of operands without gradient."""
both = pytest.mark.parametrize("name", STACKS)


def found(name: str, tensors: list[Tensor]) -> list[Tensor]:
    layer, _, fixed = STACKS[name]
    return value_and_gradients(lambda *own: layer(*tensors[:fixed], *own), tensors[fixed:])


@both
@pytest.mark.parametrize("threads", [2, 3])
def test_networks_are_distributed_among_threads(name: str, threads: int) -> None:
    def run(count: int) -> list[Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return found(name, STACKS[name][1]())
        finally:
            torch.set_num_threads(before)

    assert all(map(torch.equal, run(threads), run(1)))


@both
def test_non_contiguous_layouts_are_supported(name: str) -> None:
    _, make, fixed = STACKS[name]
    tensors = make()
    turned = [tensor.detach().mT.contiguous().mT for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in turned if tensor.shape[-1] > 1 and tensor.shape[-2] > 1)
    turned = [*turned[:fixed], *(tensor.requires_grad_() for tensor in turned[fixed:])]
    assert all(map(torch.equal, found(name, turned), found(name, tensors)))


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_refused(name: str, dtype: torch.dtype) -> None:
    layer, make, _ = STACKS[name]
    for place, tensor in enumerate(make()):
        tensors = make()
        tensors[place] = tensor.to(dtype)
        with pytest.raises(TypeError, match=rf"{dtype} on cpu; expected torch.float32 on cpu alone|{dtype} on cpu, "):
            layer(*tensors)


@both
def test_mismatched_shapes_are_refused(name: str) -> None:
    layer, make, _ = STACKS[name]
    for place, tensor in enumerate(make()):
        tensors = make()
        tensors[place] = torch.zeros(5, *[9] * (tensor.ndim - 1))
        with pytest.raises(ValueError, match=r"have shapes .*; expected|have shapes .* expected \[M, I, B\]"):
            layer(*tensors)


@both
def test_second_derivatives_are_refused(name: str) -> None:
    layer, make, fixed = STACKS[name]
    tensors = make()

    def differentiate_twice() -> None:
        first = torch.autograd.grad(layer(*tensors).sum(), tensors[fixed:], create_graph=True)
        first[0].square().sum().backward()

    with pytest.raises(RuntimeError, match="no second derivatives"):
        differentiate_twice()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_operators_are_described_correctly_to_compilers() -> None:
    operators = torch.ops.claimcheck
    tensors = dac_operands(2, 20, 5, 4)
    torch.library.opcheck(operators.dac_stack, tensors)
    torch.library.opcheck(operators.dac_stack_backward, [*(x.detach() for x in tensors), torch.randn(2, 4, 20)])
    x, targets, *parameters = operands(2, 20, 5, [4, 3])
    statistics = [torch.ones(2, units) for units in (4, 4, 3, 3)]
    torch.library.opcheck(operators.dense_stack_step, (x, targets, parameters, EPSILON))
    torch.library.opcheck(operators.dense_stack_predict, (x, [p.detach() for p in parameters], statistics, EPSILON))


def test_derivative_at_the_kink_is_zero() -> None:
    at_zero = as_leaves([torch.zeros(2, 3, 3)] * 3, torch.float32)
    assert all(torch.count_nonzero(one) == 0 for one in torch.autograd.grad(dac_stack(*at_zero).sum(), at_zero))
    x, targets, *parameters = operands(2, 20, 5, [4])
    with torch.no_grad():
        parameters[1].zero_()
        parameters[2].zero_()
    *gradients, _ = torch.autograd.grad(fast(x, targets)(*parameters).sum(), parameters)
    assert all(torch.count_nonzero(tensor) == 0 for tensor in gradients)
