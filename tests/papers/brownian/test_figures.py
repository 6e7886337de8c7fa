"""The figures are drawn by the renderer that the project ships, from rows of a real network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vl_convert

from stages.papers.brownian import ViT
from stages.papers.brownian.figures import depth_figure, power_figure, spectrum_figure
from stages.papers.brownian.probe import depth_rows, power_rows, spectrum_rows

FIGURES: list[tuple[Callable[[Any], dict[str, Any]], Callable[..., list[dict[str, Any]]], str]] = [
    (spectrum_figure, spectrum_rows, "modulus"),
    (power_figure, power_rows, "distance to limit"),
    (depth_figure, depth_rows, "mean squared distance / 2d"),
]


@pytest.mark.parametrize(("figure", "rows", "axis"), FIGURES, ids=["spectrum", "powers", "depth"])
def test_a_figure_is_drawn_with_its_axis_and_points(
    small_vit: Callable[..., ViT], figure: Any, rows: Any, axis: str
) -> None:
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    points = rows(small_vit().eval(), images)
    specification = figure(points)
    drawn = vl_convert.vegalite_to_svg(specification)
    assert axis in drawn
    expected = len(specification["data"]["values"])
    assert 0 < expected <= len(points)
    assert drawn.count('aria-roledescription="point"') == expected
