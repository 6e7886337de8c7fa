from __future__ import annotations

import math

import pytest
import torch

from stages.papers.ninformer.layers import (
    FeedForward,
    MultiHeadAttention,
    PatchEmbedding,
    attention_reference,
    count_patches,
)


def test_attention_reference_gives_a_hand_worked_case() -> None:
    # d_k = 4: the first query's scores are 2 ln 3 / 2 and 0, so its weights are 3/4 and 1/4; the second's are equal.
    q = torch.tensor([[[[2.0, 0, 0, 0], [0, 0, 0, 0]]]], dtype=torch.float64)
    k = torch.tensor([[[[math.log(3), 0, 0, 0], [0, 0, 0, 0]]]], dtype=torch.float64)
    v = torch.tensor([[[[4.0, 0, 8, 0], [0, 4, 0, 8]]]], dtype=torch.float64)
    expected = torch.tensor([[[[3.0, 1, 6, 2], [2, 2, 4, 4]]]], dtype=torch.float64)
    torch.testing.assert_close(attention_reference(q, k, v), expected, rtol=0, atol=1e-12)


def test_patch_embedding_is_a_linear_map_of_patches_in_raster_order() -> None:
    embedding = PatchEmbedding(image_size=4, in_channels=2, dim=3, patch_size=2).double()
    images = torch.randn(1, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, bias = embedding.projection.weight, embedding.projection.bias
    assert bias is not None
    expected = [
        weight.flatten(1) @ images[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].flatten() + bias
        for row in range(2)
        for column in range(2)
    ]
    torch.testing.assert_close(embedding(images)[0], torch.stack(expected), rtol=0, atol=1e-12)


def test_feed_forward_is_linear_exact_gelu_linear() -> None:
    mlp = FeedForward(dim=3, hidden_dim=5, dropout=0.5).double().eval()
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = x @ mlp.expand.weight.T + mlp.expand.bias
    gelu = torch.tensor([[h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in row] for row in hidden.tolist()])
    expected = gelu.double() @ mlp.contract.weight.T + mlp.contract.bias
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-7)


def test_feed_forward_drops_hidden_and_output_units() -> None:
    mlp = FeedForward(dim=200, hidden_dim=300, dropout=0.5)
    torch.manual_seed(0)
    share_of_zeros = (mlp(torch.ones(50, 200)) == 0).double().mean().item()
    assert share_of_zeros == pytest.approx(0.5, abs=0.02)
    mlp.contract.weight.data.fill_(1.0)
    mlp.contract.bias.data.zero_()
    rows = [row[row != 0] / 2 for row in mlp(torch.ones(50, 200))]
    assert len({round(row[0].item(), 4) for row in rows}) == 50, "equal inputs differ by the hidden units they lost"


def test_heads_that_do_not_divide_the_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads is 3; expected a divisor of dim, which is 256"):
        MultiHeadAttention(dim=256, num_heads=3)


@pytest.mark.parametrize(("image_size", "patch_size", "patches"), [(28, 4, 49), (32, 4, 64), (4, 4, 1)])
def test_patches_are_counted(image_size: int, patch_size: int, patches: int) -> None:
    assert count_patches(image_size, patch_size) == patches


@pytest.mark.parametrize(("image_size", "patch_size"), [(28, 3), (4, 8), (28, 0), (0, 4)])
def test_impossible_patches_are_refused(image_size: int, patch_size: int) -> None:
    with pytest.raises(ValueError, match=f"patch_size is {patch_size}"):
        count_patches(image_size, patch_size)
