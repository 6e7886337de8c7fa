"""The replacements for newer PyTorch features behave like PyTorch itself, which is tested here directly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stages.ops.older_torch_native import with_bias_option


class Older(nn.BatchNorm1d):
    """As in 2.11: without `bias` among its options."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps)


Older.__init__ = with_bias_option(Older.__init__)  # type: ignore[method-assign]  # as the module does with PyTorch's


@pytest.mark.parametrize("bias", [True, False])
def test_a_norm_with_and_without_a_shift_is_pytorchs(bias: bool) -> None:
    older, norm = Older(3, 1e-3, bias=bias), nn.BatchNorm1d(3, 1e-3, bias=bias)
    torch.testing.assert_close(older.state_dict(), norm.state_dict())
    assert [*dict(older.named_parameters())] == [*dict(norm.named_parameters())]
    inputs = [torch.arange(12.0).view(4, 3).square().requires_grad_() for _ in range(2)]
    outputs = [one(rows) for one, rows in zip((older, norm), inputs, strict=True)]
    for output in outputs:
        (output**3).sum().backward()
    assert torch.equal(*outputs) and torch.equal(inputs[0].grad, inputs[1].grad)
    assert torch.equal(older.weight.grad, norm.weight.grad)
    torch.testing.assert_close(older.state_dict(), norm.state_dict())


def test_a_shift_is_there_unless_it_is_left_out() -> None:
    assert Older(3).bias is not None and Older(3, bias=False).bias is None


def test_a_question_about_autocast_leaves_a_graph_whole() -> None:
    def asked(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.amp.is_autocast_available("cpu") and not torch.amp.is_autocast_available("meta") else x

    compiled = torch.compile(asked, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
