"""Yat attention's Triton kernels match the printed equation, in Triton's interpreter, and compile for an H100."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.ops import on_triton
from tests.ops.gradients import Layer, in_doubles, leaves, value_and_gradients

pytest.importorskip("triton", reason="Triton comes with a CUDA build of torch; this one has none")

from stages.ops.fast import attention, yat_triton
from stages.ops.yat_attention import yat_attention, yat_attention_reference

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def interpreted() -> Iterator[ModuleType]:
    with on_triton.interpreted(Path(yat_triton.kernels.__file__)) as module:
        yield module


@pytest.fixture
def on_gpu(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the CPU's tensors are on a GPU."""
    monkeypatch.setattr(yat_triton, "kernels", interpreted)
    monkeypatch.setattr(attention, "_is_on_gpu", lambda tensor: True)


def factors() -> list[Tensor]:
    return [torch.tensor(0.4, requires_grad=True), torch.tensor(0.05, requires_grad=True)]


def causal(q: Tensor, k: Tensor, v: Tensor, s: Tensor, e: Tensor) -> Tensor:
    return yat_attention(q, k, v, is_causal=True, scale=s, epsilon=e)


def masked_reference(q: Tensor, k: Tensor, v: Tensor, s: Tensor, e: Tensor) -> Tensor:
    dot = q @ k.mT
    distance = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :] - 2 * dot
    seen = torch.ones(dot.shape[-2:], dtype=torch.bool).tril()
    return (s * dot.square() / (distance + e)).masked_fill(~seen, -torch.inf).softmax(-1) @ v


def assert_alike(fast: Layer, reference: Layer, tensors: list[Tensor]) -> None:
    wanted = value_and_gradients(reference, in_doubles(tensors))
    for got, right in zip(value_and_gradients(fast, tensors), wanted, strict=True):
        # The gradient of a factor is a sum over everything, in which most of it cancels.
        error = 2e-5 if right.ndim else 1e-3
        # With one key alone there is no gradient but rounding.
        torch.testing.assert_close(got.double(), right, rtol=error, atol=error * max(0.1, float(right.abs().max())))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("queries", "keys", "depth"), [(5, 5, 6), (1, 9, 3), (33, 40, 17)])
def test_equals_the_equation_in_value_and_every_gradient(queries: int, keys: int, depth: int) -> None:
    tensors = [*leaves((1, 2, queries, 6), (1, 2, keys, 6), (1, 2, keys, depth)), *factors()]
    assert_alike(lambda q, k, v, s, e: yat_attention(q, k, v, scale=s, epsilon=e), yat_attention_reference, tensors)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("count", [1, 31, 66])
def test_causal_equals_the_masked_equation(count: int) -> None:
    assert_alike(causal, masked_reference, [*leaves(*[(1, 1, count, 20)] * 3), *factors()])


@pytest.mark.usefixtures("on_gpu")
def test_heads_are_read_where_they_lie() -> None:
    packed = leaves((2, 9, 3 * 2 * 6))[0]

    def heads(packed: Tensor) -> Tensor:
        return packed.unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)

    whole = value_and_gradients(lambda packed: yat_attention(*heads(packed), is_causal=True), [packed])
    copied = value_and_gradients(lambda packed: yat_attention(*heads(packed).contiguous(), is_causal=True), [packed])
    assert whole[0].transpose(1, 2).is_contiguous()
    assert all(map(torch.equal, whole, copied))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("apart", [1.0, 0.03], ids=["far", "near"])
