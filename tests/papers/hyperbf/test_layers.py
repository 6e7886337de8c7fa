from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.hyperbf.layers import AsWrittenBlock, Block, TokenEmbedding, resize_positions


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def cubic(distance: float, a: float = -0.75) -> float:
    """Keys' cubic convolution kernel."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def test_tokens_are_class_token_and_patches_plus_positions() -> None:
    embedding = TokenEmbedding(image_size=4, in_channels=2, patch_size=2, dim=3, position_image_size=None).double()
    with torch.no_grad():
        embedding.positions.copy_(draw(1, 5, 3))
        embedding.class_token.fill_(7.0)
    images = draw(2, 2, 4, 4)
    weight, bias, positions = embedding.projection.weight, embedding.projection.bias, embedding.positions
    tokens = embedding(images)
    torch.testing.assert_close(tokens[0, 0], 7 + positions[0, 0])
    for index, (row, column) in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        patch = weight.flatten(1) @ images[1, :, row : row + 2, column : column + 2].flatten() + bias
        torch.testing.assert_close(tokens[1, 1 + index], patch + positions[0, 1 + index])


def test_a_table_of_the_right_size_is_not_resized() -> None:
    table = draw(1, 17, 2)
    assert resize_positions(table, 4) is table


@pytest.mark.parametrize(("own", "grid"), [(56, 8), (7, 3), (3, 5)])
def test_resized_positions_are_cubic_convolution_of_the_table(own: int, grid: int) -> None:
    """Loops over the grid, borders repeated; points lie own / (grid + 0.1) apart, as in the authors' code."""
    table = draw(1, 1 + own**2, 1)
    resized = resize_positions(table, grid)
    assert torch.equal(resized[:, 0], table[:, 0])
    step = own / (grid + 0.1)
    for row, column in [(0, 0), (grid - 1, 1), (grid // 2, grid - 1)]:
        y, x = step * (row + 0.5) - 0.5, step * (column + 0.5) - 0.5
        expected = 0.0
        for i in range(int(y // 1) - 1, int(y // 1) + 3):
            for j in range(int(x // 1) - 1, int(x // 1) + 3):
                place = min(max(i, 0), own - 1) * own + min(max(j, 0), own - 1)
                expected += cubic(y - i) * cubic(x - j) * table[0, 1 + place, 0].item()
        assert resized[0, 1 + row * grid + column, 0].item() == pytest.approx(expected, abs=1e-9)


class Shift(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def test_blocks_are_the_two_readings_of_equation_1() -> None:
    x, norm = draw(2, 3, 4), lambda y: F.layer_norm(y, (4,))
    as_run = Block(dim=4, attention=Shift(1.0), feedforward=Shift(2.0)).double()
    as_written = AsWrittenBlock(dim=4, attention=Shift(1.0), feedforward=Shift(2.0)).double()
    u = x + (norm(x) + 1)
    torch.testing.assert_close(as_run(x), u + (norm(u) + 2))
    torch.testing.assert_close(as_written(x), x + (norm(u) + 2))
