"""ViT, the baseline (HyperBF paper, eqs. 1, 5 and 8; Dosovitskiy et al. 2021).

    attn(q, k, v) = Σ_i exp(q·k_i / σ²) / Σ_j exp(q·k_j / σ²) v_i     (5)
    ϕ(x) = W₂ relu(W₁ x + b₁) + b₂                                    (8)

B batch, H heads, N tokens, D width, E = D / H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.hyperbf.layers import Block, TokenClassifier, TokenEmbedding


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
