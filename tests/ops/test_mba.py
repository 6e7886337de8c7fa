from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stages.ops.mba import MBA, mba, mba_reference

GOLDEN = Path(__file__).parents[1] / "golden" / "dac_loops.npz"


def test_equation_3_equals_loops_as_printed_and_as_activation_with_a_linear_layer() -> None:
    with np.load(GOLDEN) as loops:
        x, weight, bias, expected = (
            torch.from_numpy(loops[f"mba/{name}"]) for name in ("x", "weight", "bias", "output")
        )
    torch.testing.assert_close(mba_reference(x, weight, bias), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(F.linear(mba(x, bias), weight.flatten(1)), expected, rtol=0, atol=1e-9)


def test_gradients_equal_those_of_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 4), (3, 4, 2), (4, 2))
    leaves = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    x, weight, bias = leaves
    outputs = mba_reference(x, weight, bias), F.linear(mba(x, bias), weight.flatten(1))
    by_reference, ours = (torch.autograd.grad(output.square().sum(), leaves) for output in outputs)
    for expected, gradient in zip(by_reference, ours, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


def test_copies_of_a_channel_lie_side_by_side() -> None:
    x = torch.tensor([[[[1.0]], [[-1.0]]]])
    activated = mba(x, torch.tensor([[0.0, 2.0], [0.5, 3.0]]))
    assert activated.flatten().tolist() == [1.0, 3.0, 0.0, 2.0]


def test_module_starts_with_zero_biases_which_make_it_relu_repeated() -> None:
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(MBA(3, 4)(x), x.relu().repeat_interleave(4, dim=1))


def test_biases_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        mba(torch.zeros(2, 3), torch.zeros(4, 2))
