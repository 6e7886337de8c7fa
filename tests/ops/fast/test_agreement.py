"""A fast path that should equal PyTorch bit for bit is tried once and disabled if it differs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stages.ops.fast import cpp
from stages.ops.fast.cpp import agrees_here, all_numbers, same_bits

NAN = float("nan")


@pytest.fixture(autouse=True)
def _nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "_answers", {})


def way(made: list[str], *values: float) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        made.append("tried")
        return [torch.tensor(values)]

    return make


def test_agreement_is_checked_once() -> None:
    made: list[str] = []
    for _ in range(3):
        assert agrees_here("a sum", way(made, 1.0, NAN), way(made, 1.0, NAN))
    assert len(made) == 2


def test_differing_path_is_reported_once_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    made: list[str] = []
    for _ in range(3):
        assert not agrees_here("a sum", way(made, 1.0), way(made, 1.0 + 2**-23))
    shown = capsys.readouterr().err.splitlines()
    assert len(made) == 2 and len(shown) == 1 and shown[0].startswith("a sum: ")
    assert torch.backends.cpu.get_cpu_capability() in shown[0]


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # warns about a deprecated switch
def test_agreement_is_checked_again_for_other_routines_of_pytorch() -> None:
    made: list[str] = []
    assert agrees_here("a sum", way(made, 1.0), way(made, 1.0))
    with torch.backends.mkldnn.flags(enabled=False):
        assert not agrees_here("a sum", way(made, 1.0), way(made, 2.0))
    assert agrees_here("a sum", way(made, 1.0), way(made, 2.0)), "remembered from before"


def test_agreement_is_checked_in_inference_and_without_gradients() -> None:
    def with_gradient() -> list[Tensor]:
        x = torch.ones(3, requires_grad=True)
        return [*torch.autograd.grad(x.sum(), x)]

    with torch.inference_mode():
        assert agrees_here("a gradient", with_gradient, with_gradient)
    with torch.no_grad():
        assert agrees_here("another", with_gradient, with_gradient)


@pytest.mark.parametrize(
    ("found", "wanted", "answer"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([NAN]), torch.tensor([-NAN]), True),
        (torch.tensor([NAN]), torch.tensor([1.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.ones(2, 3), torch.ones(3, 2).t(), False),
        (torch.ones(2), torch.ones(3), False),
        (torch.tensor([True]), torch.tensor([True]), True),
        (torch.tensor([1]), torch.tensor([2]), False),
        (torch.ones(2).bfloat16(), torch.ones(2).bfloat16(), True),
    ],
)
def test_same_bits_treats_nans_and_zeros_correctly(found: Tensor, wanted: Tensor, answer: bool) -> None:
    assert same_bits(found, wanted) == answer


def test_all_numbers_lists_every_bfloat16_value() -> None:
    numbers = all_numbers()
    assert numbers.dtype == torch.bfloat16 and len(numbers.view(torch.int16).unique()) == 2**16
    assert numbers.isnan().sum() == 254 and numbers.isinf().sum() == 2
