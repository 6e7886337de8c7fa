"""ViT, the baseline (HyperBF paper, eqs. 1, 5 and 8; Dosovitskiy et al. 2021), and the parts that HyperBF shares.

    attn(q, k, v) = Σ_i exp(q·k_i / σ²) / Σ_j exp(q·k_j / σ²) v_i     (5)
    ϕ(x) = W₂ relu(W₁ x + b₁) + b₂                                    (8)

B batch, C channels, S image size, P patches (a grid of G x G), H heads, N = P + 1 tokens, D width, E = D / H,
K classes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def count_grid(image_size: int, patch_size: int) -> int:
    """Return G, the number of patches along one side of a square image.

    Raises:
        ValueError: patches of this size don't tile the image.
    """
    if patch_size < 1 or image_size < patch_size or image_size % patch_size:
        raise ValueError(f"patch_size is {patch_size}; expected a divisor of the image's size, which is {image_size}")
    return image_size // patch_size


def resize_positions(table: Tensor, grid: int) -> Tensor:
    """Resize a position table to another grid, bicubic, but not the class token's row.

    The authors' code scales by (grid + 0.1) / H, which samples slightly denser than the two grids would.
    [1, 1 + H², D] -> [1, 1 + grid², D].
    """
    own_grid = round((table.shape[1] - 1) ** 0.5)
    if own_grid == grid:
        return table
    patches = table[:, 1:].unflatten(1, (own_grid, own_grid)).permute(0, 3, 1, 2)
    resized = F.interpolate(patches, scale_factor=(grid + 0.1) / own_grid, mode="bicubic")
    return torch.cat([table[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)


class TokenEmbedding(nn.Module):
    """Patches after a class token, with learned positions on all.  [B, C, S, S] -> [B, N, D].

    The position table fits images of `position_image_size` and is resized on each pass if the images have another size.
    Class token and positions start at zero: the truncated normal in the authors' code has no effect.
    """

    def __init__(
        self, *, image_size: int, in_channels: int, patch_size: int, dim: int, position_image_size: int | None
    ) -> None:
        super().__init__()
        self.grid = count_grid(image_size, patch_size)
        table_grid = self.grid if position_image_size is None else count_grid(position_image_size, patch_size)
        self.projection = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.zeros(1, table_grid**2 + 1, dim))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.projection(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], dim=1)
        return tokens + resize_positions(self.positions, self.grid)


class Block(nn.Module):
    """Equation 1 as the authors run it, like a pre-norm transformer block.  [B, N, D] -> [B, N, D].

    u = x + attention(LayerNorm(x)),  y = u + feedforward(LayerNorm(u))
    """

    def __init__(self, *, dim: int, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.feedforward_norm = nn.LayerNorm(dim)
        self.feedforward = feedforward

    def forward(self, x: Tensor) -> Tensor:
        u = x + self.attention(self.attention_norm(x))
        return u + self.feedforward(self.feedforward_norm(u))


class AsWrittenBlock(Block):
    """Equation 1 as printed: y = x + feedforward(LayerNorm(x + attention(LayerNorm(x)))), the outer residual from x."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.feedforward(self.feedforward_norm(x + self.attention(self.attention_norm(x))))


class TokenClassifier(nn.Module):
    """Embedding, blocks, LayerNorm, Linear on the class token.  Normalised images [B, C, S, S] -> logits [B, K].

    Linear layers keep PyTorch's initial weights and start without bias, as in the authors' code.
    """

    def __init__(self, *, embedding: TokenEmbedding, blocks: Iterable[nn.Module], dim: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(images))[:, 0]))


def attention_reference(q: Tensor, k: Tensor, v: Tensor, sigma: float) -> Tensor:
    """Equation 5 as printed.  q, k, v: [..., N, E]."""
    weights = torch.exp(q @ k.transpose(-2, -1) / sigma**2)
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


class DotProductAttention(nn.Module):
    """Equation 5 in H heads with 1 / σ² = E^scale_exponent, then a Linear over the joined heads.  [B, N, D] -> same.

    `has_unused_matrix` adds the E x E matrix that the authors' baseline registers and never uses: it makes the two
    models' parameter counts match, gets no gradient and changes nothing else.

    Raises:
        ValueError: the heads don't divide `dim`.
    """

    def __init__(self, *, dim: int, num_heads: int, scale_exponent: float, has_unused_matrix: bool) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of dim, which is {dim}")
        head_dim = dim // num_heads
        self.num_heads, self.scale = num_heads, head_dim**scale_exponent
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.projection = nn.Linear(dim, dim)
        self.register_parameter("unused", nn.Parameter(torch.eye(head_dim)) if has_unused_matrix else None)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, N, E]
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # equals attention_reference
        return self.projection(mixed.transpose(1, 2).flatten(2))


class ViT(TokenClassifier):
    """Normalised images [B, C, S, S] -> logits [B, K].

    `scale_exponent` is -0.5 in every ViT except the authors' baseline, which has -0.8.  `position_image_size` is the
    image size that the position table is built for, None for the images' own.
    """

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        patch_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        hidden_dim: int,
        scale_exponent: float,
        has_unused_matrix: bool,
        position_image_size: int | None = None,
    ) -> None:
        blocks = (
            Block(
                dim=dim,
                attention=DotProductAttention(
                    dim=dim, num_heads=num_heads, scale_exponent=scale_exponent, has_unused_matrix=has_unused_matrix
                ),
                feedforward=nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, dim)),
            )
            for _ in range(depth)
        )
        embedding = TokenEmbedding(
            image_size=image_size,
            in_channels=in_channels,
            patch_size=patch_size,
            dim=dim,
            position_image_size=position_image_size,
        )
        super().__init__(embedding=embedding, blocks=blocks, dim=dim, num_classes=num_classes)
