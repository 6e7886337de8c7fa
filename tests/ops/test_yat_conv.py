"""The Yat convolution against the printed equation at every position, and against the released package."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.yat_conv import YatConv2d, yat_conv2d, yat_conv2d_reference
from tests.ops.yat_evidence import check_form, check_half, check_layer

WIDE = torch.float64
OPTIONS = [
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    {"stride": 2, "padding": 1, "dilation": 1, "groups": 1},
    {"stride": 3, "padding": 2, "dilation": 2, "groups": 2},
    {"stride": 1, "padding": 1, "dilation": 1, "groups": 4},
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def tensors(groups: int) -> list[Tensor]:
    """x, weight, bias, scale, epsilon."""
    kernels = draw(8, 4 // groups, 3, 2, seed=1)
    return [draw(2, 4, 7, 6), kernels, draw(8, seed=2), torch.tensor(1.3), torch.tensor(0.05)]


def forms(options: dict[str, int]) -> tuple[Any, Any]:
    def fast(x: Tensor, w: Tensor, b: Tensor, s: Tensor, eps: Tensor) -> Tensor:
        return yat_conv2d(x, w, b, **options, scale=s, epsilon=eps)

    def printed(x: Tensor, w: Tensor, b: Tensor, s: Tensor, eps: Tensor) -> Tensor:
        return yat_conv2d_reference(x, w, b, s, eps, **options)

    return fast, printed


def test_reference_gives_a_hand_worked_case() -> None:
    # One 2 x 2 kernel of ones: ⟨K, I⟩ = 1 + 2 + 3 + 4 = 10, ‖K - I‖² = 0 + 1 + 4 + 9 = 14; then 2 + 0 + 4 + 0 padded.
    image, kernel = torch.tensor([[[[1.0, 2], [3, 4]]]]), torch.ones(1, 1, 2, 2)
    plain = yat_conv2d_reference(image, kernel, torch.zeros(1), 1.0, 2.0, stride=1, padding=0, dilation=1, groups=1)
    torch.testing.assert_close(plain, torch.tensor([[[[100 / 16]]]]))
    padded = yat_conv2d_reference(image, kernel, torch.zeros(1), 1.0, 2.0, stride=1, padding=1, dilation=1, groups=1)
    torch.testing.assert_close(padded[0, 0, 1, 2], torch.tensor(36 / (1 + 1 + 9 + 1 + 2)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_conv_equals_reference_in_value_and_gradients(
    options: dict[str, int], dtype: torch.dtype, tolerance: float
) -> None:
    check_form(*forms(options), tensors(options["groups"]), dtype, tolerance)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_conv_in_bfloat16_errs_no_more_than_pytorch(options: dict[str, int]) -> None:
    check_half(*forms(options), tensors(options["groups"]))


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        ("conv", YatConv2d(4, 6, 3, scale="multiplier")),
        ("conv_full", YatConv2d(4, 6, 3, 2, (1, 2), 2, 2, scale="multiplier")),
        ("conv_same", YatConv2d(4, 6, 3, padding="same", bias=False, scale="multiplier", epsilon=0.007)),
        ("conv_reflect", YatConv2d(4, 6, 3, padding=1, padding_mode="reflect", scale="multiplier")),
    ],
)
def test_conv_equals_the_released_package(case: str, layer: YatConv2d) -> None:
    theirs = {"weight": ["weight"], "bias": ["bias"], "scale.alpha": ["alpha"]}
    check_layer(layer, case, {name: theirs[name] for name, _ in layer.named_parameters()})


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize(
    ("kernel_size", "dilation", "padding"), [((3, 3), 1, "same"), ((2, 4), 3, "same"), ((3, 2), 2, "valid")]
)
def test_padding_in_words_is_that_of_pytorch(kernel_size: tuple[int, int], dilation: int, padding: str) -> None:
    x, w = draw(1, 2, 9, 8), draw(3, 2, *kernel_size, seed=1)
    pads = []
    for size in reversed(kernel_size):
        reach = dilation * (size - 1) if padding == "same" else 0
        pads += [reach // 2, reach - reach // 2]
    by_hand = yat_conv2d(F.pad(x, pads), w, dilation=dilation)
    torch.testing.assert_close(yat_conv2d(x, w, padding=padding, dilation=dilation), by_hand)


def test_a_word_that_is_no_padding_is_refused() -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"[Pp]adding"):
        yat_conv2d(draw(1, 2, 5, 5), draw(3, 2, 3, 3), padding="full")


def test_a_patch_that_meets_its_kernel_is_clamped() -> None:
    """Float32 patches of 2,304 numbers that equal their kernel: no negative distance, finite gradients."""
    x = draw(64, 256, 3, 3).float()
    leaf = x.clone().requires_grad_()
    response = yat_conv2d(leaf, x, epsilon=1e-5)
    response.sum().backward()
    assert (response >= 0).all()
    assert leaf.grad is not None and leaf.grad.isfinite().all()
    assert (response.flatten().topk(64).values > 1e6).all()


def test_conv_starts_as_a_conv_of_pytorch() -> None:
    torch.manual_seed(0)
    ours = YatConv2d(16, 32, 3)
    torch.manual_seed(0)
    plain = nn.Conv2d(16, 32, 3)
    assert torch.equal(ours.weight, plain.weight)
    assert torch.equal(ours.bias, plain.bias)
    assert ours.weight.var().item() == pytest.approx(1 / (16 * 9) / 3, rel=0.05)


def test_conv_stands_where_a_conv_stood() -> None:
    layer = YatConv2d(4, 8, (3, 5), (2, 1), (1, 2), 1, 2, False, "circular", None, WIDE)
    plain = nn.Conv2d(4, 8, (3, 5), (2, 1), (1, 2), 1, 2, False, "circular", None, WIDE)
    assert layer(draw(2, 4, 9, 9)).shape == plain(draw(2, 4, 9, 9)).shape
    assert isinstance(layer, nn.Conv2d)
    assert dict(layer.named_parameters()).keys() - {"scale.alpha"} == dict(plain.named_parameters()).keys()


@pytest.mark.slow
def test_conv_compiles_into_one_graph() -> None:
    layer, x = YatConv2d(4, 6, 3, 2, 1), draw(2, 4, 7, 7).float()
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))  # eager has the fast path, whose sums are in another order
