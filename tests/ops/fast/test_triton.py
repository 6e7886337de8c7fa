"""Triton kernels of DAC and Yat attention without a GPU: interpreted, and compiled for an H100."""

import os
import re
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.gradients import (
    Layer,
    as_leaves,
    assert_alike,
    assert_errs_at_most_twice_as_much,
    in_doubles,
    leaves,
    value_and_gradients,
)

pytest.importorskip("triton", reason="Triton comes with a CUDA build of torch; this one has none")
# Known before Triton warns: a product followed by a sum may be rounded once.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton

from stages.ops.dac import dac_conv2d, dac_conv2d_reference, dac_linear, dac_linear_reference
from stages.ops.dac_recompute import dac_taps
from stages.ops.fast import attention, dac, dac_triton, yat_triton
from stages.ops.yat_attention import yat_attention, yat_attention_reference
from tests.ops.test_every_operator import masked_yat_attention

pytestmark = pytest.mark.slow


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that CPU tensors are on a GPU, and run kernels in Triton's interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for owner in (dac_triton, yat_triton):
        for name, kernel in vars(owner).copy().items():
            if isinstance(kernel, triton.runtime.JITFunction):
                monkeypatch.setattr(owner, name, triton.jit(kernel.fn))
    for owner in (dac, attention):
        monkeypatch.setattr(owner, "_is_on_gpu", lambda tensor: True)


def factors(scale: float = 0.4, epsilon: float = 0.05) -> list[Tensor]:
    return [torch.tensor(scale, requires_grad=True), torch.tensor(epsilon, requires_grad=True)]


def yat(q: Tensor, k: Tensor, v: Tensor, s: Tensor, e: Tensor) -> Tensor:
    return yat_attention(q, k, v, scale=s, epsilon=e)


def causal(q: Tensor, k: Tensor, v: Tensor, s: Tensor, e: Tensor) -> Tensor:
    return yat_attention(q, k, v, is_causal=True, scale=s, epsilon=e)


def of_convolution(*shapes: tuple[int, ...], **options: int) -> tuple[Layer, Layer, list[Tensor]]:
    return partial(dac_conv2d, **options), partial(dac_conv2d_reference, **options), leaves(*shapes)


CASES: dict[str, tuple[Layer, Layer, list[Tensor]]] = {
    "convolution": of_convolution((2, 4, 5, 5), (5, 4, 3, 3), (5, 4), padding=1),
    "convolution, stride 2": of_convolution((2, 4, 7, 6), (3, 4, 3, 3), (3, 4), stride=2, padding=1),
    "convolution, many channels": of_convolution((2, 18, 4, 3), (9, 18, 3, 3), (9, 18)),
    "convolution, kernel 1": of_convolution((2, 3, 5, 6), (2, 3, 1, 1), (2, 3), stride=2),
    "convolution, kernel 2": of_convolution((2, 2, 3, 4), (3, 2, 2, 2), (3, 2), padding=2),
    "a bias for each weight": of_convolution((1, 3, 4, 4), (2, 3, 3, 3), (2, 3, 3, 3), stride=2),
    "dense": (dac_linear, dac_linear_reference, leaves((9, 17), (6, 17), (6, 17))),
    **{
        f"Yat attention, {queries} queries": (
            yat,
            yat_attention_reference,
            [*leaves((1, 2, queries, 6), (1, 2, keys, 6), (1, 2, keys, depth)), *factors()],
        )
        for queries, keys, depth in ((5, 5, 6), (1, 9, 3), (33, 40, 17))
    },
    **{
        f"causal Yat attention, {count}": (
            causal,
            masked_yat_attention,
            [*leaves(*[(1, 1, count, 20)] * 3), *factors()],
        )
        for count in (1, 31, 66)
    },
}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_the_equation_in_value_and_every_gradient(name: str) -> None:
    fast, reference, tensors = CASES[name]
    assert_alike(value_and_gradients(fast, tensors), value_and_gradients(reference, in_doubles(tensors)))


