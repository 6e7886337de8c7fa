"""DAC's sums in C++ equal PyTorch's."""

import math

import pytest
import torch
from torch import Tensor

from stages.ops.dac import DACConv2d, dac_conv2d, dac_linear
from stages.ops.fast import cpp, dac
from tests.ops.gradients import leaves, value_and_gradients
from tests.preloaded import python
from tests.project import REPOSITORY

pytestmark = pytest.mark.skipif(cpp.load_library(dac.SOURCE) is None, reason="no C++ compiler here")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the C++ functions called."""
    names: list[str] = []
    real = dac._call
    monkeypatch.setattr(dac, "_call", lambda name, *rest: (names.append(name), real(name, *rest)))
    return names


@pytest.mark.parametrize("stride", [1, 2])
def test_bfloat16_maps_are_widened_and_their_gradient_rounded(stride: int, calls: list[str]) -> None:
    x, w, b = leaves((3, 4, 9, 7), (5, 4, 3, 3), (5, 4))
    x = x.detach().bfloat16().requires_grad_()
    halves = value_and_gradients(lambda *tensors: dac_conv2d(*tensors, stride, 1), [x, w, b])
    assert {"dac_forward", "dac_backward"} <= set(calls)
    wide = value_and_gradients(
        lambda *tensors: dac_conv2d(*tensors, stride, 1), [x.detach().float().requires_grad_(), w, b]
    )
    assert [tensor.dtype for tensor in halves] == [torch.float32, torch.bfloat16, torch.float32, torch.float32]
    assert torch.equal(halves[1], wide[1].bfloat16())
    assert all(map(torch.equal, [halves[0], *halves[2:]], [wide[0], *wide[2:]]))


@pytest.mark.parametrize("threads", [2, 3])
def test_images_are_distributed_among_threads(threads: int) -> None:
    tensors = leaves((5, 4, 8, 8), (6, 4, 3, 3), (6, 4))

    def run(count: int) -> list[Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return value_and_gradients(lambda x, w, b: dac_conv2d(x, w, b, 1, 1), tensors)
        finally:
            torch.set_num_threads(before)

    together = run(threads)
    assert all(torch.equal(*pair) for pair in zip(together, run(threads), strict=True))
    for got, wanted in zip(together, run(1), strict=True):
        # Sums in another order, some of which cancel: rounding follows the largest numbers.
        units = 4 * torch.finfo(torch.float32).eps * float(wanted.abs().max())
        torch.testing.assert_close(got, wanted, rtol=1.3e-6, atol=units)


def test_derivative_at_the_kink_is_zero() -> None:
    x = torch.zeros(9, 2, requires_grad=True)
    weight, bias = (torch.ones(3, 2, requires_grad=True), torch.zeros(3, 2, requires_grad=True))
    dac_linear(x, weight, bias).sum().backward()
    assert all(torch.count_nonzero(tensor.grad) == 0 for tensor in (x, weight, bias))


@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000], ids=["nan", "negative nan"])
@pytest.mark.parametrize("place", ["x", "weight", "bias"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_nan_propagates(place: str, kernel: int, bits: int) -> None:
    tensors = dict(zip(("x", "weight", "bias"), leaves((2, 3, 9, 9), (4, 3, kernel, kernel), (4, 3)), strict=True))
    with torch.no_grad():
        tensors[place].view(-1).view(torch.int32)[0] = bits
    found = value_and_gradients(lambda x, w, b: dac_conv2d(x, w, b, padding=kernel // 2), list(tensors.values()))
    assert found[0].isnan().any() and found[1 if place == "weight" else 2].isnan().any()


@pytest.mark.parametrize("kernel", [1, 3])
def test_cancelling_infinities_are_nan(kernel: int) -> None:
    x, weight, bias = leaves((2, 3, 9, 9), (4, 3, kernel, kernel), (4, 3))
    with torch.no_grad():
        x[1], bias[2, 1] = math.inf, -math.inf
    out = dac_conv2d(x, weight, bias, padding=kernel // 2)
    assert out[1, 2].isnan().all() and not out[1, [0, 1, 3]].isfinite().any() and out[0].isfinite().all()


def test_non_contiguous_layouts_are_supported() -> None:
    x, weight, bias = leaves((2, 4, 9, 8), (5, 4, 3, 3), (5, 4))
    channels_last = x.detach().to(memory_format=torch.channels_last)
    assert torch.equal(dac_conv2d(channels_last, weight, bias, 1, 1), dac_conv2d(x, weight, bias, 1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stride", [0, 1, 2], ids=["dense", "convolution", "strided"])
def test_compiled_layer_calls_the_same_cpp_with_the_same_bits(
    stride: int, dtype: torch.dtype, calls: list[str]
) -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return dac_conv2d(x, w, b, stride, 1) if stride else dac_linear(x.float(), w, b)

    x, w, b = leaves((3, 4, 9, 7), (5, 4, 3, 3), (5, 4)) if stride else leaves((64, 14), (18, 14), (18, 14))
    tensors = [x.detach().to(dtype).requires_grad_(), w, b]
    eager = value_and_gradients(layer, tensors)
    in_eager = calls.copy()
    calls.clear()
    compiled = value_and_gradients(torch.compile(layer, backend="aot_eager", fullgraph=True), tensors)
    assert calls == in_eager and "dac_backward" in calls
    assert all(torch.equal(*pair) for pair in zip(compiled, eager, strict=True))


def test_exported_layer_contains_none_of_our_operators() -> None:
    x, w, b = (tensor.detach() for tensor in leaves((3, 4, 9, 7), (5, 4, 3, 3), (5, 4)))
    layer = DACConv2d(4, 5, 3, padding=1)
    layer.load_state_dict({"weight": w, "bias": b})
    for strict in (False, True):
        program = torch.export.export(layer, (x,), strict=strict)
        assert not [node for node in program.graph.nodes if "claimcheck" in str(node.target)]
        torch.testing.assert_close(program.module()(x), layer(x))


def test_operators_are_described_correctly_to_compilers() -> None:
    x, w, b = leaves((3, 4, 9, 7), (5, 4, 3, 3), (5, 4))
    torch.library.opcheck(dac._forward_operator, (x.detach(), w.detach(), b.detach(), [1, 1], [9, 7]))
    rows = x.detach().reshape(1, 1, -1, 4).permute(0, 3, 1, 2)
    point, biases = w.detach()[..., :1, :1], b.detach()
    torch.library.opcheck(dac._forward_operator, (rows, point, biases, [0, 0], [1, rows.shape[3]]))
    grad = torch.ones(1, 5, 1, rows.shape[3])
    torch.library.opcheck(dac._backward_operator, (rows, point, biases, grad, [0, 0]))


def test_pytorch_is_used_without_a_compiler(tmp_path) -> None:
    script = (
        "import torch\n"
        "from stages.ops.fast import dac\n"
        "from stages.ops.dac import DACConv2d\n"
        "x, layer = torch.ones(1, 2, 8, 8), DACConv2d(2, 2, 3, padding=1)\n"
        "assert not dac.applies(x, layer.weight, layer.bias)\n"
        "layer(x).sum().backward()\n"
    )
    environment = {"CXX": "/nowhere/c++", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ".", "PATH": "/nowhere"}
    done = python("-c", script, cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stderr
    assert "dac.cpp: can't be compiled, using PyTorch's operators" in done.stderr
