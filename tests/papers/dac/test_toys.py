"""Theorem C.1, Figure 7 and equation 6: cases in which they hold, and cases in which they don't."""

import pytest
import torch
from torch import Tensor

from stages.papers.dac import findings_theory as toys
from stages.papers.dac.findings_theory import PiecewiseLinear


def line(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_piecewise_linear_function_has_its_kinks_and_slopes() -> None:
    function = PiecewiseLinear(kinks=line(0, 2), slopes=line(1, -2, 3), zero=-1.0)
    assert function(line(-3, -1, 0, 1, 2, 3)).tolist() == [-2, 0, 1, -1, -3, 0]


@pytest.mark.parametrize("k", range(1, 9))
def test_2k_numbers_give_k_pieces_after_the_first_zero_and_0_before(k: int) -> None:
    function = toys.random_piecewise_linear(k, torch.Generator().manual_seed(k))
    w, b = toys.dac_parameters(function)
    assert len(w) + len(b) == 2 * k
    right = torch.linspace(function.zero, k + 3, 400, dtype=torch.float64)
    torch.testing.assert_close(toys.dac_unit(right, w, b), function(right), rtol=0, atol=1e-9)
    left = torch.linspace(-50, function.zero, 50, dtype=torch.float64)
    assert toys.dac_unit(left, w, b).abs().max() == 0
    assert function(left)[0] != 0


@pytest.mark.parametrize("k", range(2, 9))
def test_3k_plus_1_numbers_give_k_pieces_everywhere(k: int) -> None:
    function = toys.random_piecewise_linear(k, torch.Generator().manual_seed(k))
    parameters = toys.standard_parameters(function)
    assert sum(p.numel() for p in parameters) == 3 * k + 1
    x = torch.linspace(-50, 50, 999, dtype=torch.float64)
    torch.testing.assert_close(toys.standard_network(x, *parameters), function(x), rtol=0, atol=1e-9)


def test_line_needs_two_standard_units_and_7_numbers() -> None:
    """The bound 3k + 1 = 4 allows one unit, which is constant on at least one side."""
    x = torch.linspace(-5, 5, 11, dtype=torch.float64)
    two = toys.standard_network(x, a=line(1, -1), b=line(0, 0), c=line(2, -2), d=line(1))
    torch.testing.assert_close(two, 2 * x + 1, rtol=0, atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        a, b, c, d = torch.randn(4, 1, generator=generator, dtype=torch.float64)
        far = toys.standard_network(line(-1e4, -2e4, 1e4, 2e4), a, b, c, d)
        assert far[0] == far[1] or far[2] == far[3]


def test_unit_through_more_points_approximates_better() -> None:
    x = torch.linspace(0, 1, 999, dtype=torch.float64)
    errors = []
    for n in (5, 20, 80):
        w, b = toys.interpolating_unit((torch.linspace(0, 1, n, dtype=torch.float64) * 7).cos())
        assert len(w) == len(b) == n
        errors.append((toys.dac_unit(x, w, b) - (7 * x).cos()).abs().max().item())
    assert errors[1] < errors[0] / 9 and errors[2] < errors[1] / 9


def test_figure_7a_separates_the_middle_point_unlike_a_line() -> None:
    first, middle, last = toys.separating_unit(toys.SEPARATED_POINTS)
    assert middle < min(first, last)
    points = toys.SEPARATED_POINTS
    assert torch.equal(points[1], (points[0] + points[2]) / 2)


def test_figure_7b_is_the_square_inside_and_0_on_two_rays_outside() -> None:
    inside = line(0.25, -0.5, -0.25, 0.5, 0, 0, 1, 0).view(4, 2)
    assert toys.square_by_dac(inside).tolist() == [0.25, 0.25, 1, 0]
    outside = line(1, 1, -1, 1, -1, -1, 2, 0, 0, 5, -2, 0.5).view(6, 2)
    assert (toys.square_by_dac(outside) < 0).all()
    rays = line(-1, 0, -2, 0, -1e6, 0, 0, -2, 0, -1e6).view(5, 2)
    assert toys.square_by_dac(rays).abs().max() == 0


def test_three_standard_units_give_the_square_and_less_than_0_everywhere_else() -> None:
    axis = torch.arange(-160, 161, dtype=torch.float64) / 32
    points = torch.cartesian_prod(axis, axis)
    norm, value = points.abs().sum(1), toys.square_by_three_units(points)
    assert torch.equal(value[norm <= 1], 1 - norm[norm <= 1])
    assert value[norm > 1].max() < 0
    directions = torch.linspace(0, 6.28, 629, dtype=torch.float64)
    far = 1e6 * torch.stack([directions.cos(), directions.sin()], 1)
    assert toys.square_by_three_units(far).max() <= -1


def test_two_standard_units_do_not_decrease_along_the_endless_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = torch.linspace(0, 100, 50, dtype=torch.float64)[:, None]
    for _ in range(100):
        weight = torch.randn(2, 2, generator=generator, dtype=torch.float64)
        bias, scale, start = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        ray = start + steps * toys.endless_direction(weight, scale)
        values = (ray @ weight.T + bias).relu() @ scale
        assert (values.diff() >= -1e-9).all()
