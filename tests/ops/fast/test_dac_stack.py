"""DAC's layer for several networks equals the reference, network by network."""

import pytest
import torch
from torch import Tensor

from stages.ops.dac import dac_linear_reference
from stages.ops.fast.dac_stack import dac_stack, is_available
from tests.ops.gradients import assert_alike, in_doubles, value_and_gradients

pytestmark = pytest.mark.skipif(not is_available(), reason="no C++ compiler here")


def operands(networks: int, samples: int, inputs: int, units: int) -> list[Tensor]:
    """X [M, I, B], weight and bias [M, U, I]."""
    generator = torch.Generator().manual_seed(networks + samples + inputs + units)
    shapes = (networks, inputs, samples), (networks, units, inputs), (networks, units, inputs)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    each = [dac_linear_reference(one.T, *own).T for one, *own in zip(x, weight, bias, strict=True)]
    return torch.stack(each)


@pytest.mark.parametrize(
    ("networks", "samples", "inputs", "units"), [(1, 1, 1, 1), (3, 40, 14, 18), (2, 1100, 25, 1), (4, 257, 35, 33)]
)
def test_each_network_equals_the_reference_in_float64(networks: int, samples: int, inputs: int, units: int) -> None:
    tensors = operands(networks, samples, inputs, units)
    assert_alike(value_and_gradients(dac_stack, tensors), value_and_gradients(reference, in_doubles(tensors)))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_networks(threads: int) -> None:
    def run(count: int) -> list[Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return value_and_gradients(dac_stack, operands(5, 33, 7, 6))
        finally:
            torch.set_num_threads(before)

    assert all(map(torch.equal, run(threads), run(1)))


def test_layouts_other_than_contiguous_are_read_right() -> None:
    tensors = operands(3, 20, 8, 8)
    turned = [tensor.detach().mT.contiguous().mT.requires_grad_() for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in turned)
    assert all(map(torch.equal, value_and_gradients(dac_stack, turned), value_and_gradients(dac_stack, tensors)))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nan_stays_in_its_network(place: int) -> None:
    tensors = operands(3, 20, 5, 4)
    with torch.no_grad():
        tensors[place][1].view(-1)[0] = float("nan")
    for tensor in value_and_gradients(dac_stack, tensors)[:3]:
        assert not tensor[[0, 2]].isnan().any()
    assert dac_stack(*tensors)[1].isnan().any()


@pytest.mark.parametrize("place", [0, 1])
def test_a_nan_reaches_the_gradients_of_its_network(place: int) -> None:
    tensors = operands(3, 20, 5, 4)
    grad = torch.ones(3, 4, 20)
    with torch.no_grad():
        (tensors[1] if place else grad)[1].view(-1)[0] = float("nan")
    to_x, *_ = torch.autograd.grad(dac_stack(*tensors), tensors, grad)
    assert to_x[1].isnan().any() and not to_x[[0, 2]].isnan().any()


def test_derivative_at_the_kink_is_zero() -> None:
    x, weight, bias = (torch.zeros(2, 3, 3, requires_grad=True) for _ in range(3))
    dac_stack(x, weight, bias).sum().backward()
    assert all(torch.count_nonzero(tensor.grad) == 0 for tensor in (x, weight, bias))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compilers_are_told_what_the_operators_give() -> None:
    tensors = operands(2, 20, 5, 4)
    torch.library.opcheck(torch.ops.claimcheck.dac_stack, tensors)
    grad = torch.randn(2, 4, 20)
    torch.library.opcheck(torch.ops.claimcheck.dac_stack_backward, [*(tensor.detach() for tensor in tensors), grad])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_refused(dtype: torch.dtype, place: int) -> None:
    tensors = operands(2, 20, 5, 4)
    tensors[place] = tensors[place].to(dtype)
    with pytest.raises(TypeError, match=rf"{dtype} on cpu; expected torch.float32 on cpu alone|{dtype} on cpu, "):
        dac_stack(*tensors)


def test_second_derivatives_are_refused() -> None:
    tensors = operands(2, 20, 5, 4)
    (to_x,) = torch.autograd.grad(dac_stack(*tensors).sum(), tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        to_x.square().sum().backward()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_shapes_that_do_not_fit_are_refused(place: int) -> None:
    tensors = operands(2, 20, 5, 4)
    tensors[place] = torch.zeros(2, 6, 6)
    with pytest.raises(ValueError, match=r"x, weight, bias have shapes .* expected \[M, I, B\], \[M, U, I\]"):
        dac_stack(*tensors)
