"""The Triton sums of DAC equal those of PyTorch, in Triton's interpreter, and compile for a GPU that isn't here."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.ops import on_triton
from tests.ops.gradients import assert_alike, in_doubles, leaves, value_and_gradients

pytest.importorskip("triton", reason="Triton comes with a CUDA build of torch; this one has none")

from stages.ops.dac import dac_conv2d, dac_conv2d_reference, dac_linear, dac_linear_reference
from stages.ops.dac_recompute import dac_taps
from stages.ops.fast import dac, dac_triton

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def interpreted() -> Iterator[ModuleType]:
    with on_triton.interpreted(Path(dac_triton.kernels.__file__)) as module:
        yield module


@pytest.fixture
def on_gpu(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the CPU's tensors are on a GPU."""
    monkeypatch.setattr(dac_triton, "kernels", interpreted)
    monkeypatch.setattr(dac, "_is_on_gpu", lambda tensor: True)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("size", "stride", "padding", "channels", "kernel"),
    [
        ((5, 5), 1, 1, (4, 5), 3),
        ((7, 6), 2, 1, (4, 3), 3),
        ((4, 3), 1, 0, (18, 9), 3),
        ((5, 6), 2, 0, (3, 2), 1),
        ((3, 4), 1, 2, (2, 3), 2),
    ],
)
def test_convolution_equals_the_reference_in_float64(
    size: tuple[int, int], stride: int, padding: int, channels: tuple[int, int], kernel: int
) -> None:
    inputs, outputs = channels
    tensors = leaves((2, inputs, *size), (outputs, inputs, kernel, kernel), (outputs, inputs))
    fast = value_and_gradients(lambda x, w, b: dac_conv2d(x, w, b, stride, padding), tensors)
    doubles = in_doubles(tensors)
    assert_alike(fast, value_and_gradients(lambda x, w, b: dac_conv2d_reference(x, w, b, stride, padding), doubles))


@pytest.mark.usefixtures("on_gpu")
def test_dense_equals_the_reference_in_float64() -> None:
    tensors = leaves((9, 17), (6, 17), (6, 17))
    doubles = in_doubles(tensors)
    assert_alike(value_and_gradients(dac_linear, tensors), value_and_gradients(dac_linear_reference, doubles))


@pytest.mark.usefixtures("on_gpu")
def test_a_bias_for_each_weight_equals_the_reference_in_float64() -> None:
    tensors = leaves((1, 3, 4, 4), (2, 3, 3, 3), (2, 3, 3, 3))
    doubles = in_doubles(tensors)
    assert_alike(
        value_and_gradients(lambda x, w, b: dac_conv2d(x, w, b, 2), tensors),
        value_and_gradients(lambda x, w, b: dac_conv2d_reference(x, w, b, 2), doubles),
    )


@pytest.mark.usefixtures("on_gpu")
def test_half_precision_errs_no_more_than_twice_what_pytorch_does() -> None:
    tensors = leaves((2, 20, 6, 5), (9, 20, 3, 3), (9, 20))
    doubles = in_doubles(tensors)
    plain = value_and_gradients(lambda x, w, b: dac_conv2d_reference(x, w, b, 1, 1), doubles)
    halves = [tensor.detach().half().requires_grad_() for tensor in tensors]
    fast = value_and_gradients(lambda x, w, b: dac_taps(x, w, b, (1, 1), (6, 5)), halves)
    ordinary = value_and_gradients(lambda x, w, b: dac_conv2d_reference(x, w, b, 1, 1), halves)
    assert all(tensor.dtype == torch.float16 for tensor in fast)
    for got, theirs, wanted in zip(fast, ordinary, plain, strict=True):
        allowed = 2 * (theirs.double() - wanted).abs().max() + 1e-3 * wanted.abs().max()
        assert (got.double() - wanted).abs().max() <= allowed


@pytest.mark.usefixtures("on_gpu")
def test_derivative_at_the_kink_is_zero() -> None:
    x, weight, bias = torch.zeros(9, 2).requires_grad_(), *(leaves((3, 2), (3, 2)))
    dac_linear(x, weight, bias.detach().zero_().requires_grad_()).sum().backward()
    assert torch.count_nonzero(x.grad) == torch.count_nonzero(weight.grad) == 0


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("place", ["x", "weight", "bias"])
def test_nan_stays_nan(place: str) -> None:
    tensors = dict(zip(("x", "weight", "bias"), leaves((1, 3, 4, 4), (2, 3, 3, 3), (2, 3)), strict=True))
    with torch.no_grad():
        tensors[place].view(-1)[0] = float("nan")
    assert dac_conv2d(**tensors, padding=1).isnan().any()


@pytest.mark.usefixtures("on_gpu")
def test_a_compiler_takes_the_kernels_as_they_are() -> None:
    tensors = leaves((1, 3, 4, 5), (2, 3, 3, 3), (2, 3))
    plain = value_and_gradients(lambda x, w, b: dac_conv2d(x, w, b, 1, 1), tensors)
    compiled = torch.compile(lambda x, w, b: dac_conv2d(x, w, b, 1, 1), backend="aot_eager", fullgraph=True)
    assert all(torch.equal(*pair) for pair in zip(value_and_gradients(compiled, tensors), plain, strict=True))


@pytest.mark.parametrize(
    ("name", "kind", "chunk"),
    [
        ("forward_kernel", "bf16", 32),
        ("forward_kernel", "fp32", 16),
        ("input_gradient_kernel", "bf16", 32),
        ("weight_gradient_kernel", "bf16", 32),
        ("weight_gradient_kernel", "fp16", 16),
    ],
)
def test_kernels_compile_for_an_h100_without_spilling_in_half_types(name: str, kind: str, chunk: int) -> None:
    kernel = getattr(dac_triton.kernels, name)
    is_half = kind != "fp32"
    constants = {"A": 3, "B": 3, "ROWS": 4, "COLS": 2, "TAPS": 16, "ACROSS": 8, "CHUNK": chunk}
    constants |= (
        {"PATCHES": 128, "OUTPUTS": 8, "PIXELS": 64} if is_half else {"PATCHES": 32, "OUTPUTS": 2, "PIXELS": 32}
    )
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    pointers = {"z": kind, "w": kind, "bias": kind, "out": kind, "grad": kind, "grad_x": kind}
    pointers |= {"active_sums": "fp32", "passed_sums": "fp32"}
    warps = chunk // 16 if name == "weight_gradient_kernel" else 4
    ptx, stack = on_triton.built_for_h100(kernel, pointers, constants, aligned=("inputs",), num_warps=warps)
    products = ("wgmma.mma_async", "mma.sync") if is_half else ("fma.rn.f32",)
    assert any(instruction in ptx for instruction in products)
    assert stack == 0 or not is_half