@pytest.mark.usefixtures("on_gpu")
def test_half_precision_dac_errs_at_most_twice_as_much_as_pytorch() -> None:
    halves = as_leaves(leaves((2, 20, 6, 5), (9, 20, 3, 3), (9, 20)), torch.float16)
    reference = partial(dac_conv2d_reference, stride=1, padding=1)
    fast = value_and_gradients(lambda x, w, b: dac_taps(x, w, b, (1, 1), (6, 5)), halves)
    plain, exact = value_and_gradients(reference, halves), value_and_gradients(reference, in_doubles(halves))
    assert_errs_at_most_twice_as_much(fast, plain, exact, least=1e-3)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("apart", [1.0, 0.03], ids=["far", "near"])
def test_half_precision_yat_errs_at_most_twice_as_much_as_pytorch(
    apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Scores are moderate, because gradients of a one-hot weight are only rounding errors.
    k, v = leaves(*[(1, 1, 40, 16)] * 2)
    k = k.detach() / 2
    q = k + apart * torch.randn(k.shape, generator=torch.Generator().manual_seed(7)) / 2
    halves = [*as_leaves([q, k, v], torch.float16), *factors(epsilon=1.0)]
    fast, exact = value_and_gradients(causal, halves), value_and_gradients(masked_yat_attention, in_doubles(halves))
    monkeypatch.setattr(attention, "_is_on_gpu", lambda tensor: False)
    assert_errs_at_most_twice_as_much(fast, value_and_gradients(causal, halves), exact, least=5e-3)


@pytest.mark.usefixtures("on_gpu")
def test_strided_heads_are_supported() -> None:
    packed = leaves((2, 9, 3 * 2 * 6))[0]

    def heads(packed: Tensor) -> Tensor:
        return packed.unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)

    whole = value_and_gradients(lambda packed: yat_attention(*heads(packed), is_causal=True), [packed])
    copied = value_and_gradients(lambda packed: yat_attention(*heads(packed).contiguous(), is_causal=True), [packed])
    assert whole[0].transpose(1, 2).is_contiguous()
    assert all(map(torch.equal, whole, copied))


