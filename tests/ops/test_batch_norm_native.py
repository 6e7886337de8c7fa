"""Batch normalisation, sum and ReLU in one pass equal PyTorch's three operators up to rounding, where they apply."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stages.ops import batch_norm_native, native
from stages.ops.batch_norm_native import batch_norm_relu
from stages.ops.fast_layers_native import with_fast_layers

pytestmark = pytest.mark.skipif(native.load_library(batch_norm_native._SOURCE) is None, reason="no C++ compiler here")

# Images, channels, rows and columns of maps: several pixels to a row of C++, one, and a part of one; odd images.
SHAPES = [(6, 16, 8, 8), (3, 64, 4, 6), (5, 128, 3, 3), (2, 384, 5, 1), (7, 1, 16, 8), (2, 128, 1, 1)]
Found = dict[str, Tensor]
FORWARD, BACKWARD = (
    ["origins", "moments", "finish_moments", "forward"],
    ["gradient_sums", "finish_gradients", "backward"],
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The C++ functions that were called, without their types."""
    names: list[str] = []
    real = batch_norm_native.call

    def call(source: object, name: str, *rest: object) -> int:
        names.append(name.removesuffix("_float").removesuffix("_half"))
        return real(source, name, *rest)

    monkeypatch.setattr(batch_norm_native, "call", call)
    return names


def plain(norm: nn.Module, x: Tensor, added: Tensor | None = None) -> Tensor:
    out = norm(x)
    return torch.relu(out if added is None else out + added)


def norm_of(channels: int, *, bias: bool = True) -> nn.BatchNorm2d:
    torch.manual_seed(channels)
    norm = nn.BatchNorm2d(channels, bias=bias)
    for values in norm.parameters():
        nn.init.normal_(values)
    return norm


def maps(*shape: int, seed: int = 0) -> Tensor:
    """Maps in which each channel has its own centre and spread."""
    generator = torch.Generator().manual_seed(seed)
    x, middle, spread = (torch.randn(size, generator=generator) for size in (shape, shape[1], shape[1]))
    return x * (spread.abs() + 0.1)[:, None, None] + 5 * middle[:, None, None]


def everything(layer: Callable[..., Tensor], norm: nn.BatchNorm2d, x: Tensor, added: Tensor | None) -> Found:
    """The output, every gradient, and the layer's running statistics."""
    norm = copy.deepcopy(norm)
    inputs = [one.detach().clone().requires_grad_() for one in (x, added) if one is not None]
    out = layer(norm, *inputs)
    out.backward(maps(*out.shape, seed=7).to(out.dtype))
    found = {"out": out.detach(), "x": inputs[0].grad, "added": inputs[-1].grad}
    found |= {name: values.grad for name, values in norm.named_parameters()} | dict(norm.named_buffers())
    return {name: value for name, value in found.items() if value is not None}


def assert_as_near(ours: Found, pytorchs: Found, exact: Found) -> None:
    """About as close as PyTorch in the same precision, which rounds elsewhere, so that other ReLUs flip."""
    assert ours.keys() == pytorchs.keys() == exact.keys()
    for name, value in exact.items():
        assert ours[name].dtype == pytorchs[name].dtype and ours[name].shape == value.shape, name
        far, allowed = (float((found[name].double() - value.double()).norm()) for found in (ours, pytorchs))
        assert far <= 2 * allowed + 1e-6 * (float(value.double().norm()) + value.numel() ** 0.5), name


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_gradients_and_memory_are_those_of_the_equation(
    shape: tuple[int, ...], adds: bool, has_bias: bool, calls: list[str]
) -> None:
    x, added = maps(*shape), maps(*shape, seed=1) if adds else None
    norm = norm_of(shape[1], bias=has_bias)
    ours = everything(batch_norm_relu, norm, x, added)
    assert calls == [*FORWARD, *BACKWARD]
    pytorchs = everything(plain, norm, x, added)
    exact = everything(plain, copy.deepcopy(norm).double(), x.double(), None if added is None else added.double())
    assert_as_near(ours, pytorchs, exact)


@pytest.mark.parametrize("adds", [True, False])
def test_bfloat16_is_as_near_as_pytorchs(adds: bool, calls: list[str]) -> None:
    """Rounded once where PyTorch rounds after each operator; γ, β and the layer's memory stay float32."""
    x, added = maps(8, 32, 6, 6).bfloat16(), maps(8, 32, 6, 6, seed=1).bfloat16() if adds else None
    norm = norm_of(32)
    exact = everything(plain, norm, x.float(), None if added is None else added.float())
    ours, pytorchs = (everything(layer, norm, x, added) for layer in (batch_norm_relu, plain))
    assert calls == [*FORWARD, *BACKWARD]
    assert_as_near(ours, pytorchs, exact)


