"""In bfloat16 on a CPU attention goes through float32 and GELU's gradient through a table; other types don't."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops import agreement_native, bfloat16_native, native
from stages.ops.agreement_native import same_bits
from stages.ops.bfloat16_native import use_fast_bfloat16


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """For these tests only."""
    before = torch.compiler.config.cache_key_tag
    library = use_fast_bfloat16()
    assert use_fast_bfloat16() is library and torch.compiler.config.cache_key_tag != before
    yield
    library._destroy()
    use_fast_bfloat16.cache_clear()
    torch.compiler.config.cache_key_tag = before


def draw(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 17, 8).to(dtype).requires_grad_() for _ in range(3)]


def value_and_gradients(leaves: list[Tensor], **options: object) -> list[Tensor]:
    out = F.scaled_dot_product_attention(*leaves, **options)
    back = torch.linspace(-1, 1, out.numel()).view(out.shape).bfloat16()
    return [out, *torch.autograd.grad(out, leaves, back.to(out.dtype))]


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "added": {"attn_mask": torch.randn(17, 17).bfloat16()},
    "kept": {"attn_mask": torch.randn(17, 17) > -1},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_bfloat16_is_that_of_float32_rounded(option: str) -> None:
    options = OPTIONS[option]
    halves = draw(torch.bfloat16)
    found = value_and_gradients(halves, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = {"attn_mask": mask.float()}
    wanted = value_and_gradients([half.detach().float().requires_grad_() for half in halves], **options)
    assert all(got.dtype == torch.bfloat16 for got in found)
    assert all(torch.equal(got, want.bfloat16()) for got, want in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_are_left_to_pytorch(dtype: torch.dtype) -> None:
    leaves = draw(dtype)
    ours = value_and_gradients(leaves, is_causal=True)
    out, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*leaves, is_causal=True)
    assert torch.equal(ours[0], out)


def test_a_mask_of_another_type_is_refused_as_before() -> None:
    with pytest.raises(RuntimeError, match="BFloat16"):
        F.scaled_dot_product_attention(*draw(torch.bfloat16), attn_mask=torch.zeros(17, 17, dtype=torch.float64))


def test_inference_is_left_to_pytorch() -> None:
    leaves = draw(torch.bfloat16)
    with torch.inference_mode():
        plain, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*leaves)
        assert torch.equal(F.scaled_dot_product_attention(*leaves), plain)


ALL_NUMBERS = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the C++ functions that were called."""
    if native.load_library(bfloat16_native._SOURCE) is None:
        pytest.skip("no C++ compiler here")
    names: list[str] = []
    real = bfloat16_native.call
    monkeypatch.setattr(bfloat16_native, "call", lambda at, name, *rest: (names.append(name), real(at, name, *rest)))
    return names


def gelu_gradient(x: Tensor, grad: Tensor, approximate: str = "none") -> Tensor:
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    return torch.autograd.grad(F.gelu(leaf, approximate=approximate), leaf, grad)[0]


def by_pytorch(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    return torch.ops.aten.gelu_backward.grad_input(grad, x, approximate=approximate, grad_input=torch.empty_like(x))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("threads", [1, 2])
def test_gelus_gradients_are_pytorchs_numbers(approximate: str, threads: int, looked_up: list[str]) -> None:
    x = ALL_NUMBERS.repeat(3)
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    grad[:3] = torch.tensor([torch.inf, torch.nan, 0.0])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agrees = bfloat16_native._agrees(approximate)
        looked_up.clear()
        found = gelu_gradient(x, grad, approximate)
        wanted = by_pytorch(grad, x, approximate)
    finally:
        torch.set_num_threads(before)
    assert looked_up == ["gelu_backward"] * threads * agrees
    assert same_bits(found, wanted)


def test_where_pytorch_rounds_otherwise_its_gradient_is_taken(
    monkeypatch: pytest.MonkeyPatch, looked_up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On a processor without AVX512 float32 goes through oneDNN, and bfloat16, which the table is for, doesn't."""

    def another(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
        is_half = x.dtype == torch.bfloat16
        with torch.backends.mkldnn.flags(enabled=not is_half, allow_tf32=None):
            return by_pytorch(grad, x, approximate)

    monkeypatch.setattr(bfloat16_native, "_plain_gelu_backward", another)
    monkeypatch.setattr(agreement_native, "_answers", {})
    x = ALL_NUMBERS
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    table = bfloat16_native._slopes_of_gelu("none", True)
    assert not same_bits((table * grad).bfloat16(), another(grad, x, "none")), "there is something to notice"
    assert not bfloat16_native._agrees("none") and "GELU's gradient in bfloat16" in capsys.readouterr().err
    looked_up.clear()
    assert same_bits(gelu_gradient(x, grad), another(grad, x, "none")) and not looked_up


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 3, 63, 64, 65, 131, 192, 32832, 65664, 65728])
def test_gelus_gradient_of_any_count_is_pytorchs(
    count: int, threads: int, approximate: str, looked_up: list[str]
) -> None:
    """PyTorch rounds the numbers after a thread's last full registers differently; those are left to it."""
    x, grad = torch.randn(2, count, generator=torch.Generator().manual_seed(count)).mul(4).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agrees = bfloat16_native._agrees(approximate)
        looked_up.clear()
        found, wanted = gelu_gradient(x, grad, approximate), by_pytorch(grad, x, approximate)
    finally:
        torch.set_num_threads(before)
    assert same_bits(found, wanted)
    has_no_rest = count % 64 == 0 and (threads == 1 or count < 32769 or count // 2 % 64 == 0)
    assert bool(looked_up) == (agrees and has_no_rest)


def halves(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


OTHERS = {
    "float32": (halves(8, 5).float(), halves(8, 5).float()),
    "float64": (halves(8, 5).double(), halves(8, 5).double()),
    "wider gradient": (halves(8, 5).float(), halves(8, 5)),
    "both transposed": (halves(8, 5).T, halves(8, 5).T),
    "gradient transposed": (halves(8, 5).T, halves(5, 8)),
    "input transposed": (halves(5, 8), halves(8, 5).T),
    "channels last": (halves(2, 3, 4, 5), halves(2, 3, 4, 5).to(memory_format=torch.channels_last)),
    "expanded gradient": (halves(1, 1).expand(8, 5), halves(8, 5)),
    "empty": (halves(0, 5), halves(0, 5)),
}
# Before anything is replaced.
BY_PYTORCH = {name: torch.ops.aten.gelu_backward(*tensors) for name, tensors in OTHERS.items()}


@pytest.mark.parametrize("name", OTHERS)
def test_other_gradients_of_gelu_are_left_to_pytorch(name: str, looked_up: list[str]) -> None:
    found, wanted = torch.ops.aten.gelu_backward(*OTHERS[name]), BY_PYTORCH[name]
    assert found.dtype == wanted.dtype and found.stride() == wanted.stride()
    assert torch.equal(found, wanted) and not looked_up


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:FutureWarning")  # of torch.func itself
def test_gelu_differentiated_twice_and_transformed(looked_up: list[str]) -> None:
    x = halves(3, 4).requires_grad_()
    (first,) = torch.autograd.grad(F.gelu(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    wide = x.detach().double()
    slope_of_slope = (2 - wide.square()) * (-wide.square() / 2).exp() / (2 * torch.pi) ** 0.5
    torch.testing.assert_close(second.double(), slope_of_slope, rtol=0.02, atol=0.02)
    mapped = torch.func.vmap(torch.func.grad(lambda row: F.gelu(row).sum()))(x.detach())
    torch.testing.assert_close(mapped, first.detach())