@pytest.mark.usefixtures("on_gpu")
def test_large_scores_of_equal_keys_share_their_weight() -> None:
    q = leaves((1, 1, 1, 16))[0].detach().expand(1, 1, 6, 16).contiguous()
    v = leaves((1, 1, 6, 5))[0]
    (to_v,) = torch.autograd.grad(yat_attention(q.clone().requires_grad_(), q, v, epsilon=1e-5).sum(), v)
    torch.testing.assert_close(to_v, torch.ones(1, 1, 6, 5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("pairs", "tokens", "taken"), [(1, 1024, True), (2**20, 1024, False)])
def test_tensors_beyond_the_address_range_are_not_supported(pairs: int, tokens: int, taken: bool) -> None:
    x = torch.empty(1, 1, tokens, 64, device="meta").expand(pairs, 2, tokens, 64)
    factor = torch.empty((), device="meta")
    assert yat_triton.applies(x, x, x, factor, factor) == taken
    assert not yat_triton.applies(x, x, x, torch.tensor(1.0), factor), "scale on another device"


@pytest.mark.usefixtures("on_gpu")
def test_equal_queries_and_keys_have_finite_nonzero_gradients() -> None:
    q = leaves((1, 1, 4, 16))[0].detach()
    k, v = q.clone(), leaves((1, 1, 4, 5))[0].detach()
    q.requires_grad_()
    yat_attention(q, k, v, epsilon=1.0).square().sum().backward()
    assert q.grad.isfinite().all() and q.grad.abs().max() > 0


@pytest.mark.usefixtures("on_gpu")
def test_derivative_at_the_kink_is_zero() -> None:
    x, weight, bias = torch.zeros(9, 2).requires_grad_(), *(leaves((3, 2), (3, 2)))
    dac_linear(x, weight, bias.detach().zero_().requires_grad_()).sum().backward()
    assert torch.count_nonzero(x.grad) == torch.count_nonzero(weight.grad) == 0


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", ["convolution", "Yat attention, 5 queries"])
@pytest.mark.parametrize("place", range(3))
def test_nan_propagates(name: str, place: int) -> None:
    layer, _, tensors = CASES[name]
    tensors = [tensor.detach().clone() for tensor in tensors]
    tensors[place].view(-1)[0] = float("nan")
    assert layer(*tensors).isnan().any()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", ["convolution", "causal Yat attention, 1"])
def test_compiled_layer_uses_the_same_kernels(name: str) -> None:
    layer, _, tensors = CASES[name]
    compiled = torch.compile(lambda *operands: layer(*operands), backend="aot_eager", fullgraph=True)
    pairs = zip(value_and_gradients(compiled, tensors), value_and_gradients(layer, tensors), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    "tensors",
    [
        leaves(*[(1, 1, 3, 5)] * 3, dtype=torch.float64),
        leaves(*[(1, 1, 3, 129)] * 3),
        [*leaves(*[(1, 1, 3, 5)] * 2), *leaves((1, 1, 3, 5), dtype=torch.float16)],
    ],
    ids=["float64", "a wide head", "two types"],
)
def test_unsupported_inputs_use_pytorch(tensors: list[Tensor]) -> None:
    assert not yat_triton.applies(*tensors, *factors())
    assert yat_attention(*tensors).shape == tensors[2].shape


def built_for_h100(
    kernel: Any, kinds: dict[str, str], constants: dict[str, Any], *, aligned: tuple[str, ...], warps: int, steps: int
) -> tuple[str, int]:
    """Return PTX and each thread's stack bytes, which hold what doesn't fit its registers.

    `kinds` are the element types of pointer arguments; these and `aligned` are divisible by 16.
    """
    signature = {arg: f"*{kinds[arg]}" if arg in kinds else "i32" for arg in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    even = [place for place, arg in enumerate(kernel.arg_names) if arg in kinds or arg in aligned]
    source = triton.compiler.ASTSource(
        kernel, signature, constants, {(place,): [["tt.divisibility", 16]] for place in even}
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    built = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": steps})
    assert "sm_90" in built.asm["ptx"]
    # Same parsing as by NVIDIA's tool in Triton.
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert used, said
    return built.asm["ptx"], int(used[2])


DAC_SIZES = {"A": 3, "B": 3, "ROWS": 4, "COLS": 2, "TAPS": 16, "ACROSS": 8}
IN_HALF = {"PATCHES": 128, "OUTPUTS": 8, "PIXELS": 64}
IN_FLOAT = {"PATCHES": 32, "OUTPUTS": 2, "PIXELS": 32}


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        *(("forward_kernel", *rest) for rest in (("bf16", 32), ("fp32", 16))),
        ("input_gradient_kernel", "bf16", 32),
        *(("weight_gradient_kernel", *rest) for rest in (("bf16", 32), ("fp16", 16))),
        *((f"yat {part}", "bf16", 64) for part in ("forward", "query gradient", "key gradient")),
        *((f"yat {part}", "bf16", 128) for part in ("forward", "query gradient", "key gradient")),
        *(("yat forward", kind, 64) for kind in ("fp16", "fp32")),
    ],
)
def test_kernels_for_an_h100_do_not_spill_registers_in_half_types(name: str, kind: str, size: int) -> None:
    is_half = kind != "fp32"
    if name.startswith("yat "):
        part = name.removeprefix("yat ")
        kernel = getattr(yat_triton, f"{part.replace(' ', '_')}_kernel")
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[kind]
        head = torch.empty(1, 1, 1, size, dtype=dtype)
        constants = yat_triton._options(part, head, head, True)
        warps, steps = constants.pop("num_warps"), constants.pop("num_stages")
        own, numbers = ("query", "key", "value", "grad", "to_query", "to_key", "to_value"), ("peaks", "means", "out")
        kinds = dict.fromkeys(own, kind) | dict.fromkeys((*numbers, "to_factors", "scale", "epsilon"), "fp32")
        aligned = tuple(arg for arg in kernel.arg_names if arg.endswith(("_row", "_head", "_sample")))
    else:
        kernel, steps, aligned = getattr(dac_triton, name), 1, ("inputs",)
        constants = DAC_SIZES | {"CHUNK": size} | (IN_HALF if is_half else IN_FLOAT)
        constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
        kinds = dict.fromkeys(("z", "w", "bias", "out", "grad", "grad_x"), kind)
        kinds |= {"active_sums": "fp32", "passed_sums": "fp32"}
        warps = size // 16 if name == "weight_gradient_kernel" else 4
    kinds = {arg: of for arg, of in kinds.items() if arg in kernel.arg_names}
    ptx, stack = built_for_h100(kernel, kinds, constants, aligned=aligned, warps=warps, steps=steps)
    products = ("wgmma.mma_async", "mma.sync") if is_half else ("fma.rn.f32",)
    assert any(instruction in ptx for instruction in products)
    assert stack == 0 or not is_half