@pytest.mark.parametrize(("middle", "outlier"), [(0, 0), (3000, 0), (0, 1000), (-1e6, 0)])
def test_little_is_lost_in_large_maps_far_from_zero_or_from_their_first_pixel(middle: float, outlier: float) -> None:
    x = torch.randn(64, 16, 32, 32, generator=torch.Generator().manual_seed(0)) + middle
    x[0, :, 0, 0] += outlier
    found = [everything(layer, norm_of(16), x, None) for layer in (batch_norm_relu, plain)]
    exact = everything(plain, norm_of(16).double(), x.double(), None)
    assert_as_near(*found, exact)


@pytest.mark.parametrize(("eps", "momentum"), [(1e-3, 0.4), (1, 1), (1e-5, 0)])
def test_its_own_numbers_count_whole_ones_too(eps: float, momentum: float, calls: list[str]) -> None:
    norm, x = norm_of(16), maps(4, 16, 4, 4)
    norm.eps, norm.momentum = eps, momentum
    ours, wanted = (everything(layer, norm, x, None) for layer in (batch_norm_relu, plain))
    assert calls == [*FORWARD, *BACKWARD]
    for name, value in wanted.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_numbers_of_a_channel_may_lie_apart(name: str, calls: list[str]) -> None:
    norm, x = norm_of(16), maps(4, 16, 4, 4)
    apart = torch.stack([getattr(norm, name).detach(), torch.full((16,), 9.0)], dim=1)[:, 0]
    other = copy.deepcopy(norm)
    setattr(other, name, nn.Parameter(apart) if name in ("weight", "bias") else apart)
    torch.testing.assert_close(batch_norm_relu(other, x), plain(norm, x))
    assert not calls


def test_a_gradient_may_be_negative_by_name() -> None:
    grad, found = maps(4, 16, 4, 4).contiguous(memory_format=torch.channels_last), []
    for one in (torch._neg_view(grad), -grad):
        x = maps(4, 16, 4, 4).requires_grad_()
        batch_norm_relu(norm_of(16), x).backward(one)
        found.append(x.grad)
    assert torch.equal(*found)


