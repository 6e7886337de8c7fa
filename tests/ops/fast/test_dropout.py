"""Fast dropout equals PyTorch's bit for bit: values, gradients, and the generator's state."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.fast import cpp, dropout
from stages.ops.fast.dropout import Dropout, with_fast_dropout

pytestmark = pytest.mark.skipif(cpp.load_library(dropout._SOURCE) is None, reason="no C++ compiler here")

LAYOUTS = {
    "rows": torch.randn(7, 5, 11),
    "one": torch.randn(1),
    "long": torch.randn(3, 4001),
    "transposed": torch.randn(4, 9, 6).transpose(1, 2),
    "channels last": torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),
    "of size one": torch.randn(1, 8, 1, 3).transpose(0, 3),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the C++ functions called."""
    assert all(map(dropout._draws_alike, (torch.float32, torch.bfloat16)))
    names: list[str] = []
    real = dropout.call
    monkeypatch.setattr(dropout, "call", lambda at, name, *rest: (names.append(name), real(at, name, *rest)))
    return names


def everything(layer: nn.Module, x: Tensor, drawn_before: int) -> list[Tensor]:
    """Return value, gradient and the generator's next numbers, after some draws."""
    torch.manual_seed(3)
    torch.rand(drawn_before)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = layer(x)
    out.backward(torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape))
    return [out.detach(), x.grad, torch.default_generator.get_state(), torch.rand(3), torch.randn(20)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("layout", "p", "drawn_before"),
    [
        *((layout, 0.1, 1) for layout in LAYOUTS),
        *(("long", p, before) for p in (0.5, 0.7) for before in (0, 2, 623, 624, 625)),
    ],
)
def test_same_bits_as_pytorch(layout: str, p: float, drawn_before: int, dtype: torch.dtype, calls: list[str]) -> None:
    x = LAYOUTS[layout].to(dtype)
    fast, plain = everything(Dropout(p), x, drawn_before), everything(nn.Dropout(p), x, drawn_before)
    # PyTorch handles a gradient with another layout than its input.
    half = "_half" * (dtype == torch.bfloat16)
    both_lie_alike = layout in ("rows", "one", "long")
    assert calls == [f"dropout_forward{half}", *[f"dropout_backward{half}"] * both_lie_alike]
    assert fast[0].stride() == plain[0].stride()
    assert all(map(torch.equal, fast, plain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_are_handled_like_pytorch(dtype: torch.dtype, calls: list[str]) -> None:
    x = torch.tensor([float("inf"), float("nan"), -1.0, -0.0, torch.finfo(dtype).max], dtype=dtype).repeat(50)
    fast, plain = everything(Dropout(0.5), x, 0), everything(nn.Dropout(0.5), x, 0)
    assert calls
    torch.testing.assert_close(fast[0], plain[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_gradients_of_preceding_sums_are_added_in_the_same_order(p: float) -> None:
    """A gradient in another layout keeps that layout, as in PyTorch."""
    found = []
    for layer in (Dropout(p), nn.Dropout(p)):
        torch.manual_seed(0)
        x, bias = torch.randn(8, 33, 40), torch.zeros(40, requires_grad=True)
        h = x + bias
        (layer(h).transpose(1, 2) * torch.randn(8, 40, 33)).sum().backward()
        found.append(bias.grad)
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:FutureWarning")  # torch.func itself warns
def test_transformations_and_second_derivatives_use_pytorch(calls: list[str]) -> None:
    x, layer = torch.randn(50), Dropout(0.5)
    torch.manual_seed(0)
    wanted = F.dropout(x, 0.5)
    for ours in (
        lambda: torch.func.vmap(layer, randomness="same")(x[None])[0],
        lambda: torch.func.jvp(layer, (x,), (x,))[0],
        lambda: layer(torch._neg_view(-x)),
    ):
        torch.manual_seed(0)
        torch.testing.assert_close(ours(), wanted)
    assert not calls
    x.requires_grad_()
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert set(second.tolist()) == {0.0, 8.0}  # 2 / (1 - p)² if kept


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (Dropout(0.5).eval(), torch.randn(8)),
        (Dropout(0.0), torch.randn(8)),
        (Dropout(1.0), torch.randn(8)),
        (Dropout(0.5), torch.randn(8, 4)[:, ::2]),
        (Dropout(0.5), torch.randn(8, 1).expand(8, 3)),
        (Dropout(0.5), torch.randn(8, dtype=torch.float64)),
        (Dropout(0.5), torch.randn(8, dtype=torch.float16)),
        (Dropout(0.5), torch.randn(0, 4)),
    ],
)
def test_unsupported_inputs_use_pytorch(layer: Dropout, x: Tensor, calls: list[str]) -> None:
    torch.manual_seed(0)
    fast = layer(x), torch.rand(1)
    torch.manual_seed(0)
    plain = F.dropout(x, layer.p, layer.training), torch.rand(1)
    assert not calls
    assert all(map(torch.equal, fast, plain))


def test_compiled_code_uses_pytorch(calls: list[str]) -> None:
    found = []
    for layer in (Dropout(0.3), nn.Dropout(0.3)):
        torch.compiler.reset()
        found.append(everything(torch.compile(layer, backend="aot_eager"), LAYOUTS["long"], 0))
    assert not calls and all(map(torch.equal, *found))


def test_in_place_dropout_stays_in_place(calls: list[str]) -> None:
    x = torch.ones(100)
    assert Dropout(0.5, inplace=True)(x) is x and x.sum() != 100 and not calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_generator_is_detected(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    before = torch.default_generator.get_state()
    monkeypatch.setattr(cpp, "_answers", {})
    assert dropout._draws_alike(dtype)
    monkeypatch.setattr(cpp, "_answers", {})
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p: x * (torch.rand_like(x) >= p) / (1 - p))
    assert not dropout._draws_alike(dtype)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_hooks_and_subclasses_are_preserved() -> None:
    class Own(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(0.2), Own(0.3), nn.Linear(2, 2))
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda layer, inputs, out: seen.append(out))
    fast = with_fast_dropout(model)
    assert fast is model and [type(layer) for layer in fast] == [Dropout, Own, nn.Linear]
    fast(torch.ones(3, 2))
    assert len(seen) == 1