def test_half_precision_errs_no_more_than_twice_what_pytorch_does(
    apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Scores are moderate: where one weight is all, gradients are nothing but rounding.
    k, v = leaves(*[(1, 1, 40, 16)] * 2)
    k = k.detach() / 2
    q = k + apart * torch.randn(k.shape, generator=torch.Generator().manual_seed(7)) / 2
    halves = [*(x.detach().half().requires_grad_() for x in (q, k, v)), *factors()]
    halves[-1] = torch.tensor(1.0, requires_grad=True)
    wanted = value_and_gradients(masked_reference, in_doubles(halves))
    fast = value_and_gradients(causal, halves)
    monkeypatch.setattr(attention, "_is_on_gpu", lambda tensor: False)
    ordinary = value_and_gradients(causal, halves)
    assert [tensor.dtype for tensor in fast] == [tensor.dtype for tensor in ordinary]
    for got, theirs, right in zip(fast, ordinary, wanted, strict=True):
        # The gradient of a factor is a sum over everything, in which most of it cancels.
        allowed = 2 * (theirs.double() - right).abs().max() + (2e-3 if right.ndim else 2e-2) * max(
            0.1, right.abs().max()
        )
        assert (got.double() - right).abs().max() <= allowed


@pytest.mark.usefixtures("on_gpu")
def test_large_scores_of_equal_keys_share_their_weight() -> None:
    q = leaves((1, 1, 1, 16))[0].detach().expand(1, 1, 6, 16).contiguous()
    v = leaves((1, 1, 6, 5))[0]
    (to_v,) = torch.autograd.grad(yat_attention(q.clone().requires_grad_(), q, v, epsilon=1e-5).sum(), v)
    torch.testing.assert_close(to_v, torch.ones(1, 1, 6, 5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("pairs", "tokens", "taken"), [(1, 1024, True), (2**20, 1024, False)])
def test_addresses_are_counted(pairs: int, tokens: int, taken: bool) -> None:
    x = torch.empty(1, 1, tokens, 64, device="meta").expand(pairs, 2, tokens, 64)
    factor = torch.empty((), device="meta")
    assert yat_triton.applies(x, x, x, factor, factor) == taken
    assert not yat_triton.applies(x, x, x, torch.tensor(1.0), factor), "scale on another device"


@pytest.mark.usefixtures("on_gpu")
def test_where_q_is_k_gradients_are_those_of_equal_vectors() -> None:
    q = leaves((1, 1, 4, 16))[0].detach()
    k, v = q.clone(), leaves((1, 1, 4, 5))[0].detach()
    q.requires_grad_()
    yat_attention(q, k, v, epsilon=1.0).square().sum().backward()
    assert q.grad.isfinite().all() and q.grad.abs().max() > 0


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("place", range(3))
def test_nan_stays_nan(place: int) -> None:
    tensors = leaves(*[(1, 1, 3, 5)] * 3)
    with torch.no_grad():
        tensors[place].view(-1)[0] = float("nan")
    assert yat_attention(*tensors).isnan().any()


@pytest.mark.usefixtures("on_gpu")
def test_a_compiler_takes_the_kernels_as_they_are() -> None:
    tensors = [*leaves(*[(1, 2, 5, 6)] * 3), *factors()]
    compiled = torch.compile(causal, backend="aot_eager", fullgraph=True)
    pairs = zip(value_and_gradients(compiled, tensors), value_and_gradients(causal, tensors), strict=True)
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
def test_what_the_kernels_cannot_take_goes_to_pytorch(tensors: list[Tensor]) -> None:
    assert not yat_triton.applies(*tensors, *factors())
    assert yat_attention(*tensors).shape == tensors[2].shape


@pytest.mark.parametrize(
    ("name", "kind", "width"),
    [
        *[(name, "bf16", width) for name in ("forward", "query gradient", "key gradient") for width in (64, 128)],
        ("forward", "fp16", 64),
        ("forward", "fp32", 64),
    ],
)
def test_kernels_compile_for_an_h100_without_spilling_in_half_types(name: str, kind: str, width: int) -> None:
    kernel = getattr(yat_triton.kernels, f"{name.replace(' ', '_')}_kernel")
    is_half = kind != "fp32"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[kind]
    head = torch.empty(1, 1, 1, width, dtype=dtype)
    options = yat_triton._options(name, head, head, True)
    warps, steps = options.pop("num_warps"), options.pop("num_stages")
    numbers = ("peaks", "means", "to_factors", "scale", "epsilon", "out")
    own = ("query", "key", "value", "grad", "to_query", "to_key", "to_value")
    pointers = dict.fromkeys(own, kind) | dict.fromkeys(numbers, "fp32")
    pointers = {arg: of for arg, of in pointers.items() if arg in kernel.arg_names}
    rows = tuple(arg for arg in kernel.arg_names if arg.endswith(("_row", "_head", "_sample")))
    ptx, stack = on_triton.built_for_h100(kernel, pointers, options, aligned=rows, num_warps=warps, num_stages=steps)
    products = ("wgmma.mma_async", "mma.sync") if is_half else ("fma.rn.f32",)
    assert any(instruction in ptx for instruction in products)
    assert stack == 0 or not is_half