def test_a_second_derivative_is_refused() -> None:
    x = maps(4, 16, 4, 4).requires_grad_()
    (first,) = torch.autograd.grad(batch_norm_relu(norm_of(16), x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_what_is_kept_for_the_way_back_must_not_be_changed() -> None:
    out = batch_norm_relu(norm_of(16), maps(4, 16, 4, 4).requires_grad_())
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_what_is_no_number_stays_none() -> None:
    x = maps(4, 16, 8, 8)
    x[0, 3, 0, 0], x[1, 5, 2, 2], x[0, 7, 0, 0] = float("nan"), float("inf"), float("inf")
    ours, wanted = (everything(layer, norm_of(16), x, None) for layer in (batch_norm_relu, plain))
    for name, value in wanted.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-3, equal_nan=True, msg=name)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_maps_are_cut_for_threads(threads: int, monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    monkeypatch.setattr(batch_norm_native, "_PART", 3000)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, added = maps(6, 32, 8, 8), maps(6, 32, 8, 8, seed=1)
        ours = everything(batch_norm_relu, norm_of(32), x, added)
        again = everything(batch_norm_relu, norm_of(32), x, added)
    finally:
        torch.set_num_threads(before)
    assert calls.count("moments") == calls.count("backward") == 2 * threads
    assert all(torch.equal(ours[name], again[name]) for name in ours)
    exact = everything(plain, norm_of(32).double(), x.double(), added.double())
    assert_as_near(ours, everything(plain, norm_of(32), x, added), exact)


def test_gradients_of_a_mean_and_of_maps_in_rows_are_taken(calls: list[str]) -> None:
    """The first is one number for all pixels of a map, without its own memory."""
    x, norm = maps(4, 16, 4, 4), norm_of(16)
    for reduce in (lambda out: out.mean(dim=(2, 3)).square().sum(), lambda out: (out * maps(4, 16, 4, 4)).sum()):
        found = []
        for layer in (batch_norm_relu, plain):
            one = x.clone().requires_grad_()
            reduce(layer(norm, one)).backward()
            found.append(one.grad)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert calls == [*FORWARD, *BACKWARD] * 2


LEFT_ALONE: dict[str, tuple[nn.BatchNorm2d, Tensor, Tensor | None]] = {
    "evaluation": (norm_of(16).eval(), maps(4, 16, 4, 4), None),
    "double precision": (norm_of(16).double(), maps(4, 16, 4, 4).double(), None),
    "a width that doesn't divide": (norm_of(24), maps(4, 24, 4, 4), None),
    "a row cut off": (norm_of(16), maps(1, 16, 3, 3), None),
    "an average over all batches": (nn.BatchNorm2d(16, momentum=None), maps(4, 16, 4, 4), None),
    "nothing remembered": (nn.BatchNorm2d(16, track_running_stats=False), maps(4, 16, 4, 4), None),
    "nothing learned": (nn.BatchNorm2d(16, affine=False), maps(4, 16, 4, 4), None),
    "a sum that is spread": (norm_of(16), maps(4, 16, 4, 4), maps(1, 16, 4, 4)),
    "a sum of another type": (norm_of(16), maps(4, 16, 4, 4), maps(4, 16, 4, 4).bfloat16()),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_everything_else_is_left_to_pytorch(name: str, calls: list[str]) -> None:
    norm, x, added = LEFT_ALONE[name]
    ours, wanted = (layer(copy.deepcopy(norm), x, added) for layer in (batch_norm_relu, plain))
    assert not calls and torch.equal(ours, wanted)


def test_too_little_and_the_wrong_width_are_refused_as_ever(calls: list[str]) -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm_relu(norm_of(128), maps(1, 128, 1, 1))
    with pytest.raises(RuntimeError, match="16"):
        batch_norm_relu(norm_of(16), maps(4, 32, 4, 4))
    with pytest.raises(ValueError, match="expected 4D"):
        batch_norm_relu(norm_of(16), torch.randn(8, 16, 4))
    assert not calls


def test_transformations_are_pytorchs(calls: list[str]) -> None:
    x, norm = maps(4, 16, 4, 4), norm_of(16)
    batched = torch.func.vmap(lambda one: batch_norm_relu(norm, one), randomness="same")
    norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    torch.testing.assert_close(batched(x[None])[0], plain(norm, x))
    assert not calls


def network() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), inner, nn.ReLU(), nn.BatchNorm2d(16), nn.Flatten())


def test_pairs_are_found_within_a_sequence_and_across_its_parts(calls: list[str]) -> None:
    x = maps(4, 3, 10, 10)
    ours, wanted = with_fast_layers(network()), network()
    torch.testing.assert_close(ours(x), wanted(x))
    assert calls == FORWARD * 2  # the last normalisation has no ReLU behind it
    torch.testing.assert_close(dict(ours.named_buffers()), dict(wanted.named_buffers()))
    torch.testing.assert_close(ours.eval()(x), wanted.eval()(x))
    assert calls == FORWARD * 2


@pytest.mark.parametrize(("place", "pairs"), [("1", 1), ("2", 0), ("2.0", 1), ("2.1", 2), ("3", 1)])
def test_who_watches_a_layer_sees_it(place: str, pairs: int, calls: list[str]) -> None:
    ours, wanted, seen = with_fast_layers(network()), network(), []
    for layers in (ours, wanted):
        layers.get_submodule(place).register_forward_hook(lambda layer, inputs, out: seen.append(out.detach()))
    x = maps(4, 3, 10, 10)
    torch.testing.assert_close(ours(x), wanted(x))
    assert len(seen) == 2 and calls == FORWARD * pairs
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("kind", ["forward_pre", "full_backward", "full_backward_pre"])
def test_every_kind_of_hook_is_called(kind: str, calls: list[str]) -> None:
    layers, seen = with_fast_layers(network()), []
    for place in ("1", "2.0"):
        getattr(layers.get_submodule(place), f"register_{kind}_hook")(lambda *_, place=place: seen.append(place))
    layers(maps(4, 3, 10, 10)).sum().backward()
    assert sorted(seen) == ["1", "2.0"] and calls == FORWARD + BACKWARD


def test_what_else_goes_through_a_sequence_goes_on() -> None:
    class Pair(nn.Module):
        def forward(self, both: tuple[Tensor, Tensor]) -> Tensor:
            return both[0] + both[1]

    assert with_fast_layers(nn.Sequential(Pair(), nn.ReLU()))((torch.ones(2), -torch.ones(2))).tolist() == [0, 0]


def test_compiled_code_is_pytorchs(calls: list[str]) -> None:
    x = maps(4, 3, 10, 10)
    torch.compiler.reset()
    ours = torch.compile(with_fast_layers(network()), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(ours(x), network()(x))
    assert not calls
